"""Nets in which kernels and layers are tried: a file, or the text of layers that follow one input."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import Layout, ModelError, PlanError, unknown

if TYPE_CHECKING:
    from demitasse import Graph, Runtime, Tensor

HALVES = Layout("bf16", stored="bfloat16")
SEED = 5
NUMBERED = ("label", "index", "similar", "cont", "selector")
"""Operands whose values are whole numbers."""
NETS = Path(str(files("demitasse_conformance"))) / "nets"
"""The folder of the kit's own nets."""


@contextmanager
def around(net: str | Path, shape: Sequence[int] | None) -> Iterator[Path]:
    """Yield the path of a net: of its file or, if there is a ``shape``, of a temporary file with the
    layers in the text ``net``, which follow a blob ``x`` of that shape."""
    if shape is None:
        yield Path(net)
        return
    dims = " ".join(f"dim: {extent}" for extent in shape)
    first = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.prototxt")
        path.write_text(f"{first}\n{net}\n", encoding="utf-8")
        yield path


def there_and_back(phase: str, precision: str) -> Any:
    """Return the options of a net that keeps every blob and its gradient."""
    return {"phase": phase, "precision": precision, "retain": "all", "backward": "every blob"}


@contextmanager
def opened(runtimes: Iterable[Runtime], path: Path, phase: str, precision: str) -> Iterator[Graph]:
    """Yield the operations of a net, forward and backward, from the first runtime that can plan it."""
    *others, last = runtimes
    options = there_and_back(phase, precision)
    made = None
    for runtime in others:
        with contextlib.suppress(PlanError):  # a plugin's operation may be computed only in its memory
            made = made or runtime.net(path, **options)
    with made or last.net(path, **options) as net:
        yield net.graph


def starting_values(graph: Graph, given: Mapping[str, Any], precision: str) -> dict[Tensor, np.ndarray]:
    """Return values of everything that no operation makes: constants, inputs (``given`` by name,
    otherwise random, or classes 0 and 1), the first samples of sources, parameters whose products are of
    the order of what they multiply, positive statistics, and gradients of outputs that nothing reads.
    Raises ModelError if a given name is not an input."""
    random = np.random.default_rng(SEED)
    values = {}
    for tensor, value in graph.constants.items():
        constant = np.broadcast_to(np.asarray(value, tensor.dtype), tensor.shape).copy()
        if constant.dtype.kind == "f" and not constant.any():  # the gradient of an unread blob
            constant = random.normal(size=tensor.shape).astype(tensor.dtype)
        values[tensor] = constant
    numbers = {"iteration": 3, "sample": 8, "rate": 0.01}
    for name, tensor in graph.scalars.items():
        values[tensor] = np.array([numbers.get(name, 1)], tensor.dtype)
    for feed in graph.feeds:
        fields = {name: np.empty(t.shape, t.dtype) for name, t in feed.tensors.items()}
        stream = feed.source.stream(feed.offset, feed.count, feed.batch)
        try:
            stream.read(fields)
        finally:
            stream.close()
        values |= {tensor: fields[name] for name, tensor in feed.tensors.items()}
    for name in given:
        if name not in graph.inputs:
            raise ModelError(unknown("input", name, graph.inputs))
    classes = _classes(graph)
    for name, tensor in graph.inputs.items():
        made = random.normal(size=tensor.shape)
        made = given.get(name, (made > 0) if tensor in classes else made)
        values[tensor] = np.broadcast_to(np.asarray(made, tensor.dtype), tensor.shape).copy()
    for parameter in graph.parameters:
        shape = parameter.tensor.shape
        if parameter.trainable:
            made = random.normal(size=shape) / math.sqrt(math.prod(shape[1:]) or 1)
        else:
            made = random.uniform(0.5, 1.5, shape)
        values[parameter.tensor] = made.astype(parameter.tensor.dtype)
    made_by_nodes = {tensor for node in graph.nodes for tensor in node.outputs}
    for read in (tensor for node in graph.nodes for tensor in node.inputs):
        if read is not None and read not in values and read not in made_by_nodes:
            values[read] = random.normal(size=read.shape).astype(read.dtype)
    return {tensor: rounded(tensor, value, precision) for tensor, value in values.items()}


def _classes(graph: Graph) -> set[Tensor]:
    """Return tensors that operations read as numbers of classes or rows; 0 and 1 are always valid."""
    return {
        tensor
        for node in graph.nodes
        for operand, tensor in zip(node.operation.inputs, node.inputs, strict=False)
        if tensor is not None and operand.name in NUMBERED
    }


def rounded(tensor: Tensor, value: np.ndarray, precision: str) -> np.ndarray:
    """Return a value as a kernel may receive it: in bf16, what passes between layers or comes from
    outside may have half of the bits."""
    value = value.astype(tensor.dtype)
    halved = tensor.kind in ("activation", "gradient", "input") and tensor.dtype == "float32"
    if halved and precision == "bf16":
        return HALVES.unpack(HALVES.pack(value), value.shape)
    return value
