"""Products with matrices of learned numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, constant_of, has


def _matrix(call: Call) -> np.ndarray:
    w = constant_of(call, 1, "the second matrix")
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"the second matrix has the shape {w.shape}")
    return w


def _gemm_arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """alpha and beta go into the numbers that they multiply."""
    w = _matrix(call)
    outputs = w.shape[0] if attributes["transB"] else w.shape[1]
    arrays = [_times(w, attributes["alpha"])]
    if has(call, 2):
        c = constant_of(call, 2, "what is added")
        if c.size not in (1, outputs) or (c.ndim and c.shape[-1] != c.size):
            raise ValueError(
                f"what is added has the shape {c.shape}; one number for each of {outputs} outputs"
            )
        arrays.append(_times(np.broadcast_to(c.reshape(-1), (outputs,)), attributes["beta"]))
    return arrays


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1 else np.multiply(array, factor, dtype=array.dtype)


def _gemm(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if given["transA"] or len(x.shape) != 2:
        raise ValueError(f"takes rows x columns, not transposed; its first input is {x!r}")
    transpose = not given["transB"]
    return [given.apply("inner_product", x, *given.learned, axis=1, transpose=transpose)]


def _matmul_arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    return [_matrix(call)]


def _matmul(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if len(x.shape) < 2:
        raise ValueError(f"its first input is {x!r}; it needs rows")
    return [given.apply("inner_product", x, *given.learned, axis=len(x.shape) - 1, transpose=True)]


OPERATORS = (
    Operator("Gemm", _gemm, {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}, _gemm_arrays),
    Operator("MatMul", _matmul, {}, _matmul_arrays),
)
