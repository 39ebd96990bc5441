"""Conditions, which are numbers 0 and 1 that pass no gradient, and selection by conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Expand, Operands, Operator
from demitasse_onnx.constants import bounded
from demitasse_onnx.operators.arithmetic import (
    BROADCAST,
    aligned,
    larger,
    multiplied,
    ordered,
    subtracted,
)
from demitasse_onnx.operators.rounding import stepped
from demitasse_onnx.operators.shape import repeated


def _above(sign: float, negated: bool) -> Expand:
    """Return the operator that is 1 where the first operand is above the second (below it if
    ``sign`` is negative), else 0. With ``negated`` it is the opposite, which expresses "or equal".
    No gradient passes."""

    def expand(given: Operands) -> Sequence[Tensor]:
        x, other, swapped = ordered(given)
        way = -sign if swapped else sign
        if isinstance(other, np.ndarray) and other.size == 1:
            limit = way * float(other.reshape(-1)[0])
            signed = x if way > 0 else given.apply("power", x, scale=-1.0)
        else:
            pair = subtracted(given)[0]
            limit, signed = 0.0, pair if sign > 0 else given.apply("power", pair, scale=-1.0)
        made = stepped(given, "greater", signed, threshold=limit)
        return [_opposite(given, made) if negated else made]

    return expand


def _opposite(given: Operands, x: Tensor) -> Tensor:
    made: Tensor = given.apply("power", x, scale=-1.0, shift=1.0)
    return made


def _numbers(given: Operands) -> Operands:
    """Return the operands with constant conditions converted to numbers."""
    values = [
        value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "b" else value
        for value in given.values
    ]
    return replace(given, values=values)


def _differs(given: Operands) -> Tensor:
    apart = given.apply("absolute", subtracted(_numbers(given))[0])
    return stepped(given, "greater", apart)


def _equal(given: Operands) -> Sequence[Tensor]:
    return [_opposite(given, _differs(given))]


def _xor(given: Operands) -> Sequence[Tensor]:
    return [_differs(given)]


def _and(given: Operands) -> Sequence[Tensor]:
    return multiplied(_numbers(given))


def _or(given: Operands) -> Sequence[Tensor]:
    told = _numbers(given)
    ordered(told)  # checks that there are two
    return [larger(told, told.values[0], told.values[1], 1)]


def _not(given: Operands) -> Sequence[Tensor]:
    return [_opposite(given, given.tensor())]


def _where(given: Operands) -> Sequence[Tensor]:
    """Select the second operand where a condition is not 0, and the third where it is, broadcast to one
    shape. The value that is not selected may be infinite."""
    named = dict(zip(("condition", "chosen", "otherwise"), given.values, strict=False))
    present = {name: value for name, value in named.items() if value is not None}
    if len(present) != 3 or len(given.values) != 3:
        raise ValueError(f"has {len(present)} inputs, not 3")
    shapes = [tuple(value.shape) for value in present.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        told = ", ".join(map(str, shapes))
        raise ValueError(f"inputs of shapes {told} cannot be repeated to one shape") from error
    parts = []
    for name, value in present.items():
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "bfiu":
                raise ValueError(f"its {name} has elements of {value.dtype.name}, not numbers")
            value = given.fixed(name, value.astype(np.float64))
        parts.append(repeated(given, value, shape))
    return [given.apply("select", *parts)]


def _triangle(given: Operands) -> Sequence[Tensor]:
    """Keep what lies above a diagonal of the last two axes, or below it; set the rest to zero."""
    x, shift = given.tensor(), given.constant(1)
    if len(x.shape) < 2 or (shift is not None and shift.size != 1):
        raise ValueError(f"takes the triangle of matrices, by one number; its input is {x!r}")
    diagonal = 0 if shift is None else int(shift.reshape(()))
    part = (np.triu if given["upper"] else np.tril)(np.ones(x.shape[-2:]), diagonal)
    kept, zeros = (
        repeated(given, given.fixed(name, value), x.shape)
        for name, value in (("kept", part), ("zero", np.zeros(part.shape)))
    )
    return [given.apply("select", kept, x, zeros)]


def _one_hot(given: Operands) -> Sequence[Tensor]:
    """Add an axis on which the place that an element names differs from all others. Places below 0 count
    from the end."""
    x, depth, values = given.tensor(), given.constant(1), given.constant(2)
    axes = len(x.shape) + 1
    if depth is None or depth.size != 1 or values is None or values.size != 2:
        raise ValueError("needs one number as its depth, and two values")
    if not -axes <= given["axis"] < axes:
        raise ValueError(f"axis {given['axis']} is not one of the result's {axes} axes")
    axis, extent = given["axis"] % axes, int(depth.reshape(()))
    bounded(max(0, extent) * math.prod(x.shape), "blob of places")
    if extent < 1:
        raise ValueError(f"has a depth of {extent}; no blob may be empty")
    x = given.apply("reshape", x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))
    places = np.arange(extent).reshape(-1, *(1,) * (axes - 1 - axis))
    here, from_end = (
        _equal(replace(given, values=[x, named]))[0] for named in (places, places - extent)
    )
    off, on = (float(each) for each in values.reshape(-1))
    hot = given.apply("sum", here, from_end)
    return [given.apply("power", hot, scale=on - off, shift=off)]


OPERATORS = (
    Operator("And", aligned(_and), BROADCAST),
    Operator("Equal", aligned(_equal), BROADCAST),
    Operator("Greater", aligned(_above(1, False)), BROADCAST),
    Operator("GreaterOrEqual", _above(-1, True)),
    Operator("Less", aligned(_above(-1, False)), BROADCAST),
    Operator("LessOrEqual", _above(1, True)),
    Operator("Not", _not),
    Operator("OneHot", _one_hot, {"axis": -1}),
    Operator("Or", aligned(_or), BROADCAST),
    Operator("Trilu", _triangle, {"upper": 1}),
    Operator("Where", _where),
    Operator("Xor", aligned(_xor), BROADCAST),
)
