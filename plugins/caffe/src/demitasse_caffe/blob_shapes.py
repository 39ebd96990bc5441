"""The shapes of a net's blobs, without a plan: layers are built on shapes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import DataSource, DataSpec, DemitasseError, Field, Layer, LayerType, Tensor
from demitasse.operations import VOCABULARY, Operation, Shape, extend

Opener = Callable[[DataSpec], DataSource]


class ShapeGraph:
    """A graph builder that keeps nothing but shapes. ``assumed`` names the layers whose samples are not
    available; their shapes are guessed from transform_param."""

    def __init__(self, vocabulary: Mapping[str, Operation], phase: str, open_source: Opener | None):
        self.phase, self.dtype, self.seed, self.stream, self.workers = phase, "float32", 0, 0, 1
        self.counted = True
        self.assumed: list[str] = []
        self._vocabulary, self._open_source = vocabulary, open_source
        self._layer: Layer | None = None

    def tops(self, layer: Layer, kind: LayerType, bottoms: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """Return the tops that a layer makes of its bottoms, or None if that cannot be known without
        running it."""
        self._layer = layer = _without_mean(layer)
        assumed = len(self.assumed)
        try:
            return kind.build(layer, bottoms, self)
        # What a third-party type may raise: the layer is wrong, or this is not a real graph.
        except (
            *(DemitasseError, ValueError, TypeError, LookupError),
            *(AttributeError, ArithmeticError, MemoryError, OSError),
        ):
            del self.assumed[assumed:]
            return None

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Return the outputs of an operation, by its shape rule."""
        word = self._vocabulary[operation]
        shapes: dict[str, Any] = {}
        for position, operand in enumerate(word.inputs):
            if operand.variadic:
                shapes[operand.name] = [tensor.shape for tensor in inputs[position:] if tensor]
            else:
                tensor = inputs[position] if position < len(inputs) else None
                shapes[operand.name] = tensor.shape if tensor is not None else None
        made = [
            Tensor(operation, tuple(shape), self.dtype, "activation")
            for shape in word.shapes(shapes, {**word.attributes, **attributes})
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def parameter(self, shape: Shape, filler: Any, **options: Any) -> Tensor:
        """Return a parameter, which is never filled."""
        return Tensor("parameter", tuple(shape), self.dtype, "parameter")

    def input(self, name: str, shape: Shape) -> Tensor:
        """Return an input of its declared shape."""
        return Tensor(name, tuple(shape), self.dtype, "input")

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """Return a constant."""
        return Tensor(name, tuple(value.shape), self.dtype, "constant")

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Return samples of the shapes that the source reports, or else of likely shapes."""
        shapes = self._stored(spec) or self._likely(fields)
        return tuple(Tensor(name, (batch, *shapes[name]), self.dtype, "input") for name in fields)

    def scalar(self, name: str) -> Tensor:
        """Return a number that changes with the step."""
        return Tensor(name, (1,), "float64", "scalar")

    def _stored(self, spec: DataSpec) -> dict[str, Shape]:
        if spec.kind == "fillers":  # DummyData declares its shape itself
            return {spec.options["field"]: spec.options["shape"][1:]}
        declared: Mapping[str, Field] = spec.options.get("declared", {})
        try:
            source = self._open_source(spec) if self._open_source else None
        except (DemitasseError, OSError):
            source = None
        fields = source.fields if source else declared
        return {name: field.shape for name, field in fields.items()}

    def _likely(self, fields: Iterable[str]) -> dict[str, Shape]:
        """Return the shape of images of the crop size, with as many channels as there are mean values,
        else 3."""
        assert self._layer is not None
        transform = self._layer.parameters.transform_param
        if not transform.crop_size:
            raise ValueError(
                f"layer {self._layer.name!r}: its samples are not here, so their shape is unknown"
            )
        means = len(transform.mean_value)
        channels = 1 if transform.force_gray else means if means > 1 else 3
        self.assumed.append(self._layer.name)
        image = (channels, transform.crop_size, transform.crop_size)
        return {name: () if name == "label" else image for name in fields}


def _without_mean(layer: Layer) -> Layer:
    """Return a layer that needs no mean file, which may be missing and has no influence on shapes."""
    message = layer.parameters
    if isinstance(message, Mapping) or not message.transform_param.mean_file:
        return layer
    copied = type(message)()
    copied.CopyFrom(message)
    copied.transform_param.ClearField("mean_file")
    return dataclasses.replace(layer, parameters=copied)


def blob_shapes(
    layers: Iterable[Layer],
    phase: str,
    layer_types: Mapping[str, LayerType] | None = None,
    open_source: Opener | None = None,
) -> tuple[list[list[Shape | None]], list[str]]:
    """Return for each layer the shape of each top, or None if it cannot be known: after a layer of an
    unknown type, or after samples that are not available. Also return the layers whose samples' shapes
    are assumed.

    ``layer_types`` are Caffe's by default; ``open_source`` is a runtime's.
    """
    from demitasse_caffe.layers import LAYER_TYPES
    from demitasse_caffe.operations import OPERATIONS

    kinds = layer_types or {kind.name: kind for kind in LAYER_TYPES}
    graph = ShapeGraph(extend(VOCABULARY, OPERATIONS, "caffe"), phase, open_source)
    blobs: dict[str, Tensor | None] = {}
    result: list[list[Shape | None]] = []
    for number, layer in enumerate(layers):
        graph.stream = number
        bottoms = [tensor for name in layer.bottoms if (tensor := blobs.get(name)) is not None]
        made: Sequence[Tensor] | None = None
        if layer.type in kinds and len(bottoms) == len(layer.bottoms):
            made = graph.tops(layer, kinds[layer.type], bottoms)
        tops: list[Tensor | None] = [*(made or ()), *([None] * len(layer.tops))][: len(layer.tops)]
        blobs.update(zip(layer.tops, tops, strict=True))
        result.append([tensor.shape if tensor is not None else None for tensor in tops])
    return result, graph.assumed
