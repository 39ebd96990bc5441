"""Rounding, conversion between types of numbers, and quantisation. No gradient passes
through rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Operands, Operator
from demitasse_onnx.constants import CASTS
from demitasse_onnx.kinds import CONDITION, REAL, WHOLE, kind_of_type


def stepped(given: Operands, word: str, x: Tensor, **attributes: Any) -> Tensor:
    """Emit an operation whose result changes in steps, so that no gradient passes."""
    made: Tensor = given.apply(word, given.apply("stop_gradient", x), **attributes)
    return made


def _floor(given: Operands) -> Sequence[Tensor]:
    return [stepped(given, "floor", given.tensor())]


def _ceil(given: Operands) -> Sequence[Tensor]:
    below = stepped(given, "floor", given.apply("power", given.tensor(), scale=-1.0))
    return [given.apply("power", below, scale=-1.0)]


def _round(given: Operands) -> Sequence[Tensor]:
    return [stepped(given, "round", given.tensor())]


def sign(given: Operands, x: Tensor) -> Tensor:
    """Return -1, 0 or 1."""
    above = stepped(given, "greater", x)
    below = stepped(given, "greater", given.apply("power", x, scale=-1.0))
    made: Tensor = given.apply("sum", above, below, coefficients=(1.0, -1.0))
    return made


def _sign(given: Operands) -> Sequence[Tensor]:
    return [sign(given, given.tensor())]


def _as_kind(given: Operands, kind: str) -> Tensor:
    """Return the input as conditions, or as integers: digits after the point are dropped."""
    x = given.tensor()
    if kind == REAL or given.kind() in (kind, CONDITION):
        return x
    size = given.apply("absolute", x)
    if kind == CONDITION:
        return stepped(given, "greater", size)
    made: Tensor = given.apply("product", sign(given, x), stepped(given, "floor", size))
    return made


def _cast(given: Operands) -> Sequence[Tensor | np.ndarray]:
    """Everything is computed in the net's precision, whatever the file says."""
    if given["to"] not in CASTS:
        raise ValueError(f"to {given['to']} is not a supported type of numbers")
    return [_as_kind(given, kind_of_type(given["to"]))]


def _cast_like(given: Operands) -> Sequence[Tensor | np.ndarray]:
    """A constant that is cast like a blob remains a constant."""
    value, kind = given.values[0], given.kind(1)
    if isinstance(value, np.ndarray) and value.dtype.kind in "bfiu":
        kinds = {REAL: np.float64, WHOLE: np.int64, CONDITION: np.bool_}
        return [value if value.dtype.kind == "f" and kind == REAL else value.astype(kinds[kind])]
    return [_as_kind(given, kind)]


def _along(given: Operands, x: Tensor, numbers: np.ndarray, name: str) -> tuple[Tensor, int]:
    """Return a single number, or one for each place along the attribute axis, as a
    tensor for ``scale``."""
    if given["block_size"]:
        raise ValueError("blocks of one scale each are not supported")
    axis = given["axis"]
    if not isinstance(axis, int) or (numbers.size > 1 and not -len(x.shape) <= axis < len(x.shape)):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    axis = axis % len(x.shape) if numbers.size > 1 else 0
    extent = x.shape[axis : axis + 1]
    if numbers.size not in (1, *extent):
        raise ValueError(
            f"{name} of shape {numbers.shape}: give one number, or one for each of {extent}"
        )
    return given.fixed(name, np.broadcast_to(numbers.reshape(-1).astype(np.float64), extent)), axis


def _constants(given: Operands) -> tuple[np.ndarray, np.ndarray]:
    scale, zero = given.constant(1), given.constant(2)
    if scale is None or scale.dtype.kind != "f" or not scale.size or not (scale > 0).all():
        raise ValueError("its scale (input 1) must be numbers above 0")
    if zero is not None and zero.size not in (1, scale.size):
        raise ValueError(f"its zero point has the shape {zero.shape}, but its scale has {scale.shape}")
    return scale, np.zeros(scale.shape, _type(given)) if zero is None else zero


def _type(given: Operands) -> type[np.generic]:
    kind = CASTS.get(given.attributes.get("output_dtype", 0) or 2)
    if kind is None:
        raise ValueError(f"output_dtype {given['output_dtype']} is not a supported type of numbers")
    return kind


def _quantize(given: Operands) -> Sequence[Tensor]:
    """round(x / scale) + zero point, limited to the range of the zero point's type."""
    x, (scale, zero) = given.tensor(), _constants(given)
    if zero.dtype.kind not in "iu" or zero.dtype.itemsize > 2:
        raise ValueError(f"to {zero.dtype.name}: only whole numbers of 8 or 16 bits are supported")
    limits = np.iinfo(zero.dtype)
    w, axis = _along(given, x, 1 / scale.astype(np.float64), "inverse")
    y = stepped(given, "round", given.apply("scale", x, w, None, axis=axis))
    if zero.any():
        b, axis = _along(given, x, zero, "zero")
        y = given.apply("scale", y, given.fixed("one", np.ones(b.shape)), b, axis=axis)
    return [given.apply("clip", y, least=float(limits.min), most=float(limits.max))]


def _dequantize(given: Operands) -> Sequence[Tensor]:
    """(x - zero point) * scale."""
    x, (scale, zero) = given.tensor(), _constants(given)
    w, axis = _along(given, x, scale, "scale")
    wide = scale.astype(np.float64)
    b = _along(given, x, -zero.astype(np.float64) * wide, "shift")[0] if zero.any() else None
    return [given.apply("scale", x, w, b, axis=axis)]


_QUANTIZED = {"axis": 1, "block_size": 0, "saturate": 1, "output_dtype": 0, "precision": 0}

OPERATORS = (
    Operator("Cast", _cast, {"to": None, "saturate": 1, "round_mode": "up"}),
    Operator("CastLike", _cast_like, {"saturate": 1, "round_mode": "up"}),
    Operator("Ceil", _ceil),
    Operator("DequantizeLinear", _dequantize, {**_QUANTIZED}),
    Operator("Floor", _floor),
    Operator("QuantizeLinear", _quantize, _QUANTIZED),
    Operator("Round", _round),
    Operator("Sign", _sign),
)
