"""What the tests share: real files, files made from text, and a builder that records operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_nets import inputs

import demitasse
from demitasse import DataSpec, Layer, ModelReader, NetDefinition, Tensor
from demitasse.operations import REQUIRED, VOCABULARY, extend
from demitasse_caffe.layers import LAYER_TYPES
from demitasse_caffe.operations import OPERATIONS
from demitasse_caffe.plugin import model_reader

WORDS = extend(VOCABULARY, OPERATIONS)
TYPES = {kind.name: kind for kind in LAYER_TYPES}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """Return a reader of a text, as if it were a file called ``name``."""

    def reader(text: str, name: str = "net.prototxt", types: Any = None) -> ModelReader | None:
        path = tmp_path / name
        path.write_text(text)
        return model_reader(path, {**TYPES, **(types or {})})

    return reader


class Recorder:
    """A graph builder that records what a layer type asks for and knows the vocabulary's shape rules."""

    def __init__(self, phase: str = "train", sample: tuple[int, ...] = (3, 32, 32)) -> None:
        self.phase, self.dtype, self.seed, self.stream = phase, "float32", 7, 0
        self.sample, self.workers, self.counted = sample, 1, False
        self.operations: list[tuple[str, tuple[Tensor | None, ...], dict[str, Any]]] = []
        self.parameters: list[SimpleNamespace] = []
        self.constants: dict[str, np.ndarray] = {}
        self.sources: list[tuple[DataSpec, int, Mapping[str, str]]] = []
        self.blobs: dict[str, Tensor] = {}

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        word = WORDS[operation]
        assert set(attributes) <= set(word.attributes), operation
        complete = {**word.attributes, **attributes}
        assert REQUIRED not in complete.values()
        shapes: dict[str, Any] = {}
        for position, operand in enumerate(word.inputs):
            if operand.variadic:
                shapes[operand.name] = [tensor.shape for tensor in inputs[position:] if tensor]
            else:
                tensor = inputs[position] if position < len(inputs) else None
                assert tensor is not None or operand.optional, (operation, operand.name)
                shapes[operand.name] = tensor.shape if tensor is not None else None
        self.operations.append((operation, inputs, complete))
        made = [
            Tensor(operation, tuple(s), self.dtype, "activation") for s in word.shapes(shapes, complete)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def parameter(self, shape: tuple[int, ...], filler: Any, **options: Any) -> Tensor:
        self.parameters.append(SimpleNamespace(shape=shape, filler=filler, **options))
        return Tensor("parameter", shape, self.dtype, "parameter")

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(name, tuple(shape), self.dtype, "input")

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        self.constants[name] = value
        return Tensor(name, value.shape, self.dtype, "constant")

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        self.sources.append((spec, batch, fields))
        shapes = {"data": self.sample, "label": ()}
        return tuple(Tensor(name, (batch, *shapes[name]), "uint8", "input") for name in fields)

    def scalar(self, name: str) -> Tensor:
        return Tensor(name, (1,), "uint64", "scalar")

    def expand(self, net: NetDefinition) -> dict[str, Any]:
        """Build all layers of a net; return the shape of each blob by its name."""
        for self.stream, layer in enumerate(net.layers):
            self.layer(layer)
        return {name: tensor.shape for name, tensor in self.blobs.items()}

    def layer(self, layer: Layer) -> list[Tensor]:
        bottoms = [self.blobs[name] for name in layer.bottoms]
        tops = list(TYPES[layer.type].build(layer, bottoms, self))
        self.blobs.update(zip(layer.tops, tops, strict=False))
        return tops


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def build(read: Callable[..., Any], recorder: type[Recorder]) -> Callable[..., Recorder]:
    """Build a layer whose inputs ``x`` (and others) have the given shapes."""

    def build(text: str, phase: str = "train", **shapes: tuple[int, ...]) -> Recorder:
        graph = recorder(phase)
        graph.expand(read(f"{inputs(**shapes)}layer {{ {text} }}").net(phase))
        return graph

    return build


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run a net of layers on random inputs; return its inputs, its outputs and its parameters."""

    def run(layers: str, **shapes: tuple[int, ...]) -> Any:
        path = tmp_path / "net.prototxt"
        path.write_text(inputs(**shapes) + layers)
        random = np.random.default_rng(0)
        given = {name: random.normal(0, 4, shape).astype("f4") for name, shape in shapes.items()}
        with demitasse.compose(plugins=["-tuning"]) as runtime:
            net = runtime.net(path, phase="test")
            made = {name: np.array(array) for name, array in net.forward(**given).items()}
            learned = {name: [np.array(a) for a in arrays] for name, arrays in net.params.items()}
            net.close()
        return given, made, learned

    return run
