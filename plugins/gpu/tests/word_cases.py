"""Operands and attributes of plugins' words, drawn at random, for the kernels of the gpu plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import Case, Values
from kernel_cases import CASES as COMMON
from kernel_cases import joined
from loss_cases import CASES as LOSSES
from margin_cases import CASES as MARGINS

from demitasse_gpu.kernels.functions import ATTRIBUTES
from demitasse_gpu.kernels.whole_batch import FACTORIES

CHOICES: dict[str, dict[str, tuple[float, ...]]] = {
    "clip": {"least": (-0.75,), "most": (0.5,)},
    "elu": {"alpha": (1.0, 0.3)},
    "exponential": {"scale": (1.0, -0.5), "shift": (0.0, 1.5)},
    "greater": {"threshold": (0.3,)},
    "hard_sigmoid": {"scale": (1 / 6, 0.5), "shift": (0.5, 0.25)},
    "hard_swish": {"scale": (1 / 6, 0.5), "shift": (0.5, 0.25)},
    "leaky_relu": {"negative_slope": (-0.5, 0.0, 0.25)},
    "logarithm": {"factor": (1.0, 1.5), "scale": (1.0, 0.5), "shift": (9.0,)},
    "power": {
        "power": (0.0, 0.5, 1.0, 2.0, -1.0, 2.5, -0.75),
        "scale": (1.0, 0.5, 0.0),
        "shift": (9.0,),
    },
    "sine": {"scale": (1.0, -2.5), "shift": (0.0, 0.5)},
    "swish": {"beta": (1.0, -0.5)},
}


def _function(name: str, v: Values) -> Case:
    shape = v.shape()
    attributes = {key: v.one_of(*values) for key, values in CHOICES.get(name, {}).items()}
    return [v.real(*shape)], attributes


def _function_backward(name: str, v: Values) -> Case:
    (x,), attributes = _function(name, v)
    return [v.real(*x.shape), x], attributes


def _product(v: Values) -> Case:
    shape = v.shape()
    return [v.positive(*shape) for _ in range(v.number(1, 5))], {}


def _product_backward(v: Values) -> Case:
    xs, _ = _product(v)
    shapes = tuple(x.shape for x in xs)
    return [v.real(*xs[0].shape), *xs], {"by_division": v.one_of(True, False), "shapes": shapes}


def _maximum(v: Values) -> Case:
    shape = v.shape()
    return [v.random.integers(0, 3, shape).astype(v.dtype) for _ in range(v.number(1, 4))], {}


def _maximum_backward(v: Values) -> Case:
    shape, count = v.shape(), v.number(1, 4)
    argmax = v.random.integers(0, count, shape).astype(np.int32)
    return [v.real(*shape), argmax], {"shapes": (shape,) * count}


def _slopes(v: Values, x: Any) -> Any:
    return v.real(x.shape[1]) if v.one_of(True, False) else np.array(v.real(1)[0])


def _parametric_relu(v: Values) -> Case:
    x = v.real(*v.shape())
    return [x, _slopes(v, x)], {}


def _parametric_relu_backward(v: Values) -> Case:
    x = v.real(*v.shape())
    return [v.real(*x.shape), x, _slopes(v, x)], {}


def _total(v: Values) -> Case:
    x = v.real(*v.shape())
    return [x], {"axis": v.number(0, x.ndim), "coefficient": v.one_of(1.0, -0.5)}


def _total_backward(reads: bool, v: Values) -> Case:
    (x,), attributes = _total(v)
    dy = v.real(*x.shape[: attributes["axis"]])
    dy = np.asarray(dy, v.dtype)
    return ([dy, x], attributes) if reads else ([dy], {**attributes, "shape": x.shape})


def _largest(v: Values) -> Case:
    shape = v.shape()
    axis = v.number(0, len(shape) - 1)
    x = v.random.integers(0, 4, shape).astype(v.dtype)  # so that some are equal
    give = v.one_of("places", "values", "both")
    return [x], {"axis": axis, "count": v.number(1, shape[axis]), "give": give}


def _by_row(v: Values) -> Case:
    x = v.real(*v.shape())
    return [x], {"axis": v.number(0, x.ndim - 1), "epsilon": 0.01}


def _standardize_backward(v: Values) -> Case:
    (x,), attributes = _by_row(v)
    deviation = np.asarray(v.positive(*x.shape[: attributes["axis"]]), v.dtype)
    return [v.real(*x.shape), x, deviation], attributes


def _slice(v: Values) -> Case:
    shapes, axis = joined(v)
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    return [v.real(*whole)], {"axis": axis, "shapes": tuple(shapes)}


def _crop(v: Values) -> Case:
    shape = v.shape()
    offset = tuple(v.number(0, n - 1) for n in shape)
    extent = tuple(v.number(1, n - o) for n, o in zip(shape, offset, strict=True))
    return [v.real(*shape)], {"offset": offset, "extent": extent}


def _crop_backward(v: Values) -> Case:
    (x,), attributes = _crop(v)
    return [v.real(*attributes["extent"])], {"offset": attributes["offset"], "shape": x.shape}


def _tile(v: Values) -> Case:
    x = v.real(*v.shape())
    return [x], {"axis": v.number(0, x.ndim - 1), "tiles": v.number(1, 4)}


def _tile_backward(v: Values) -> Case:
    (x,), attributes = _tile(v)
    axis = attributes["axis"]
    dy = np.concatenate([v.real(*x.shape) for _ in range(attributes["tiles"])], axis)
    return [dy], {**attributes, "shape": x.shape}


def _gather(v: Values) -> Case:
    x, shape = v.real(*v.shape()), tuple(v.number(1, 4) for _ in range(v.number(1, 2)))
    index = v.random.integers(0, len(x), shape).astype(v.one_of("int32", "float32", "uint8"))
    return [x, index], {"source": "a test"}


def _gather_backward(v: Values) -> Case:
    (x, index), _ = _gather(v)
    return [v.real(*index.shape, *x.shape[1:]), index], {"shape": x.shape}


def _fold(v: Values) -> Case:
    w = v.real(*v.shape())
    axis = v.number(0, 1)
    count = w.shape[axis]
    kept = [v.real(count), v.positive(count), np.array([v.one_of(0.0, 1.0, 2.5)], v.dtype)]
    bias, slope, level = (v.one_of(v.real(count), None) for _ in range(3))
    statistics = v.one_of(kept, [None] * 3)
    return [w, bias, *statistics, slope, level], {"axis": axis, "epsilon": v.one_of(1e-5, 0.5)}


def _unclipped(v: Values) -> Case:
    """Limits are not served, as no normalisation with a clip behind it is."""
    inputs, attributes = COMMON["batch_norm_whole_backward"](v)
    return inputs, {"relu": attributes["relu"]}


CASES: dict[str, Callable[[Values], Case]] = {
    "fold_normalization": _fold,
    "crop": _crop,
    "crop_backward": _crop_backward,
    "tile": _tile,
    "tile_backward": _tile_backward,
    "gather": _gather,
    "gather_backward": _gather_backward,
    **{name: case for name, case in LOSSES.items() if name != "segment_scores"},  # the host's
    **MARGINS,
    **{name: COMMON[name] for name in FACTORIES},
    "batch_norm_whole_backward": _unclipped,
    "slice": _slice,
    **{name: lambda v, name=name: _function(name, v) for name in ATTRIBUTES},
    **{
        f"{name}_backward": lambda v, name=name: _function_backward(name, v)
        for name in ATTRIBUTES
        if name not in ("floor", "greater", "leaky_relu", "round")
    },
    "product": _product,
    "product_backward": _product_backward,
    "maximum": _maximum,
    "maximum_backward": _maximum_backward,
    "parametric_relu": _parametric_relu,
    "parametric_relu_backward": _parametric_relu_backward,
    "total": _total,
    "total_backward": lambda v: _total_backward(False, v),
    "absolute_total": _total,
    "absolute_total_backward": lambda v: _total_backward(True, v),
    "square_total": _total,
    "square_total_backward": lambda v: _total_backward(True, v),
    "largest": _largest,
    "centre": _by_row,
    "standardize": _by_row,
    "standardize_backward": _standardize_backward,
}
