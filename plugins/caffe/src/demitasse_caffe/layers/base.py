"""What all of Caffe's layer types share: counts of blobs, learned parameters, axes."""

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
"""From 0 on, how many whole numbers follow each other in an element type."""

Shape = tuple[int, ...]
Counts = tuple[int, int | None]
"""At least, and at most (None: any number)."""


class CaffeLayer:
    """A layer type of Caffe's.

    A type says its name and how many blobs it takes and makes, and ``expand`` emits its operations.
    A ValueError gains file, line and layer where the graph is built.
    """

    name: str
    bottoms: Counts = (1, 1)
    tops: Counts = (1, 1)
    loss_weight: float = 0.0
    no_gradient: Mapping[int, str] = MappingProxyType({})
    """Bottoms that no gradient reaches, by position, and what they are: ``{1: "labels"}``."""
    parameters: Mapping[str, Any] = MappingProxyType({})
    """Empty: a Caffe type reads Caffe's own message."""

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations; a tensor for each top."""
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
        """As many as tops; a loss has a top even where the file names none."""
        weights = len(layer.loss_weights)
        tops = len(layer.tops) or bool(self.loss_weight)
        if weights not in (0, tops):
            raise ValueError(f"has {weights} loss_weight for {tops:d} tops; give none, or one for each")

    def _reached(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """The bottoms, each behind a stop where propagate_down is false.

        Raises ValueError for a propagate_down that is not of every bottom, or that wants a gradient
        where there is none.
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
    """Parameter ``index`` of a layer, filled as the FillerParameter ``fill`` says, with the
    multipliers and the shared name of the layer's param number ``index``."""
    rate, decay, shared, permissive = 1.0, 1.0, None, False
    check_size(f"parameter {index}", shape)
    if index < len(message.param):
        spec = message.param[index]
        rate, decay, shared = number(spec.lr_mult), number(spec.decay_mult), spec.name or None
        permissive = spec.share_mode == spec.PERMISSIVE
    given: dict[str, Any] = {"rate": rate, "decay": decay, "shared": shared, "permissive": permissive}
    return graph.parameter(shape, filler(fill, shape), **given)


def check_size(what: str, shape: Shape) -> None:
    """Raise ValueError for more elements or axes than a blob may have, in Caffe and here: nobody means
    that."""
    if len(shape) > MOST_AXES:
        raise ValueError(f"{what} would have {len(shape):,} axes; at most {MOST_AXES}")
    count = math.prod(shape)
    if count > LARGEST_BLOB:
        extents = " x ".join(map(str, shape))
        raise ValueError(f"{what} would have {extents} = {count:,} elements; at most {LARGEST_BLOB:,}")


def check_whole(what: str, count: int, numbers: Tensor) -> None:
    """Raise ValueError where a blob of real numbers cannot tell ``count`` things apart: from some number
    on it has no odd ones, and each would be taken for its neighbour."""
    most = _WHOLE.get(numbers.dtype, count)
    if count > most:
        raise ValueError(
            f"{what} is {count:,}, but blobs of {numbers.dtype} tell {most:,} whole numbers apart; plan "
            f"the net with precision f64"
        )


def check_numbers(message: Any, within: str = "") -> None:
    """Raise ValueError for a field of a layer that is NaN, or infinite where it is no bound."""
    for field, value in message.ListFields():
        if field.name == "blobs":  # trained numbers, which are told where they are loaded
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
    """Whether the layer trains: its own phase where it has one, else the net's."""
    return bool(message.phase == 0) if message.HasField("phase") else graph.phase == "train"


def rearranged(graph: GraphBuilder, word: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
    """Emit a word that the plugin onnx brings, or another one. Raises ValueError where that is not
    composed."""
    known = getattr(graph, "vocabulary", None)
    if known is not None and word not in known:
        plugin = "optical_flow" if word == "lpq_loss" else "onnx"
        raise ValueError(
            f"needs the operation {word!r}, which no composed plugin defines; {plugin!r} brings it"
        )
    made: Tensor = graph.apply(word, *inputs, **attributes)
    return made


def canonical(axis: int, tensor: Tensor) -> int:
    """An axis counted from the front. Raises ValueError when the tensor has no such axis."""
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
        raise ValueError(f"has {len(names)} {what}s ({', '.join(names) or 'none'}), not {wanted}")
