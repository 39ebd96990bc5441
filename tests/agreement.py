"""What tests of kernels share: random requests, and whether the cpu plugin's kernels give what the
reference's give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from hypothesis import strategies as st

from demitasse import PLAIN, Candidate, Place, Request, TensorSpec
from demitasse.operations import REQUIRED, VOCABULARY, extend
from demitasse_caffe.operations import OPERATIONS
from demitasse_onnx.operations import OPERATIONS as OF_ONNX
from demitasse_training.across_workers import OPERATIONS as ACROSS_WORKERS
from demitasse_training.clipping import OPERATIONS as CLIPPED
from demitasse_training.folding import FOLD

Draw = Callable[[Any], Any]
Case = tuple[list[Any], dict[str, Any]]

WORDS = extend(extend(VOCABULARY, OPERATIONS, "caffe"), [FOLD, *CLIPPED, *ACROSS_WORKERS], "training")
WORDS = extend(WORDS, OF_ONNX, "onnx")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
BEHIND = 4096
"""Bytes that others have behind a kernel's workspace."""


@functools.cache  # to look for entry points takes 10 ms
def hook(plugin: str) -> Callable[[Request], Iterable[Any]]:
    (entry,) = entry_points(group="demitasse.plugins", name=plugin)
    kernels: Callable[[Request], Iterable[Any]] = entry.load().kernels
    return kernels


class Values:
    """Draws a request's numbers: sizes by hypothesis, contents from a seed that it chose."""

    def __init__(self, draw: Draw, dtype: str) -> None:
        self.draw, self.dtype = draw, dtype
        self.random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def real(self, *shape: int) -> Any:
        return self.random.standard_normal(shape).astype(self.dtype)

    def positive(self, *shape: int) -> Any:
        return self.random.uniform(0.5, 2.0, shape).astype(self.dtype)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.number(1, 6) for _ in range(self.number(2, 4)))

    def labels(self, count: int, classes: int) -> Any:
        kind = self.one_of(self.dtype, "int32")  # each is compiled for
        return self.random.integers(0, classes, count).astype(kind)

    def counters(self) -> list[Any]:
        return [np.array([self.number(0, 2**40)], np.uint64) for _ in range(2)]


class Large(Values):
    """Sizes that are worth more than one thread: ``sizes`` by the most that a case draws up to."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.dtype, self.random, self._sizes = "float64", np.random.default_rng(2), sizes

    def number(self, low: int, high: int) -> int:
        return self._sizes[high]

    def shape(self) -> tuple[int, ...]:
        return (180, 190)

    def one_of(self, *choices: Any) -> Any:
        return choices[0]


def labelled(v: Values) -> tuple[Any, Any, dict[str, Any]]:
    shape = v.shape()
    axis = v.number(1, len(shape) - 1)
    classes = shape[axis]
    label = v.labels(int(np.prod(shape)) // classes, classes)
    return v.real(*shape), label, {"axis": axis, "ignore_label": v.one_of(None, 0, classes - 1)}


def make_request(name: str, inputs: list[Any], given: dict[str, Any], dtype: str) -> Request:
    """The request that a plan would make, all optional outputs wanted."""
    operation = WORDS[name]
    attributes = {**operation.attributes}
    attributes.update({key: value for key, value in given.items() if key in attributes})
    assert REQUIRED not in attributes.values()
    shapes: dict[str, Any] = {}
    for position, operand in enumerate(operation.inputs):
        if operand.variadic:
            shapes[operand.name] = [x.shape for x in inputs[position:]]
        else:
            shapes[operand.name] = None if inputs[position] is None else inputs[position].shape
    made = operation.shapes(shapes, attributes)
    kinds = list(operation.outputs)
    kinds += kinds[-1:] * (len(made) - len(kinds))
    outputs = tuple(
        TensorSpec(tuple(shape), dtype if operand.dtype in (None, "real") else operand.dtype or dtype)
        for operand, shape in zip(kinds, made, strict=True)
    )
    specs = tuple(None if x is None else TensorSpec(x.shape, x.dtype.name) for x in inputs)
    return Request(operation, specs, outputs, attributes, Place("test", threads=2))


def aligned(spec: TensorSpec, values: Any = 77) -> Any:
    """Memory as a plan gives it: on a cache line."""
    room = np.zeros(spec.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    array = room[start : start + spec.nbytes].view(spec.array_type).reshape(spec.physical)
    array[...] = values
    return array


def run(candidate: Candidate, request: Request, inputs: list[Any]) -> list[Any]:
    """What a candidate leaves in the inputs and outputs, in logical order."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    made = candidate.output_layouts or (PLAIN,) * len(request.outputs)
    specs = [
        spec and replace(spec, layout=layout)
        for operands, layouts in ((request.inputs, taken), (request.outputs, made))
        for spec, layout in zip(operands, layouts, strict=True)
    ]
    packed = [None if x is None else layout.pack(x) for x, layout in zip(inputs, taken, strict=True)]
    arrays = [
        None if spec is None else aligned(spec, packed[i] if i < len(packed) else 77)
        for i, spec in enumerate(specs)
    ]
    size = candidate.workspace
    room = aligned(TensorSpec((size + BEHIND,), "uint8"), 255)
    work = candidate.bind(arrays[: len(inputs)], arrays[len(inputs) :], room[:size] if size else None)
    work()
    assert (room[size:] == 255).all(), f"{candidate.kernel} writes behind its workspace"
    return [
        None if spec is None else spec.layout.unpack(array, spec.shape)
        for spec, array in zip(specs, arrays, strict=True)
    ]


def check_agreement(
    name: str, inputs: list[Any], attributes: dict[str, Any], dtype: str, within: float
) -> None:
    """All of the cpu's kernels leave what the reference's does, but for ``within`` of each number and of
    the largest one (or of 1)."""
    request = make_request(name, inputs, attributes, dtype)
    (reference,) = hook("reference")(request)
    expected = run(reference, request, inputs)
    candidates = list(hook("cpu")(request))
    assert candidates
    for candidate in candidates:
        for ours, theirs in zip(run(candidate, request, inputs), expected, strict=True):
            if ours is None:
                continue
            scale = max(1.0, float(np.abs(theirs.astype(np.float64)).max(initial=0.0)))
            np.testing.assert_allclose(ours, theirs, rtol=within, atol=within * scale)
