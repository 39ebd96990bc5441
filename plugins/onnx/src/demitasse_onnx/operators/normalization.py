"""Batch normalisation by kept statistics, local response normalisation, softmax, dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, constant_of


def _statistics(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """mean, variance, scale, bias: those that are not trained first."""
    names = ("the scale", "the bias", "the mean", "the variance")
    scale, bias, mean, variance = (
        constant_of(call, position, name) for position, name in enumerate(names, 1)
    )
    if len({array.shape for array in (scale, bias, mean, variance)}) != 1 or scale.ndim != 1:
        raise ValueError("scale, bias, mean and variance need the same shape, one number a channel")
    return [mean, variance, scale, bias]


def _batch_normalization(given: Operands) -> Sequence[Tensor]:
    if given["training_mode"] or not given["spatial"]:
        raise ValueError("only the inference by kept statistics of each channel is supported")
    if given["epsilon"] < 0:
        raise ValueError(f"epsilon {given['epsilon']} is below 0")
    mean, variance, scale, bias = given.learned
    one = given.fixed("factor", np.ones(1))
    inputs = (given.tensor(), mean, variance, one, scale, bias)
    return [given.apply("batch_norm_inference", *inputs, epsilon=given["epsilon"])]


def _lrn(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if len(x.shape) != 4 or not isinstance(given["size"], int) or given["size"] < 1:
        raise ValueError(f"normalises samples x channels x rows x columns by a size; its input is {x!r}")
    attributes = {"size": given["size"], "k": given["bias"]}
    made = given.apply("lrn_across_channels", x, alpha=given["alpha"], beta=given["beta"], **attributes)
    return [made[0]]


def _softmax(given: Operands) -> Sequence[Tensor]:
    """Along one axis; before version 13 over all axes from ``axis`` on (1 by default)."""
    x, axes = given.tensor(), len(given.tensor().shape)
    new = given.call.opset >= 13
    axis = given["axis"] if "axis" in given.call.attributes else -1 if new else 1
    if not isinstance(axis, int) or not -axes <= axis < axes:
        raise ValueError(f"axis {axis} is not one of the {axes} axes of {x!r}")
    axis %= axes
    if new or math.prod(x.shape[axis + 1 :]) == 1:
        return [given.apply("softmax", x, axis=axis)]
    rows = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    flat = given.apply("softmax", given.apply("reshape", x, shape=rows), axis=1)
    return [given.apply("reshape", flat, shape=x.shape)]


def _dropout(given: Operands) -> Sequence[Tensor]:
    """Drops in training; the identity else."""
    x, graph = given.tensor(), given.graph
    ratio = given.constant(1)
    share = float(given["ratio"] if ratio is None or ratio.size != 1 else ratio.reshape(-1)[0])
    if graph.phase != "train" or share == 0:
        return [x]
    if not 0 < share < 1:
        raise ValueError(f"ratio {share} is not in [0, 1)")
    scalars = (graph.scalar("iteration"), graph.scalar("sample"))
    made = given.apply("dropout", x, *scalars, ratio=share, seed=graph.seed, stream=graph.stream)
    return [made[0]]


_BATCH = {"epsilon": 1e-5, "momentum": 0.9, "spatial": 1, "training_mode": 0, "is_test": 1}

OPERATORS = (
    Operator("BatchNormalization", _batch_normalization, _BATCH, _statistics, kept=2),
    Operator("LRN", _lrn, {"alpha": 0.0001, "beta": 0.75, "bias": 1.0, "size": None}),
    Operator("Softmax", _softmax, {"axis": -1}),
    Operator("Dropout", _dropout, {"ratio": 0.5, "seed": 0, "is_test": 1}),
)
