"""Functions of one element. Most need operations of the plugin caffe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Expand, Operands, Operator, constant_of
from demitasse_onnx.operators.arithmetic import BROADCAST, aligned, larger, multiplied
from demitasse_onnx.operators.rounding import stepped
from demitasse_onnx.operators.shape import repeated


def _word(word: str, **attributes: Any) -> Expand:
    return lambda given: [given.apply(word, given.tensor(), **attributes)]


def _leaky(given: Operands) -> Sequence[Tensor]:
    """relu's gradient reads the sign of its result, which a negative slope would hide."""
    word = "relu" if given["alpha"] >= 0 else "leaky_relu"
    return [given.apply(word, given.tensor(), negative_slope=given["alpha"])]


def _elu(given: Operands) -> Sequence[Tensor]:
    if given["alpha"] < 0:
        raise ValueError(f"alpha {given['alpha']} is below 0")
    return [given.apply("elu", given.tensor(), alpha=given["alpha"])]


def _clip(given: Operands) -> Sequence[Tensor]:
    """The limits are attributes before version 11 and constants since. The upper limit
    takes precedence."""
    x = given.tensor()
    limits: list[float] = []
    for position, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        value = given.values[position] if given.has(position) else None
        if isinstance(value, Tensor):
            if limits and limits[0] > -np.inf:
                x, limits = given.apply("clip", x, least=limits[0], most=np.inf), [-np.inf]
            x, value = larger(given, x, value, 1 if name == "min" else -1), np.array(default)
        limit = given.attributes.get(name, default) if value is None else value
        if np.size(limit) != 1:
            raise ValueError(f"{name} has the shape {np.shape(limit)}; only one number is supported")
        limits.append(float(np.reshape(limit, ())))
    limits[0] = min(limits)
    if limits == [0.0, np.inf]:
        return [given.apply("relu", x)]
    if limits == [-np.inf, np.inf]:
        return [x]
    return [given.apply("clip", x, least=limits[0], most=limits[1])]


def _hard_sigmoid(given: Operands) -> Sequence[Tensor]:
    return [given.apply("hard_sigmoid", given.tensor(), scale=given["alpha"], shift=given["beta"])]


def _gelu(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if given["approximate"] == "none":
        return [given.apply("gelu", x)]
    if given["approximate"] != "tanh":
        raise ValueError(f"unknown approximate {given['approximate']!r} (valid: none, tanh)")
    cube = given.apply("power", x, power=3.0)
    inner = given.apply("sum", x, cube, coefficients=(1.0, 0.044715))
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
    twice = given.apply("power", inner, scale=2 * math.sqrt(2 / math.pi))
    return [given.apply("product", x, given.apply("sigmoid", twice))]


def _selu(given: Operands) -> Sequence[Tensor]:
    y = given.apply("elu", given.tensor(), alpha=given["alpha"])
    return [given.apply("power", y, scale=given["gamma"])]


def _celu(given: Operands) -> Sequence[Tensor]:
    alpha = given["alpha"]
    if alpha <= 0:
        raise ValueError(f"alpha {alpha} is not above 0")
    y = given.apply("elu", given.apply("power", given.tensor(), scale=1 / alpha))
    return [given.apply("power", y, scale=alpha)]


def _mish(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    return [given.apply("product", x, given.apply("tanh", given.apply("softplus", x)))]


def _softsign(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    below = given.apply("power", given.apply("absolute", x), power=-1.0, shift=1.0)
    return [given.apply("product", x, below)]


def _thresholded(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    return [given.apply("product", x, stepped(given, "greater", x, threshold=given["alpha"]))]


def _shrunk(given: Operands) -> Sequence[Tensor]:
    """0 from -lambd to lambd; beyond that, the absolute value is reduced by the bias."""
    x, limit, bias = given.tensor(), given["lambd"], given["bias"]
    above = stepped(given, "greater", x, threshold=limit)
    below = stepped(given, "greater", given.apply("power", x, scale=-1.0), threshold=limit)
    kept = given.apply("product", x, given.apply("sum", above, below))
    if not bias:
        return [kept]
    return [given.apply("sum", kept, above, below, coefficients=(1.0, -bias, bias))]


def _slopes(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Slopes that the net computes are not learned."""
    if len(call.operands) > 1 and isinstance(call.operands[1], int):
        return []
    w = constant_of(call, 1, "its slopes")
    return [w.reshape(()) if w.size == 1 else w.reshape(-1)]


def _prelu(given: Operands) -> Sequence[Tensor]:
    """A single slope, or one for each channel, is one operation. Any other slopes multiply
    the negative part."""
    x, slopes = given.tensor(), given.values[1] if given.has(1) else None
    shape = () if slopes is None else tuple(slopes.shape)
    w = given.learned[0] if given.learned else given.tensor(1)
    if given.call.opset < 7 and shape == (x.shape[1],):  # since version 7 it would mean the last axis
        return [given.apply("parametric_relu", x, w)]
    behind = len(x.shape) - 2
    by_channel = behind >= 0 and shape[-behind - 1 :] == (x.shape[1], *(1,) * behind)
    if given.learned and (not w.shape or (by_channel and math.prod(shape) == x.shape[1])):
        return [given.apply("parametric_relu", x, w)]
    try:
        fits = np.broadcast_shapes(x.shape, shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"slopes of shape {shape} cannot be repeated to fit {x!r}")
    slopes = w if w.shape == shape else given.apply("reshape", w, shape=shape)
    below = given.apply("relu", given.apply("power", x, scale=-1.0))
    below = multiplied(replace(given, values=[below, slopes]))[0]
    return [given.apply("sum", given.apply("relu", x), below, coefficients=(1.0, -1.0))]


def _power(given: Operands) -> Sequence[Tensor]:
    """Raise x to one constant exponent, or one positive constant to many exponents."""
    base, value = given.values[0], given.values[1] if given.has(1) else None
    if isinstance(base, np.ndarray) and base.size == 1 and isinstance(value, Tensor):
        number = float(base.reshape(-1)[0])
        if number > 0:
            y = given.apply("exponential", value, scale=math.log(number))
            return [repeated(given, y, np.broadcast_shapes(base.shape, y.shape))]
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ValueError("its exponent must be one constant number, or its base one above 0")
    x = given.tensor()
    y = given.apply("power", x, power=float(value.reshape(())))
    return [repeated(given, y, np.broadcast_shapes(value.shape, y.shape))]


OPERATORS = (
    Operator("Relu", _word("relu")),
    Operator("LeakyRelu", _leaky, {"alpha": 0.01}),
    Operator("PRelu", _prelu, {}, _slopes),
    Operator("Sigmoid", _word("sigmoid")),
    Operator("Tanh", _word("tanh")),
    Operator("Elu", _elu, {"alpha": 1.0}),
    Operator("Softplus", _word("softplus")),
    Operator("Exp", _word("exponential")),
    Operator("Log", _word("logarithm")),
    Operator("Abs", _word("absolute")),
    Operator("Neg", _word("power", scale=-1.0)),
    Operator("Sqrt", _word("power", power=0.5)),
    Operator("Reciprocal", _word("power", power=-1.0)),
    Operator("Cos", _word("sine", shift=math.pi / 2)),
    Operator("Sin", _word("sine")),
    Operator("Pow", aligned(_power), BROADCAST),
    Operator("Clip", _clip, {"min": -np.inf, "max": np.inf}),
    Operator("HardSigmoid", _hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    Operator("HardSwish", _word("hard_swish")),
    Operator("Swish", lambda given: _word("swish", beta=given["alpha"])(given), {"alpha": 1.0}),
    Operator("Erf", _word("error_function")),
    Operator("Gelu", _gelu, {"approximate": "none"}),
    Operator("Selu", _selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    Operator("Celu", _celu, {"alpha": 1.0}),
    Operator("Mish", _mish),
    Operator("Softsign", _softsign),
    Operator("Shrink", _shrunk, {"lambd": 0.5, "bias": 0.0}),
    Operator("ThresholdedRelu", _thresholded, {"alpha": 1.0}),
)
