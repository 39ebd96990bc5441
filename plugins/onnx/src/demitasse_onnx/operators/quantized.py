"""Products of whole numbers of eight bits, as models have them that were quantised after training. They
are computed in real numbers, which hold the sums exactly up to 2**24 (in f32)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, has
from demitasse_onnx.operators.arithmetic import added, multiplied, subtracted
from demitasse_onnx.operators.product import matmul, products_of_pairs
from demitasse_onnx.operators.reduction import whole
from demitasse_onnx.operators.rounding import stepped
from demitasse_onnx.operators.window import EXTENTS, convolution

_MOST = 255.0


def _by_range(given: Operands) -> Sequence[Tensor]:
    """Quantise by the range of the blob's own values, which includes 0. Of a blob of zeros, the scale
    is 1."""
    x = given.apply("stop_gradient", given.tensor())
    row = given.apply("reshape", x, shape=(1, 1, 1, math.prod(x.shape)))
    above, below = (
        given.apply("clip", whole(given, "pooling_max", each), least=0.0, most=math.inf)
        for each in (row, given.apply("power", row, scale=-1.0))
    )
    above, below = (given.apply("reshape", each, shape=()) for each in (above, below))
    extent = given.apply("sum", above, below, coefficients=(1 / _MOST, 1 / _MOST))
    one = given.fixed("one", np.ones(()))
    scale = given.apply("select", given.apply("greater", extent), extent, one)
    inverse = given.apply("power", scale, power=-1.0)
    zero = stepped(given, "round", given.apply("product", below, inverse))
    steps = stepped(given, "round", multiplied(replace(given, values=[x, inverse]))[0])
    y = added(replace(given, values=[steps, zero]))[0]
    return [given.apply("clip", y, least=0.0, most=_MOST), scale, zero]


def _shifted(given: Operands, position: int, zero: int) -> Tensor:
    """Return an input minus its zero point."""
    x, shift = given.tensor(position), given.values[zero] if given.has(zero) else None
    if shift is None or (isinstance(shift, np.ndarray) and not shift.any()):
        return x
    return subtracted(replace(given, values=[x, shift]))[0]


def _weights(position: int, zero: int, along: int, bias: int | None = None) -> Any:
    """Return the function that finds a call's constant weights, minus their zero points, of which there
    is one for all, or one for each place along an axis; and the biases."""

    def arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
        w = call.operands[position] if position < len(call.operands) else None
        shift = call.operands[zero] if has(call, zero) else np.zeros(())
        if not isinstance(w, np.ndarray) or not isinstance(shift, np.ndarray):
            return []
        if w.dtype.kind not in "iu" or w.ndim <= max(0, along) or shift.size not in (1, w.shape[along]):
            raise ValueError(f"its weights are {w.dtype.name} of {w.shape}, zero points {shift.shape}")
        by_place = shift.reshape([-1 if axis == along % w.ndim else 1 for axis in range(w.ndim)])
        made = [w.astype(np.float32) - by_place.astype(np.float32)]
        if bias is not None and has(call, bias):
            b = call.operands[bias]
            if not isinstance(b, np.ndarray):
                raise ValueError(f"its biases (input {bias}) must be constants in the file")
            made.append(b.astype(np.float32))
        return made

    return arrays


def _matmul_integer(given: Operands) -> Sequence[Tensor]:
    return _product(given, 1, 2, 3)


def _product(given: Operands, second: int, zero: int, other_zero: int) -> Sequence[Tensor]:
    x = _shifted(given, 0, zero)
    if given.learned:
        call = replace(given.call, operands=(0, given.call.operands[second]))
        return matmul(replace(given, call=call, values=[x]))
    return products_of_pairs(given, x, _shifted(given, second, other_zero))


def _conv_integer(given: Operands) -> Sequence[Tensor]:
    """Pads with the zero point, which is 0 after the shift."""
    return _convolved(given, 1, 2, 3)


def _convolved(given: Operands, second: int, zero: int, other_zero: int) -> Sequence[Tensor]:
    x = _shifted(given, 0, zero)
    values: list[Tensor] = [x] if given.learned else [x, _shifted(given, second, other_zero)]
    return convolution(replace(given, values=values))


def _rescaled(given: Operands, product: Tensor, axis: int) -> Sequence[Tensor]:
    """Return a product of x and w in the scale of y: rounded, shifted and limited."""
    x, w, y = (given.constant(position) for position in (1, 4, 6))
    if x is None or w is None or y is None or x.size != 1 or y.size != 1:
        raise ValueError("needs one scale each of its input and result, and those of its weights")
    factor = w.astype(np.float64).reshape(-1) * float(x.reshape(())) / float(y.reshape(()))
    extent = product.shape[axis : axis + 1]
    if factor.size not in (1, *extent):
        raise ValueError(f"scales of shape {w.shape}: give one number, or one for each of {extent}")
    f = given.fixed("factor", np.broadcast_to(factor, extent))
    made = stepped(given, "round", given.apply("scale", product, f, None, axis=axis))
    zero = given.constant(7)
    if zero is None or zero.size != 1 or zero.dtype.kind not in "iu" or zero.dtype.itemsize > 2:
        raise ValueError("needs one zero point of its result, of 8 or 16 bits")
    made = given.apply("power", made, shift=float(zero.reshape(())))
    limits = np.iinfo(zero.dtype)
    return [given.apply("clip", made, least=float(limits.min), most=float(limits.max))]


def _quantized_conv(given: Operands) -> Sequence[Tensor]:
    return _rescaled(given, _convolved(given, 3, 2, 5)[0], 1)


def _quantized_matmul(given: Operands) -> Sequence[Tensor]:
    made = _product(given, 3, 2, 5)[0]
    return _rescaled(given, made, len(made.shape) - 1)


_CONV = {**EXTENTS, "group": 1}

OPERATORS = (
    Operator("ConvInteger", _conv_integer, _CONV, _weights(1, 3, 0), kept=1),
    Operator("DynamicQuantizeLinear", _by_range),
    Operator("MatMulInteger", _matmul_integer, {}, _weights(1, 3, -1), kept=1),
    Operator("QLinearConv", _quantized_conv, _CONV, _weights(3, 5, 0, bias=8), kept=2),
    Operator("QLinearMatMul", _quantized_matmul, {}, _weights(3, 5, -1), kept=1),
)
