"""Products with matrices of learned numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, Shape, constant_of, has
from demitasse_onnx.operators.arithmetic import added
from demitasse_onnx.operators.resampling import boxed
from demitasse_onnx.operators.shape import permuted, repeated


def _matrix(call: Call) -> np.ndarray:
    w = constant_of(call, 1, "the second matrix")
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"the second matrix has the shape {w.shape}")
    return w


def _gemm_arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """alpha and beta are multiplied into the arrays."""
    if len(call.operands) > 1 and isinstance(call.operands[1], int):
        return []
    w = _matrix(call)
    outputs = w.shape[0] if attributes["transB"] else w.shape[1]
    arrays = [_times(w, attributes["alpha"])]
    if has(call, 2) and not isinstance(call.operands[2], int):
        c = constant_of(call, 2, "what is added")
        if c.size in (1, outputs) and (not c.ndim or c.shape[-1] == c.size):
            arrays.append(_times(np.broadcast_to(c.reshape(-1), (outputs,)), attributes["beta"]))
    return arrays


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1 else np.multiply(array, factor, dtype=array.dtype)


def _gemm(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if "broadcast" in given.call.attributes and given.call.opset >= 7:
        raise ValueError(f"attribute broadcast belongs to versions before 7, not to {given.call.opset}")
    w, *bias = given.learned or [given.tensor(1)]
    if len(x.shape) != 2 or len(w.shape) != 2:
        raise ValueError(f"multiplies matrices; its inputs are {x!r} and {w!r}")
    if given["transA"]:
        x = permuted(given, x, (1, 0))
    y = given.apply("inner_product", x, w, *bias, axis=1, transpose=not given["transB"])
    if not given.learned and given["alpha"] != 1:
        y = given.apply("power", y, scale=given["alpha"])
    if not given.has(2) or bias:
        return [y]
    c = given.values[2]  # not one number for each output
    if given["beta"] != 1:
        c = given.apply("power", given.tensor(2), scale=given["beta"])
    return added(replace(given, values=[y, c]))


def _matmul_arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """If both operands are blobs, neither is learned; a constant of the file is learned, whichever
    operand it is."""
    first, second = (*call.operands, None, None)[:2]
    if isinstance(second, int):
        return [] if isinstance(first, int) else [constant_of(call, 0, "the first matrix")]
    return [constant_of(call, 1, "the second matrix")]


def matmul(given: Operands) -> Sequence[Tensor]:
    second = given.call.operands[1]
    if not given.learned:
        return products_of_pairs(given, given.tensor(), given.tensor(1))
    (w,) = given.learned
    if isinstance(second, int):
        return products_of_pairs(given, w, given.tensor(1))
    x = given.tensor()
    if len(w.shape) != 2 or len(x.shape) < 2:
        return products_of_pairs(given, x, w)
    return [given.apply("inner_product", x, w, axis=len(x.shape) - 1, transpose=True)]


def products_of_pairs(given: Operands, a: Tensor, b: Tensor) -> Sequence[Tensor]:
    """Multiply pairs of matrices one after the other. A vector adds no axis to the product."""
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    if len(a.shape) == 1:
        a = given.apply("reshape", a, shape=(1, *a.shape))
    if len(b.shape) == 1:
        b = given.apply("reshape", b, shape=(*b.shape, 1))
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{a!r} and {b!r} are not matrices that can be multiplied")
    outer = tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    pairs = math.prod(outer)
    if pairs > _PAIRS:
        raise ValueError(f"{pairs} products of {a!r} and {b!r}: at most {_PAIRS} are supported")
    first, second = (_matrices(given, each, outer) for each in (a, b))
    made = [
        given.apply(
            "inner_product",
            _matrix_of(given, first, pair),
            _matrix_of(given, second, pair),
            axis=1,
            transpose=True,
        )
        for pair in range(pairs)
    ]
    shape = (*outer, *rows, *columns)
    pieces = [given.apply("reshape", each, shape=(1, *each.shape)) for each in made]
    joined = pieces[0] if pairs == 1 else given.apply("concat", *pieces, axis=0)
    return [given.apply("reshape", joined, shape=shape)]


def _matrices(given: Operands, x: Tensor, outer: Shape) -> Tensor:
    """Return x as a sequence of matrices, broadcast if the other operand has more."""
    whole = repeated(given, x, (*outer, *x.shape[-2:]))
    made: Tensor = given.apply("reshape", whole, shape=(math.prod(outer), *x.shape[-2:]))
    return made


def _matrix_of(given: Operands, x: Tensor, number: int) -> Tensor:
    made: Tensor = given.apply("reshape", boxed(given, x, {0: (number, 1)}), shape=tuple(x.shape[1:]))
    return made


_PAIRS = 4096
"""The maximum number of products of matrices in one node; each of them is an operation."""

_GEMM = {"alpha": 1.0, "beta": 1.0, "broadcast": 0, "transA": 0, "transB": 0}

OPERATORS = (
    Operator("Gemm", _gemm, _GEMM, _gemm_arrays),
    Operator("MatMul", matmul, {}, _matmul_arrays),
)
