"""Normalisation by a batch's or by stored statistics, of rows, planes and groups; local response
normalisation, softmax, dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, constant_of, has
from demitasse_onnx.operators.reduction import whole
from demitasse_onnx.operators.shape import permuted


def _statistics(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Return mean, variance, scale, bias; those that are not trained come first."""
    names = ("the scale", "the bias", "the mean", "the variance")
    scale, bias, mean, variance = (
        constant_of(call, position, name) for position, name in enumerate(names, 1)
    )
    if len({array.shape for array in (scale, bias, mean, variance)}) != 1 or scale.ndim != 1:
        raise ValueError("scale, bias, mean and variance need the same shape, one number per channel")
    return [mean, variance, scale, bias]


def _batch_normalization(given: Operands) -> Sequence[Tensor]:
    """Normalise by stored statistics or, if the file says that the node trains, by the
    batch's in phase train."""
    if not given["spatial"]:
        raise ValueError("only statistics of each channel are supported (spatial 1)")
    if given["epsilon"] < 0:
        raise ValueError(f"epsilon {given['epsilon']} is below 0")
    if given["training_mode"] and not 0 <= given["momentum"] <= 1:
        raise ValueError(f"momentum {given['momentum']} is not in [0, 1]")
    x, epsilon, (mean, variance, scale, bias) = given.tensor(), given["epsilon"], given.learned
    inputs = (x, mean, variance, given.fixed("factor", np.ones(1)), scale, bias)
    if given["training_mode"] and given.graph.phase == "train":
        keep = {"keep": given["momentum"], "averaged": True}
        return [given.apply("batch_norm", *inputs, epsilon=epsilon, **keep)[0]]
    return [given.apply("batch_norm_inference", *inputs, epsilon=epsilon)]


def _normalised_rows(given: Operands, x: Tensor, axis: int, epsilon: float) -> Tensor:
    """Return x minus its mean, divided by its deviation, both over the axes from one on."""
    share = 1 / math.prod(x.shape[axis:])
    centred = given.apply("centre", x, axis=axis)
    variance = given.apply("square_total", centred, axis=axis, coefficient=share)
    inverse = given.apply("power", variance, power=-0.5, shift=epsilon)
    made: Tensor = given.apply("scale", centred, inverse, None, axis=0)
    return made


def _scaled(given: Operands, x: Tensor, axis: int, learned: Sequence[Tensor]) -> Tensor:
    """Return x times a learned factor along the axes from one on, plus a learned bias."""
    w, b = (*learned, None)[:2]
    made: Tensor = given.apply("scale", x, w, b, axis=axis)
    return made


def _pair(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Return a scale, and a bias if there is one."""
    scale = constant_of(call, 1, "the scale")
    if not has(call, 2):
        return [scale]
    bias = constant_of(call, 2, "the bias")
    return [scale, np.broadcast_to(bias, scale.shape).copy() if bias.size == 1 else bias]


def _layer_normalization(given: Operands) -> Sequence[Tensor]:
    x, axis = given.tensor(), given["axis"]
    if not -len(x.shape) <= axis < len(x.shape):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    axis %= len(x.shape)
    w = given.learned[0]
    if w.shape != x.shape[axis:]:
        raise ValueError(f"its scale {w.shape} does not fit the axes from {axis} on of {x!r}")
    return [_scaled(given, _normalised_rows(given, x, axis, given["epsilon"]), axis, given.learned)]


def _rms_normalization(given: Operands) -> Sequence[Tensor]:
    """Divide x by the root of the mean of its squares over the axes from one on."""
    x, axis, w = given.tensor(), given["axis"], given.learned[0]
    if not -len(x.shape) <= axis < len(x.shape):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    axis %= len(x.shape)
    if w.shape != x.shape[axis:]:
        raise ValueError(f"its scale {w.shape} does not fit the axes from {axis} on of {x!r}")
    share = 1 / math.prod(x.shape[axis:])
    squares = given.apply("square_total", x, axis=axis, coefficient=share)
    inverse = given.apply("power", squares, power=-0.5, shift=given["epsilon"])
    return [_scaled(given, given.apply("scale", x, inverse, None, axis=0), axis, given.learned)]


def _mean_variance_normalization(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    axes = given["axes"]
    if not axes or any(not -len(x.shape) <= axis < len(x.shape) for axis in axes):
        raise ValueError(f"axes {axes} are not axes of {x!r}")
    chosen = {axis % len(x.shape) for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in chosen]
    order = (*kept, *sorted(chosen))
    turned = permuted(given, x, order)
    shape = turned.shape
    if not kept:
        turned = given.apply("reshape", turned, shape=(1, *shape))
    y = _normalised_rows(given, turned, max(1, len(kept)), 1e-9)
    y = y if kept else given.apply("reshape", y, shape=shape)
    return [permuted(given, y, tuple(np.argsort(order).tolist()))]


def _instance_normalization(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if len(x.shape) < 3 or given.learned[0].shape != x.shape[1:2]:
        raise ValueError(f"its scale {given.learned[0].shape} does not fit the channels of {x!r}")
    return [_scaled(given, _normalised_rows(given, x, 2, given["epsilon"]), 1, given.learned)]


def _group_normalization(given: Operands) -> Sequence[Tensor]:
    """The scales are those of channels since version 21, of groups before."""
    x, groups, w = given.tensor(), given["num_groups"], given.learned[0]
    if not isinstance(groups, int) or groups < 1 or len(x.shape) < 2 or x.shape[1] % groups:
        raise ValueError(f"num_groups {groups} does not divide the channels of {x!r}")
    cut = given.apply("reshape", x, shape=(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y = _normalised_rows(given, cut, 2, given["epsilon"])
    if w.shape == (groups,) and given.call.opset < 21:
        y = _scaled(given, y, 1, given.learned)
    y = given.apply("reshape", y, shape=x.shape)
    if given.call.opset < 21:
        return [y]
    if w.shape != x.shape[1:2]:
        raise ValueError(f"its scale {w.shape} does not fit the channels of {x!r}")
    return [_scaled(given, y, 1, given.learned)]


def _unit_rows(given: Operands) -> Sequence[Tensor]:
    """Divide each vector along an axis by its length; a vector of zeros stays unchanged."""
    x, axis = given.tensor(), given["axis"] % len(given.tensor().shape)
    order = (*(a for a in range(len(x.shape)) if a != axis), axis)
    last = permuted(given, x, order)
    word, power = ("square_total", -0.5) if given["p"] == 2 else ("absolute_total", -1.0)
    length = given.apply(word, last, axis=len(order) - 1)
    length = given.apply("clip", length, least=float(np.finfo(np.float32).tiny), most=np.inf)
    y = given.apply("scale", last, given.apply("power", length, power=power), None, axis=0)
    return [permuted(given, y, tuple(order.index(a) for a in range(len(order))))]


def _lrn(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    if len(x.shape) != 4 or not isinstance(given["size"], int) or given["size"] < 1:
        raise ValueError(f"normalises samples x channels x rows x columns by a size; its input is {x!r}")
    attributes = {"size": given["size"], "k": given["bias"]}
    made = given.apply("lrn_across_channels", x, alpha=given["alpha"], beta=given["beta"], **attributes)
    return [made[0]]


def _axis_of_softmax(given: Operands) -> tuple[int, bool]:
    """Return the axis of the softmax, and whether all axes after it are part of it: before version 13 it
    runs over all axes from ``axis`` on (1 by default)."""
    x, axes = given.tensor(), len(given.tensor().shape)
    new = given.call.opset >= 13
    axis = given["axis"] if "axis" in given.call.attributes else -1 if new else 1
    if not isinstance(axis, int) or not -axes <= axis < axes:
        raise ValueError(f"axis {axis} is not one of the {axes} axes of {x!r}")
    axis %= axes
    return axis, not new and math.prod(x.shape[axis + 1 :]) > 1


def _softmax(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    axis, behind = _axis_of_softmax(given)
    if not behind:
        return [given.apply("softmax", x, axis=axis)]
    rows = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    flat = given.apply("softmax", given.apply("reshape", x, shape=rows), axis=1)
    return [given.apply("reshape", flat, shape=x.shape)]


def _logarithm_of_softmax(given: Operands) -> Sequence[Tensor]:
    """Computed as d - log(sum of exp(d)), where d is x minus the maximum of its row, because the
    softmax itself may be too small to have a logarithm. The maximum does not affect the result, so it
    needs no gradient."""
    x = given.tensor()
    axis, behind = _axis_of_softmax(given)
    axes = list(range(len(x.shape)))
    order = tuple(axes if behind else [*axes[:axis], *axes[axis + 1 :], axis])
    turned = permuted(given, x, order)
    size = math.prod(x.shape[axis:]) if behind else x.shape[axis]
    count = math.prod(x.shape) // size
    rows = given.apply("reshape", turned, shape=(count, size))
    greatest = whole(given, "pooling_max", given.apply("reshape", rows, shape=(count, 1, 1, size)))
    fixed = given.apply("stop_gradient", given.apply("reshape", greatest, shape=(count,)))
    ones = given.fixed("one", np.ones(count))
    less = given.apply("scale", rows, ones, given.apply("power", fixed, scale=-1.0), axis=0)
    total = given.apply("total", given.apply("exponential", less), axis=1)
    y = given.apply("scale", less, ones, given.apply("logarithm", total, factor=-1.0), axis=0)
    y = given.apply("reshape", y, shape=turned.shape)
    return [permuted(given, y, tuple(np.argsort(order).tolist()))]


def _dropout(given: Operands) -> Sequence[Tensor]:
    """Drops elements in training; the identity otherwise."""
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

_GROUP = {"epsilon": 1e-5, "num_groups": None, "stash_type": 1}
_LAYER = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}


OPERATORS = (
    Operator("BatchNormalization", _batch_normalization, _BATCH, _statistics, kept=2),
    Operator("GroupNormalization", _group_normalization, _GROUP, _pair),
    Operator("InstanceNormalization", _instance_normalization, {"epsilon": 1e-5}, _pair),
    Operator("LayerNormalization", _layer_normalization, _LAYER, _pair),
    Operator("LpNormalization", _unit_rows, {"axis": -1, "p": 2}),
    Operator("MeanVarianceNormalization", _mean_variance_normalization, {"axes": (0, 2, 3)}),
    Operator("RMSNormalization", _rms_normalization, _LAYER, _pair),
    Operator("LRN", _lrn, {"alpha": 0.0001, "beta": 0.75, "bias": 1.0, "size": None}),
    Operator("Softmax", _softmax, {"axis": -1}),
    Operator("LogSoftmax", _logarithm_of_softmax, {"axis": -1}),
    Operator("Dropout", _dropout, {"ratio": 0.5, "seed": 0, "is_test": 1}),
)
