"""Sums, means and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Operands, Operator, Shape
from demitasse_onnx.operators.resampling import boxed, taken
from demitasse_onnx.operators.shape import permuted

Reduction = Callable[[Operands, Tensor, int], Tensor]
"""A reduction over the trailing axes from one on."""


def _over_axes(reduction: Reduction) -> Callable[[Operands], Sequence[Tensor]]:
    """Return an operator that moves the reduced axes to the end first."""

    def expand(given: Operands) -> Sequence[Tensor]:
        x = given.tensor()
        rank, axes = len(x.shape), given.constant(1)
        listed = given["axes"] if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
        if any(not -rank <= axis < rank for axis in listed):
            raise ValueError(f"axes {listed} are not axes of {x!r}")
        if not listed and given["noop_with_empty_axes"]:
            return [x]
        chosen = {axis % rank for axis in listed} or set(range(rank))
        kept = [axis for axis in range(rank) if axis not in chosen]
        shape = tuple(
            1 if axis in chosen else extent
            for axis, extent in enumerate(x.shape)
            if given["keepdims"] or axis not in chosen
        )
        y = reduction(given, permuted(given, x, (*kept, *sorted(chosen))), len(kept))
        return [y if y.shape == shape else given.apply("reshape", y, shape=shape)]

    return expand


def _total(word: str, mean: bool = False, power: float = 1.0) -> Reduction:
    def reduction(given: Operands, x: Tensor, axis: int) -> Tensor:
        if mean and axis == 2 and len(x.shape) > 2:
            return whole(given, "pooling_average", x)
        share = 1 / math.prod(x.shape[axis:]) if mean else 1.0
        y: Tensor = given.apply(word, x, axis=axis, coefficient=share)
        return y if power == 1 else given.apply("power", y, power=power)

    return reduction


def whole(given: Operands, word: str, x: Tensor) -> Tensor:
    """Pool over all spatial axes."""
    spatial = len(x.shape) - 2
    ones, zeros = (1,) * spatial, (0,) * spatial
    made = given.apply(word, x, kernel=x.shape[2:], stride=ones, pad=zeros, rounding="floor")
    y: Tensor = made[0] if isinstance(made, tuple) else made
    return y


def _largest(sign: float) -> Reduction:
    def reduction(given: Operands, x: Tensor, axis: int) -> Tensor:
        signed = x if sign > 0 else given.apply("power", x, scale=-1.0)
        rows: Shape = (math.prod(x.shape[:axis]), 1, 1, math.prod(x.shape[axis:]))
        y = whole(given, "pooling_max", given.apply("reshape", signed, shape=rows))
        return y if sign > 0 else given.apply("power", y, scale=-1.0)

    return reduction


def _logarithm(given: Operands, x: Tensor, axis: int) -> Tensor:
    made: Tensor = given.apply("logarithm", given.apply("total", x, axis=axis))
    return made


def _logarithm_of_powers(given: Operands, x: Tensor, axis: int) -> Tensor:
    """Reduce exp(x - maximum of the row), and add the maximum to the logarithm, because exp(x) itself
    may overflow. The maximum needs no gradient."""
    rows: Shape = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    x = given.apply("reshape", x, shape=rows)
    most = given.apply("stop_gradient", _largest(1)(given, x, 1))
    most = given.apply("reshape", most, shape=rows[:1])
    ones = given.fixed("one", np.ones(rows[:1]))
    less = given.apply("scale", x, ones, given.apply("power", most, scale=-1.0), axis=0)
    total = given.apply("total", given.apply("exponential", less), axis=1)
    made: Tensor = given.apply("sum", given.apply("logarithm", total), most)
    return made


def _product(given: Operands, x: Tensor, axis: int) -> Tensor:
    """Multiply the first half by the second until one element is left."""
    y: Tensor = given.apply("reshape", x, shape=(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    while y.shape[1] > 1:
        half = y.shape[1] // 2
        parts = [boxed(given, y, {1: (first, half)}) for first in (0, half)]
        rest = [boxed(given, y, {1: (2 * half, 1)})] if y.shape[1] % 2 else []
        made = given.apply("product", *parts)
        y = given.apply("concat", made, *rest, axis=1) if rest else made
    return y


def _root_of_powers(given: Operands) -> Sequence[Tensor]:
    """Compute a p-norm over all spatial axes."""
    x, p = given.tensor(), given["p"]
    if len(x.shape) < 3 or p <= 0:
        raise ValueError(f"works on samples x channels x space by p above 0; its input is {x!r}, p {p}")
    powers = given.apply("absolute", x)
    powers = powers if p == 1 else given.apply("power", powers, power=float(p))
    total = given.apply("total", powers, axis=2)
    y = total if p == 1 else given.apply("power", total, power=1 / p)
    return [given.apply("reshape", y, shape=(*x.shape[:2], *(1,) * (len(x.shape) - 2)))]


def _place(sign: float) -> Callable[[Operands], Sequence[Tensor]]:
    """Of equal elements the default is the first; the vocabulary's operation returns the last."""

    def expand(given: Operands) -> Sequence[Tensor]:
        x, axis = given.tensor(), given["axis"]
        if not -len(x.shape) <= axis < len(x.shape):
            raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
        axis %= len(x.shape)
        extent, first = x.shape[axis], not given["select_last_index"]
        signed = x if sign > 0 else given.apply("power", x, scale=-1.0)
        if first:
            signed = taken(given, signed, axis, np.arange(extent)[::-1])
        y = given.apply("largest", signed, axis=axis)
        if first:
            y = given.apply("power", y, scale=-1.0, shift=extent - 1.0)
        shape = (*x.shape[:axis], *((1,) if given["keepdims"] else ()), *x.shape[axis + 1 :])
        return [y if y.shape == shape else given.apply("reshape", y, shape=shape)]

    return expand


def _global(word: str) -> Callable[[Operands], Sequence[Tensor]]:
    def expand(given: Operands) -> Sequence[Tensor]:
        x = given.tensor()
        if len(x.shape) < 3:
            raise ValueError(f"works on samples x channels x space; its input is {x!r}")
        return [whole(given, word, x)]

    return expand


_AXES = {"axes": (), "keepdims": 1, "noop_with_empty_axes": 0}
_PLACE = {"axis": 0, "keepdims": 1, "select_last_index": 0}

OPERATORS = (
    Operator("ArgMax", _place(1), _PLACE),
    Operator("ArgMin", _place(-1), _PLACE),
    Operator("GlobalAveragePool", _global("pooling_average")),
    Operator("GlobalLpPool", _root_of_powers, {"p": 2}),
    Operator("GlobalMaxPool", _global("pooling_max")),
    Operator("ReduceL1", _over_axes(_total("absolute_total")), _AXES),
    Operator("ReduceL2", _over_axes(_total("square_total", power=0.5)), _AXES),
    Operator("ReduceLogSum", _over_axes(_logarithm), _AXES),
    Operator("ReduceLogSumExp", _over_axes(_logarithm_of_powers), _AXES),
    Operator("ReduceMax", _over_axes(_largest(1)), _AXES),
    Operator("ReduceMean", _over_axes(_total("total", mean=True)), _AXES),
    Operator("ReduceMin", _over_axes(_largest(-1)), _AXES),
    Operator("ReduceProd", _over_axes(_product), _AXES),
    Operator("ReduceSum", _over_axes(_total("total")), _AXES),
    Operator("ReduceSumSquare", _over_axes(_total("square_total")), _AXES),
)
