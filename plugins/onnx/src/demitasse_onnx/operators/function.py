"""Functions of one element. Most need words that the plugin caffe brings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Expand, Operands, Operator, constant_of
from demitasse_onnx.operators.arithmetic import BROADCAST, aligned


def _word(word: str, **attributes: Any) -> Expand:
    return lambda given: [given.apply(word, given.tensor(), **attributes)]


def _leaky(given: Operands) -> Sequence[Tensor]:
    """relu's gradient reads the sign of its result, which a slope below 0 would hide."""
    word = "relu" if given["alpha"] >= 0 else "leaky_relu"
    return [given.apply(word, given.tensor(), negative_slope=given["alpha"])]


def _elu(given: Operands) -> Sequence[Tensor]:
    if given["alpha"] < 0:
        raise ValueError(f"alpha {given['alpha']} is below 0")
    return [given.apply("elu", given.tensor(), alpha=given["alpha"])]


def _clip(given: Operands) -> Sequence[Tensor]:
    """The limits are attributes before version 11, constants since; the upper one is the stronger."""
    limits = []
    for position, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        value = given.constant(position)
        limit = given.attributes.get(name, default) if value is None else value
        if np.size(limit) != 1:
            raise ValueError(f"{name} has the shape {np.shape(limit)}; one number is supported")
        limits.append(float(np.reshape(limit, ())))
    limits[0] = min(limits)
    if limits == [0.0, np.inf]:
        return [given.apply("relu", given.tensor())]
    return [given.apply("clip", given.tensor(), least=limits[0], most=limits[1])]


def _hard_sigmoid(given: Operands) -> Sequence[Tensor]:
    return [given.apply("hard_sigmoid", given.tensor(), scale=given["alpha"], shift=given["beta"])]


def _gelu(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if given["approximate"] == "none":
        return [given.apply("gelu", x)]
    if given["approximate"] != "tanh":
        raise ValueError(f"approximate {given['approximate']!r} is none of none, tanh")
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
    return [given.apply("product", x, given.apply("greater", x, threshold=given["alpha"]))]


def _slopes(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    w = constant_of(call, 1, "its slopes")
    return [w.reshape(()) if w.size == 1 else w.reshape(-1)]


def _prelu(given: Operands) -> Sequence[Tensor]:
    x, w = given.tensor(), given.learned[0]
    slopes = given.constant(1)
    shape = () if slopes is None else slopes.shape
    if given.call.opset < 7 and shape == (x.shape[1],):  # since then the last axis would be meant
        return [given.apply("parametric_relu", x, w)]
    behind = len(x.shape) - 2
    if w.shape and shape[-behind - 1 :] != (x.shape[1], *(1,) * behind):
        raise ValueError(
            f"slopes of shape {shape} for {x!r}: one a channel, or one for all, is supported"
        )
    return [given.apply("parametric_relu", x, w)]


def _power(given: Operands) -> Sequence[Tensor]:
    value = given.constant(1)
    if value is None or value.size != 1:
        raise ValueError("its exponent is not one constant number")
    return [given.apply("power", given.tensor(), power=float(value.reshape(())))]


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
    Operator("ThresholdedRelu", _thresholded, {"alpha": 1.0}),
)
