"""Elements that are taken from, or put at, constant indices, and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Operands, Operator
from demitasse_onnx.constants import bounded, made_of
from demitasse_onnx.operators.resampling import resampled, taken


def _moved(given: Operands) -> Sequence[Tensor]:
    """The operator is evaluated on the indices of the elements, which shows which element each result
    is. The elements of the updates (input 2) are numbered after those of the input."""
    sources = [given.tensor(position) for position in (0, 2) if given.has(position)]
    first, numbered = 0, []
    for source in sources:
        size = math.prod(source.shape)
        bounded(first + size, "table of places")
        numbered.append(np.arange(first, first + size).reshape(source.shape))
        first += size
    index = given.constant(1)
    if index is None or index.dtype.kind not in "iu":
        raise ValueError("its indices (input 1) are not whole numbers")
    (places,) = made_of(given.call.operator, [numbered[0], index, *numbered[1:]], given.call.attributes)
    if not places.size:
        raise ValueError("takes nothing, but no blob may be empty")
    flat = [given.apply("reshape", each, shape=(math.prod(each.shape),)) for each in sources]
    whole = given.apply("concat", *flat, axis=0) if len(flat) > 1 else flat[0]
    y = taken(given, whole, 0, places.reshape(-1))
    return [given.apply("reshape", y, shape=places.shape)]


def _running_sums(given: Operands) -> Sequence[Tensor]:
    """Cumulative sums; exclusive: without the element itself; reverse: from the end."""
    x, axis = given.tensor(), given.constant(1)
    if axis is None or axis.size != 1 or not -len(x.shape) <= int(axis.reshape(())) < len(x.shape):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    along = int(axis.reshape(())) % len(x.shape)
    extent = x.shape[along]
    bounded(extent * extent, "table of places")
    weights = np.tril(np.ones((extent, extent)), -1 if given["exclusive"] else 0)
    places = np.broadcast_to(np.arange(extent), weights.shape)
    return [resampled(given, x, along, (places, weights.T if given["reverse"] else weights))]


OPERATORS = (
    Operator("CumSum", _running_sums, {"exclusive": 0, "reverse": 0}),
    Operator("GatherElements", _moved, {"axis": 0}),
    Operator("GatherND", _moved, {"batch_dims": 0}),
    Operator("Scatter", _moved, {"axis": 0}),
    Operator("ScatterElements", _moved, {"axis": 0, "reduction": "none"}),
    Operator("ScatterND", _moved, {"reduction": "none"}),
)
