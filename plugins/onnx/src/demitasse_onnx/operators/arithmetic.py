"""Sums, products and the largest of several: of blobs of one shape, or of a blob and what is repeated
along some of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Operands, Operator, Shape


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
    if isinstance(first, Tensor) and (
        not isinstance(second, Tensor) or np.broadcast_shapes(first.shape, second.shape) == first.shape
    ):
        return first, second, False
    if not isinstance(second, Tensor):
        raise ValueError("both inputs are constants")
    return second, first, True


def _add(given: Operands) -> Sequence[Tensor]:
    x, other, _ = _ordered(given)
    if isinstance(other, Tensor) and other.shape == x.shape:
        return [given.apply("sum", x, other)]
    axis, b = _along(given, x, other, "addend")
    return [given.apply("scale", x, given.fixed("one", np.ones(b.shape)), b, axis=axis)]


def _subtract(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = _ordered(given)
    if isinstance(other, Tensor):
        if other.shape != x.shape:
            raise ValueError(f"{x!r} less {other!r}: only blobs of one shape are supported")
        return [given.apply("sum", x, other, coefficients=(-1.0, 1.0) if swapped else (1.0, -1.0))]
    axis, b = _along(given, x, other if swapped else np.negative(other, dtype=np.float64), "addend")
    factor = given.fixed("sign", np.full(b.shape, -1.0 if swapped else 1.0))
    return [given.apply("scale", x, factor, b, axis=axis)]


def _multiply(given: Operands) -> Sequence[Tensor]:
    x, other, _ = _ordered(given)
    if isinstance(other, Tensor) and other.shape == x.shape:
        return [given.apply("product", x, other)]
    axis, w = _along(given, x, other, "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _divide(given: Operands) -> Sequence[Tensor]:
    x, other, swapped = _ordered(given)
    if isinstance(other, Tensor):
        over, under = (other, x) if swapped else (x, other)
        if other.shape != x.shape:
            raise ValueError(f"{over!r} over {under!r}: only blobs of one shape are supported")
        return [given.apply("product", over, given.apply("power", under, power=-1.0))]
    if swapped:
        raise ValueError("constants over a blob are not supported")
    if other.dtype.kind != "f" or not (np.abs(other) > 0).all():
        raise ValueError("divides by 0, or by whole numbers")
    axis, w = _along(given, x, np.divide(1.0, other, dtype=np.float64), "factor")
    return [given.apply("scale", x, w, None, axis=axis)]


def _several(word: str) -> Any:
    def expand(given: Operands) -> Sequence[Tensor]:
        if len(given.values) == 2 and word == "sum":
            return _add(given)
        xs = [given.tensor(position) for position in range(len(given.values))]
        if len(xs) == 1:
            return xs
        made = given.apply(word, *xs)
        return [made[0] if isinstance(made, tuple) else made]

    return expand


OPERATORS = (
    Operator("Add", _add),
    Operator("Sub", _subtract),
    Operator("Mul", _multiply),
    Operator("Div", _divide),
    Operator("Sum", _several("sum")),
    Operator("Max", _several("maximum")),
)
