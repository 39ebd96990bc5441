"""What all of the plugin's layer types have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor

Counts = tuple[int, int | None]
"""The minimum, and the maximum (None: unlimited)."""


class FlowLayer:
    """The common base: a type declares how many blobs it reads and makes, and reads Caffe's own message.
    No gradient passes to a bottom whose propagate_down is false."""

    name: str
    bottoms: Counts = (1, 1)
    tops: Counts = (1, 1)
    loss_weight: float = 0.0
    parameters: Mapping[str, Any] = MappingProxyType({})

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations and return a tensor for each top. Raise ValueError for a wrong
        number of blobs or a wrong field."""
        _check_count("bottom", layer.bottoms, self.bottoms)
        _check_count("top", layer.tops, self.tops)
        _check_finite(layer.parameters)
        return self.expand(layer, layer.parameters, _reached(layer, bottoms, graph), graph)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        """Return the tops of a layer whose LayerParameter is ``message``."""
        raise NotImplementedError


def _check_count(what: str, names: Sequence[str], counts: Counts) -> None:
    least, most = counts
    if len(names) < least or (most is not None and len(names) > most):
        wanted = f"{least}" if least == most else f"{least} to {most}" if most else f"{least} or more"
        many = f"{len(names)} {what}{'s' * (len(names) != 1)}"
        raise ValueError(f"has {many} ({', '.join(names) or 'none'}), not {wanted}")


def _check_finite(message: Any) -> None:
    """Raise ValueError for a field of the type's own message that is not a finite number."""
    for field, value in message.ListFields():
        if field.message_type is None or field.name in ("blobs", "param", "include", "exclude"):
            continue
        for name, given in value.ListFields():
            numbers = [given] if isinstance(given, float) else given
            for each in numbers if name.cpp_type == name.CPPTYPE_FLOAT else ():
                if not math.isfinite(each):
                    raise ValueError(f"{field.name} {{ {name.name}: {each} }} is not a finite number")


def _reached(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    """Return the bottoms, with a stop_gradient after each whose propagate_down is false."""
    wanted = layer.parameters.propagate_down
    if len(wanted) not in (0, len(bottoms)):
        raise ValueError(
            f"has {len(wanted)} propagate_down for {len(bottoms)} bottoms; give none, or one each"
        )
    reached = list(bottoms)
    for position, passes in enumerate(wanted if graph.phase == "train" else ()):
        if not passes and bottoms[position].kind in ("activation", "parameter"):
            reached[position] = graph.apply("stop_gradient", bottoms[position])
    return reached


def decimal(value: float) -> float:
    """Return the shortest decimal that a 32-bit field stores as ``value``: 0.7, not 0.699999988."""
    return float(str(np.float32(value)))


def check_image(x: Tensor) -> None:
    """Raise ValueError for a tensor that is not samples x channels x rows x columns."""
    if len(x.shape) != 4:
        raise ValueError(f"its bottom is {x!r}, not samples x channels x rows x columns")


def resampled(
    layer: Layer, graph: GraphBuilder, x: Tensor, axis: int, weights: np.ndarray, what: str = ""
) -> Tensor:
    """Return x resampled along an axis: each place of the result is the sum of x's places times a row of
    ``weights`` (new places x old places). Raise ValueError if the plugin that defines the operation is
    not composed."""
    if np.array_equal(weights, np.eye(x.shape[axis])):
        return x
    known = getattr(graph, "vocabulary", None)
    if known is not None and "resample" not in known:
        raise ValueError(
            "needs the operation 'resample', which no composed plugin defines; 'onnx' brings it"
        )
    most = max(1, int(np.count_nonzero(weights, axis=1).max()))
    places = np.argsort(weights == 0, axis=1, kind="stable")[:, :most]  # places with a weight come first
    tables = {"places": places, "weights": np.take_along_axis(weights, places, 1)}
    constants = (
        graph.constant(f"{layer.name}.{name}{axis}{what}", table) for name, table in tables.items()
    )
    made: Tensor = graph.apply("resample", x, *constants, axis=axis)
    return made
