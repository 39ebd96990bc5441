"""Sums, products and maxima of several operands: blobs of the same shape, or a blob and an operand that
is broadcast along some of its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Expand, Operands, Operator, Shape, Value
from demitasse_onnx.kinds import WHOLE
from demitasse_onnx.operators.rounding import sign, stepped
from demitasse_onnx.operators.shape import repeated


def core_of(shape: Shape, of: Shape) -> tuple[int, Shape]:
    """Locate a shape that is broadcast along the other axes of ``of``: return the first axis of its
    extents, and the extents. Raise ValueError if it cannot be broadcast."""
    if len(shape) > len(of):
        raise ValueError(f"{shape} has more axes than {of}")
    full = (1,) * (len(of) - len(shape)) + tuple(shape)
    if any(small not in (1, large) for small, large in zip(full, of, strict=True)):
        raise ValueError(f"{shape} cannot be repeated to make {of}")
    long = [axis for axis, extent in enumerate(full) if extent > 1]
    if not long:
        axis = max(0, min(1, len(of) - 1))
        return axis, full[axis : axis + 1]
    return long[0], full[long[0] : long[-1] + 1]


def _along(
    given: Operands, x: Tensor, other: Tensor | np.ndarray | np.number[Any], name: str
) -> tuple[int, Tensor]:
    """Return the smaller operand as a tensor along some axes of x, preceded by the
    first of these axes."""
    if isinstance(other, np.number):  # NumPy's arithmetic turns arrays without axes into these
        other = np.asarray(other)
    if isinstance(other, np.ndarray) and other.dtype.kind not in "fiu":
        raise ValueError(f"an operand has elements of {other.dtype.name}, not numbers")
    axis, core = core_of(tuple(other.shape), x.shape)
    wanted = x.shape[axis : axis + len(core)]
    if isinstance(other, np.ndarray):
        return axis, given.fixed(name, np.broadcast_to(other.reshape(core).astype(np.float64), wanted))
    if core != wanted:
        raise ValueError(f"{other!r} cannot be repeated along axes between its own to fit {x!r}")
    return axis, other if other.shape == core else given.apply("reshape", other, shape=core)


def ordered(given: Operands) -> tuple[Tensor, Tensor | np.ndarray, bool]:
    """Return the operand that has the result's shape, the other one, and whether the two are swapped."""
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
    """Return both, broadcast to their common shape."""
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError as error:
        raise ValueError(f"{x!r} and {y!r} cannot be repeated to one shape") from error
    return repeated(given, x, shape), repeated(given, y, shape)


def _filled(given: Operands, x: Tensor, other: np.ndarray) -> Tensor:
    """Return x, broadcast if a constant has more elements."""
    shape = np.broadcast_shapes(x.shape, other.shape)
    return repeated(given, x, shape)


def _lies_along(other: Tensor, x: Tensor) -> bool:
    """Return whether ``other`` lies along adjacent axes of x, so that it is broadcast only before or
    after them."""
    try:
        axis, core = core_of(other.shape, x.shape)
    except ValueError:
        return False
    return core == x.shape[axis : axis + len(core)]


def added(given: Operands) -> Sequence[Tensor]:
    x, other, _ = ordered(given)
    if isinstance(other, Tensor):
        if not _lies_along(other, x):
            x, other = _alike(given, x, other)
        if other.shape == x.shape:
            return [given.apply("sum", x, other)]
    axis, b = _along(given, x, other, "addend")
    return [given.apply("scale", x, given.fixed("one", np.ones(b.shape)), b, axis=axis)]


def subtracted(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = ordered(given)
    if isinstance(other, Tensor):
        x, other = _alike(given, x, other)
        return [given.apply("sum", x, other, coefficients=(-1.0, 1.0) if swapped else (1.0, -1.0))]
    axis, b = _along(given, x, other if swapped else np.negative(other, dtype=np.float64), "addend")
    factor = given.fixed("sign", np.full(b.shape, -1.0 if swapped else 1.0))
    return [given.apply("scale", x, factor, b, axis=axis)]


def multiplied(given: Operands) -> Sequence[Tensor]:
    x, other, _ = ordered(given)
    if isinstance(other, Tensor):
        if not _lies_along(other, x):
            x, other = _alike(given, x, other)
        if other.shape == x.shape:
            return [given.apply("product", x, other)]
    axis, w = _along(given, x, other, "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _divide(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = ordered(given)
    if given.kind() == WHOLE:
        return [_whole_quotient(given)]
    if isinstance(other, Tensor):
        over, under = (other, x) if swapped else (x, other)
        return multiplied(replace(given, values=[over, given.apply("power", under, power=-1.0)]))
    if swapped:
        return multiplied(replace(given, values=[given.apply("power", x, power=-1.0), other]))
    if not (np.abs(other) > 0).all():
        raise ValueError("divides by 0")
    axis, w = _along(given, x, np.divide(1.0, other, dtype=np.float64), "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _whole_quotient(given: Operands) -> Tensor:
    """Divide integers without remainder, rounding towards 0. Adding one half to the dividend prevents an
    exact quotient from being rounded to just below itself."""
    under = given.values[1]
    if isinstance(under, np.ndarray) and not under.all():
        raise ValueError("divides by 0")
    x = given.apply("power", given.apply("absolute", given.tensor(0)), shift=0.5)
    y: Value
    way: Value
    if isinstance(under, np.ndarray):
        y = np.asarray(np.divide(1.0, np.abs(under), dtype=np.float64))
        way = np.asarray(np.sign(under.astype(np.float64)))
    else:
        y = given.apply("power", given.apply("absolute", given.tensor(1)), power=-1.0)
        way = sign(given, given.tensor(1))
    size = stepped(given, "floor", multiplied(replace(given, values=[x, y]))[0])
    made = multiplied(replace(given, values=[size, sign(given, given.tensor(0))]))[0]
    return multiplied(replace(given, values=[made, way]))[0]


def _modulo(given: Operands) -> Sequence[Tensor]:
    """Return the remainder of integers. With fmod it has the sign of the first operand, otherwise it is
    0 or more."""
    x, under = given.tensor(), given.values[1] if len(given.values) == 2 else None
    if given.kind() != WHOLE or not isinstance(under, np.ndarray) or not (under > 0).all():
        raise ValueError("is supported only for whole numbers, by constants above 0")
    if given["fmod"]:
        times = _whole_quotient(given)
    else:
        y = np.asarray(np.divide(1.0, under, dtype=np.float64))
        more = replace(given, values=[given.apply("power", x, shift=0.5), y])
        times = stepped(given, "floor", multiplied(more)[0])
    whole = multiplied(replace(given, values=[times, under]))[0]
    return subtracted(replace(given, values=[x, whole]))


def _sum(given: Operands) -> Sequence[Tensor]:
    made: Sequence[Tensor] = [given.tensor()]
    for value in given.values[1:]:
        made = added(replace(given, values=[made[0], value]))
    return made


def _mean(given: Operands) -> Sequence[Tensor]:
    return [given.apply("power", _sum(given)[0], scale=1 / len(given.values))]


def _extreme(sign: float) -> Any:
    """Return the operator of maxima, or of minima for a negative sign, as negated maxima of the negated
    operands. The extreme of a blob and a single number is a limit."""

    def expand(given: Operands) -> Sequence[Tensor]:
        made: Tensor | np.ndarray | None = given.values[0]
        for value in given.values[1:]:
            made = larger(given, made, value, sign)
        if not isinstance(made, Tensor):
            raise ValueError("its inputs are constants")
        return [made]

    return expand


def larger(given: Operands, first: Any, second: Any, sign: float) -> Tensor:
    x, other, _ = ordered(replace(given, values=[first, second]))
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


BROADCAST: Mapping[str, Any] = {"axis": None, "broadcast": 0}
"""Attributes of binary operators before version 7."""


def aligned(expand: Expand) -> Expand:
    """Return a binary operator whose second operand, before version 7, has the extents of the first
    operand's axes from ``axis`` on, or of its last axes."""

    def moved(given: Operands) -> Sequence[Tensor | np.ndarray]:
        said = [name for name in BROADCAST if name in given.call.attributes]
        if said and given.call.opset >= 7:
            raise ValueError(
                f"attribute {said[0]} belongs to versions before 7, not to {given.call.opset}"
            )
        if given["axis"] is None or given["axis"] < 0 or len(given.values) != 2:
            return expand(given)
        first, second = given.values
        if first is None or second is None:
            return expand(given)
        behind = len(first.shape) - given["axis"] - len(second.shape)
        if behind < 0:
            raise ValueError(
                f"axis {given['axis']}: an operand of shape {tuple(second.shape)} does not fit there in "
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


def _affine(given: Operands) -> Sequence[Tensor]:
    return [given.apply("power", given.tensor(), scale=given["alpha"], shift=given["beta"])]


def _image_scaler(given: Operands) -> Sequence[Tensor]:
    """scale * x + the bias of each channel."""
    x, bias = given.tensor(), given["bias"]
    if len(x.shape) != 4 or len(bias) != x.shape[1]:
        raise ValueError(f"bias {bias}: give one number for each channel of {x!r}")
    w, b = np.full(len(bias), given["scale"]), np.array(bias)
    return [given.apply("scale", x, given.fixed("factor", w), given.fixed("bias", b), axis=1)]


OPERATORS = (
    Operator("Affine", _affine, {"alpha": 1.0, "beta": 0.0}),
    Operator("Add", aligned(added), BROADCAST),
    Operator("Sub", aligned(subtracted), BROADCAST),
    Operator("Mul", aligned(multiplied), BROADCAST),
    Operator("Div", aligned(_divide), BROADCAST),
    Operator("ImageScaler", _image_scaler, {"bias": None, "scale": 1.0}),
    Operator("Mod", _modulo, {"fmod": 0}),
    Operator("Sum", _sum),
    Operator("Mean", _mean),
    Operator("Max", _extreme(1)),
    Operator("Min", _extreme(-1)),
)
