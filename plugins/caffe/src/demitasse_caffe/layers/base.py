"""What all of Caffe's layer types have in common: counts of blobs, learned parameters, axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import filler, fillers_beside
from demitasse_caffe.schema import LARGEST_BLOB, MOST_AXES, is_repeated, number

_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_BOUNDED = ("clip_param", "threshold_param")
_WHOLE = {"float32": (1 << 24) + 1, "float64": (1 << 53) + 1}
"""How many consecutive integers, starting at 0, each element type can represent."""

Shape = tuple[int, ...]
Counts = tuple[int, int | None]
"""The minimum, and the maximum (None: unlimited)."""


class CaffeLayer:
    """One of Caffe's layer types.

    A type declares its name and how many blobs it reads and makes; ``expand`` emits its operations. A
    ValueError gains file, line and layer where the graph is built.
    """

    name: str
    bottoms: Counts = (1, 1)
    tops: Counts = (1, 1)
    loss_weight: float = 0.0
    no_gradient: Mapping[int, str] = MappingProxyType({})
    """The bottoms that no gradient reaches: what they are, by position. Example: ``{1: "labels"}``."""
    parameters: Mapping[str, Any] = MappingProxyType({})
    """Empty, because a Caffe type reads Caffe's own message."""

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations and return a tensor for each top."""
        _check_count("bottom", layer.bottoms, self.bottoms)
        _check_count("top", layer.tops, self.tops)
        self._check_loss_weights(layer)
        check_numbers(layer.parameters)
        message = fillers_beside(layer.parameters, layer.location.file)
        tops = self.expand(layer, message, self._reached(layer, bottoms, graph), graph)
        for position, tensor in enumerate(tops):
            named = position < len(layer.tops)
            check_size(f"top {layer.tops[position]!r}" if named else f"top {position}", tensor.shape)
        return tops

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        """Emit the operations of a layer whose LayerParameter is ``message``."""
        raise NotImplementedError

    def _check_loss_weights(self, layer: Layer) -> None:
        """Raise ValueError unless there is one weight for each top. A loss has a top even if the file
        names none."""
        weights = len(layer.loss_weights)
        tops = len(layer.tops) or bool(self.loss_weight)
        if weights not in (0, tops):
            raise ValueError(f"has {weights} loss_weight for {tops:d} tops; give none, or one for each")

    def _reached(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Return the bottoms, with a stop_gradient after each whose propagate_down is false.

        Raise ValueError if propagate_down does not cover every bottom, or wants a gradient where none
        exists.
        """
        wanted = layer.parameters.propagate_down
        if len(wanted) not in (0, len(bottoms)):
            raise ValueError(
                f"has {len(wanted)} propagate_down for {len(bottoms)} bottoms; give none, or one each"
            )
        reached = list(bottoms)
        for position, passes in enumerate(wanted if graph.phase == "train" else ()):
            what = self.no_gradient.get(position)
            if passes and what:
                raise ValueError(
                    f"propagate_down: true for bottom {layer.bottoms[position]!r}, but no gradient "
                    f"reaches its {what}; write false there"
                )
            if not (passes or what) and bottoms[position].kind in ("activation", "parameter"):
                reached[position] = graph.apply("stop_gradient", bottoms[position])
        return reached


def learned(graph: GraphBuilder, message: Any, index: int, shape: Shape, fill: Any) -> Tensor:
    """Return parameter ``index`` of a layer, filled according to the FillerParameter ``fill``. Its
    multipliers and its shared name are those of the layer's param number ``index``."""
    rate, decay, shared, permissive = 1.0, 1.0, None, False
    check_size(f"parameter {index}", shape)
    if index < len(message.param):
        spec = message.param[index]
        rate, decay, shared = number(spec.lr_mult), number(spec.decay_mult), spec.name or None
        permissive = spec.share_mode == spec.PERMISSIVE
    given: dict[str, Any] = {"rate": rate, "decay": decay, "shared": shared, "permissive": permissive}
    return graph.parameter(shape, filler(fill, shape), **given)


def check_size(what: str, shape: Shape) -> None:
    """Raise ValueError if a shape has more elements or axes than a blob can have, in Caffe and here.
    Such a shape is always a mistake."""
    if len(shape) > MOST_AXES:
        raise ValueError(f"{what} would have {len(shape):,} axes; at most {MOST_AXES}")
    count = math.prod(shape)
    if count > LARGEST_BLOB:
        extents = " x ".join(map(str, shape))
        raise ValueError(f"{what} would have {extents} = {count:,} elements; at most {LARGEST_BLOB:,}")


def check_whole(what: str, count: int, numbers: Tensor) -> None:
    """Raise ValueError if a blob of floating-point numbers cannot distinguish ``count`` things: above
    some number it has no odd integers, and each of them would be taken for its neighbour."""
    most = _WHOLE.get(numbers.dtype, count)
    if count > most:
        raise ValueError(
            f"{what} is {count:,}, but blobs of {numbers.dtype} tell {most:,} whole numbers apart; plan "
            f"the net with precision f64"
        )


def check_numbers(message: Any, within: str = "") -> None:
    """Raise ValueError if a layer has a field that is NaN, or infinite although it is not a bound."""
    for field, value in message.ListFields():
        if field.name == "blobs":  # trained numbers, which are checked when they are loaded
            continue
        values = list(value) if is_repeated(field) else [value]
        if field.message_type is not None:
            for each in values:
                check_numbers(each, field.name)
        for each in values if field.cpp_type in _FLOATS else ():
            if math.isnan(each) or (math.isinf(each) and within not in _BOUNDED):
                told = f"{within} {{ {field.name}: {each} }}" if within else f"{field.name}: {each}"
                raise ValueError(f"{told} is not a finite number")


def in_training(message: Any, graph: GraphBuilder) -> bool:
    """Return whether the layer is in training: by its own phase if it has one, else by the net's."""
    return bool(message.phase == 0) if message.HasField("phase") else graph.phase == "train"


def rearranged(graph: GraphBuilder, word: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
    """Emit an operation that another plugin defines, usually onnx, and return its first output. Raise
    ValueError if that plugin is not composed."""
    known = getattr(graph, "vocabulary", None)
    if known is not None and word not in known:
        plugin = "optical_flow" if word == "lpq_loss" else "onnx"
        raise ValueError(
            f"needs the operation {word!r}, which no composed plugin defines; {plugin!r} brings it"
        )
    made = graph.apply(word, *inputs, **attributes)
    first: Tensor = made[0] if isinstance(made, tuple) else made
    return first


def canonical(axis: int, tensor: Tensor) -> int:
    """Return an axis counted from the front. Raise ValueError if the tensor has no such axis."""
    axes = len(tensor.shape)
    if not -axes <= axis < axes:
        raise ValueError(f"axis {axis} is not one of the {axes} axes of {tensor!r}")
    return axis % axes


def _check_count(what: str, names: Sequence[str], counts: Counts) -> None:
    least, most = counts
    if len(names) < least or (most is not None and len(names) > most):
        if most is None:
            wanted = f"{least} or more"
        else:
            wanted = f"{least}" if least == most else f"{least} to {most}"
        many = f"{len(names)} {what}{'s' * (len(names) != 1)}"
        raise ValueError(f"has {many} ({', '.join(names) or 'none'}), not {wanted}")
