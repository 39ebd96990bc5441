"""Sums, products and the largest of several: of blobs of one shape, or of a blob and what is repeated
along some of its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Expand, Operands, Operator, Shape
from demitasse_onnx.operators.shape import repeated


def _core(shape: Shape, of: Shape) -> tuple[int, Shape]:
    """Where in ``of`` a shape that is repeated along the other axes has its extents: the first axis,
    and them. Raises ValueError where it does not fit."""
    if len(shape) > len(of):
        raise ValueError(f"{shape} has more axes than {of}")
    full = (1,) * (len(of) - len(shape)) + tuple(shape)
    if any(small not in (1, large) for small, large in zip(full, of, strict=True)):
        raise ValueError(f"{shape} cannot be repeated to make {of}")
    long = [axis for axis, extent in enumerate(full) if extent > 1]
    if not long:
        axis = min(1, len(of) - 1)
        return axis, full[axis : axis + 1]
    return long[0], full[long[0] : long[-1] + 1]


def _along(
    given: Operands, x: Tensor, other: Tensor | np.ndarray | np.number[Any], name: str
) -> tuple[int, Tensor]:
    """The smaller operand as a tensor that lies along axes of x, and the first of them."""
    if isinstance(other, np.number):  # what NumPy makes of arithmetic on an array without axes
        other = np.asarray(other)
    if isinstance(other, np.ndarray) and other.dtype.kind not in "fiu":
        raise ValueError(f"an operand is of {other.dtype.name}, not of numbers")
    axis, core = _core(tuple(other.shape), x.shape)
    wanted = x.shape[axis : axis + len(core)]
    if isinstance(other, np.ndarray):
        return axis, given.fixed(name, np.broadcast_to(other.reshape(core).astype(np.float64), wanted))
    if core != wanted:
        raise ValueError(f"{other!r} cannot be repeated along axes between its own to fit {x!r}")
    return axis, other if other.shape == core else given.apply("reshape", other, shape=core)


def _ordered(given: Operands) -> tuple[Tensor, Tensor | np.ndarray, bool]:
    """The operand that has the result's shape, the other one, and whether they change places."""
    first, second = (
        given.values[position] if position < len(given.values) else None for position in (0, 1)
    )
    if first is None or second is None or len(given.values) > 2:
        raise ValueError(f"has {len(given.values)} inputs, not 2")
    if isinstance(first, Tensor) and isinstance(second, np.ndarray):
        return _filled(given, first, second), second, False
    if isinstance(second, Tensor) and isinstance(first, np.ndarray):
        return _filled(given, second, first), first, True
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        swapped = math.prod(second.shape) > math.prod(first.shape)
        return (second, first, True) if swapped else (first, second, False)
    raise ValueError("both inputs are constants")


def _alike(given: Operands, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both repeated to the one shape that they make."""
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError as error:
        raise ValueError(f"{x!r} and {y!r} cannot be repeated to one shape") from error
    return repeated(given, x, shape), repeated(given, y, shape)


def _filled(given: Operands, x: Tensor, other: np.ndarray) -> Tensor:
    """x repeated where a constant has more elements."""
    shape = np.broadcast_shapes(x.shape, other.shape)
    return repeated(given, x, shape)


def _lies_along(other: Tensor, x: Tensor) -> bool:
    """Whether other needs to be repeated before or behind some neighbouring axes of x only."""
    try:
        axis, core = _core(other.shape, x.shape)
    except ValueError:
        return False
    return core == x.shape[axis : axis + len(core)]


def _add(given: Operands) -> Sequence[Tensor]:
    x, other, _ = _ordered(given)
    if isinstance(other, Tensor):
        if not _lies_along(other, x):
            x, other = _alike(given, x, other)
        if other.shape == x.shape:
            return [given.apply("sum", x, other)]
    axis, b = _along(given, x, other, "addend")
    return [given.apply("scale", x, given.fixed("one", np.ones(b.shape)), b, axis=axis)]


def _subtract(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = _ordered(given)
    if isinstance(other, Tensor):
        x, other = _alike(given, x, other)
        return [given.apply("sum", x, other, coefficients=(-1.0, 1.0) if swapped else (1.0, -1.0))]
    axis, b = _along(given, x, other if swapped else np.negative(other, dtype=np.float64), "addend")
    factor = given.fixed("sign", np.full(b.shape, -1.0 if swapped else 1.0))
    return [given.apply("scale", x, factor, b, axis=axis)]


def _multiply(given: Operands) -> Sequence[Tensor]:
    x, other, _ = _ordered(given)
    if isinstance(other, Tensor):
        if not _lies_along(other, x):
            x, other = _alike(given, x, other)
        if other.shape == x.shape:
            return [given.apply("product", x, other)]
    axis, w = _along(given, x, other, "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _divide(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = _ordered(given)
    if isinstance(other, Tensor):
        over, under = (other, x) if swapped else (x, other)
        return _multiply(replace(given, values=[over, given.apply("power", under, power=-1.0)]))
    if swapped:
        return _multiply(replace(given, values=[given.apply("power", x, power=-1.0), other]))
    if other.dtype.kind != "f" or not (np.abs(other) > 0).all():
        raise ValueError("divides by 0, or by whole numbers")
    axis, w = _along(given, x, np.divide(1.0, other, dtype=np.float64), "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _sum(given: Operands) -> Sequence[Tensor]:
    made: Sequence[Tensor] = [given.tensor()]
    for value in given.values[1:]:
        made = _add(replace(given, values=[made[0], value]))
    return made


def _mean(given: Operands) -> Sequence[Tensor]:
    return [given.apply("power", _sum(given)[0], scale=1 / len(given.values))]


def _extreme(sign: float) -> Any:
    """The largest, or the negative of the largest of negatives. Of one number and a blob a limit."""

    def expand(given: Operands) -> Sequence[Tensor]:
        made: Tensor | np.ndarray | None = given.values[0]
        for value in given.values[1:]:
            made = _larger(given, made, value, sign)
        if not isinstance(made, Tensor):
            raise ValueError("its inputs are constants")
        return [made]

    return expand


def _larger(given: Operands, first: Any, second: Any, sign: float) -> Tensor:
    x, other, _ = _ordered(replace(given, values=[first, second]))
    if not isinstance(other, Tensor):
        if other.size == 1:
            limit = float(other.reshape(-1)[0])
            least, most = (limit, np.inf) if sign > 0 else (-np.inf, limit)
            made: Tensor = given.apply("clip", x, least=least, most=most)
            return made
        other = given.fixed("limit", other)
    pair = _alike(given, x, other)
    signed = pair if sign > 0 else [given.apply("power", each, scale=-1.0) for each in pair]
    made = given.apply("maximum", *signed)[0]
    return made if sign > 0 else given.apply("power", made, scale=-1.0)


def _above(sign: float, negated: bool) -> Any:
    """1 where the first of two is above the second (below it, for a ``sign`` below 0), else 0; or, for
    or equal, the opposite of the opposite. No gradient passes."""

    def expand(given: Operands) -> Sequence[Tensor]:
        x, other, swapped = _ordered(given)
        way = -sign if swapped else sign
        if isinstance(other, np.ndarray) and other.size == 1:
            limit = way * float(other.reshape(-1)[0])
            signed = x if way > 0 else given.apply("power", x, scale=-1.0)
        else:
            pair = _subtract(given)[0]
            limit, signed = 0.0, pair if sign > 0 else given.apply("power", pair, scale=-1.0)
        made = given.apply("greater", signed, threshold=limit)
        return [given.apply("power", made, scale=-1.0, shift=1.0) if negated else made]

    return expand


def _where(given: Operands) -> Sequence[Tensor]:
    """One of two where a condition is not 0, the other where it is, repeated to one shape. The one that
    is not chosen may be infinite."""
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
                raise ValueError(f"its {name} is of {value.dtype.name}, not of numbers")
            value = given.fixed(name, value.astype(np.float64))
        parts.append(repeated(given, value, shape))
    return [given.apply("select", *parts)]


BROADCAST: Mapping[str, Any] = {"axis": None, "broadcast": 0}
"""Attributes of operators of two before version 7."""


def aligned(expand: Expand) -> Expand:
    """An operator of two, whose second operand has, before version 7, the extents of the first's axes
    from ``axis`` on, or of its last ones."""

    def moved(given: Operands) -> Sequence[Tensor | np.ndarray]:
        said = [name for name in BROADCAST if name in given.call.attributes]
        if said and given.call.opset >= 7:
            raise ValueError(f"attribute {said[0]} is of versions before 7, not of {given.call.opset}")
        if given["axis"] is None or given["axis"] < 0 or len(given.values) != 2:
            return expand(given)
        first, second = given.values
        if first is None or second is None:
            return expand(given)
        behind = len(first.shape) - given["axis"] - len(second.shape)
        if behind < 0:
            raise ValueError(
                f"axis {given['axis']}: an operand of shape {tuple(second.shape)} has no place there in "
                f"{tuple(first.shape)}"
            )
        shape = (*second.shape, *(1,) * behind)
        there = (
            given.apply("reshape", second, shape=shape)
            if isinstance(second, Tensor)
            else second.reshape(shape)
        )
        return expand(replace(given, values=[first, there]))

    return moved


OPERATORS = (
    Operator("Greater", aligned(_above(1, False)), BROADCAST),
    Operator("GreaterOrEqual", _above(-1, True)),
    Operator("Less", aligned(_above(-1, False)), BROADCAST),
    Operator("LessOrEqual", _above(1, True)),
    Operator("Where", _where),
    Operator("Add", aligned(_add), BROADCAST),
    Operator("Sub", aligned(_subtract), BROADCAST),
    Operator("Mul", aligned(_multiply), BROADCAST),
    Operator("Div", aligned(_divide), BROADCAST),
    Operator("Sum", _sum),
    Operator("Mean", _mean),
    Operator("Max", _extreme(1)),
    Operator("Min", _extreme(-1)),
)
