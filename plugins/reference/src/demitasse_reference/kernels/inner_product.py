"""Inner product (a fully connected layer's affine map) and its backward passes."""

from __future__ import annotations

from math import prod

from demitasse_reference.kernels.arrays import Extents, Kernels, Reals


def inner_product(x: Reals, w: Reals, b: Reals | None, *, axis: int, transpose: bool) -> Reals:
    matrix = w.T if transpose else w
    y = x.reshape(prod(x.shape[:axis]), matrix.shape[1]) @ matrix.T
    if b is not None:
        y = y + b
    return y.reshape(*x.shape[:axis], matrix.shape[0])


def inner_product_backward_data(dy: Reals, w: Reals, *, transpose: bool, shape: Extents) -> Reals:
    matrix = w.T if transpose else w
    return (dy @ matrix).reshape(shape)


def inner_product_backward_weights(
    dy: Reals, x: Reals, *, axis: int, transpose: bool
) -> tuple[Reals, Reals]:
    rows = prod(x.shape[:axis])
    dy = dy.reshape(rows, dy.shape[-1])
    dw = dy.T @ x.reshape(rows, prod(x.shape[axis:]))
    return (dw.T if transpose else dw), dy.sum(axis=0)


KERNELS: Kernels = {
    "inner_product": inner_product,
    "inner_product_backward_data": inner_product_backward_data,
    "inner_product_backward_weights": inner_product_backward_weights,
}
