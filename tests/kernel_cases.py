"""Operands and attributes of the core's operations, drawn at random, for tests of kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import Case, Values, labelled

from demitasse.operations import VOCABULARY


def convolution(v: Values) -> tuple[Any, Any, dict[str, Any]]:
    groups = v.number(1, 3)
    inputs, outputs = groups * v.number(1, 4), groups * v.number(1, 20)
    attributes: dict[str, Any] = {"groups": groups}
    for name, low, high in (("stride", 1, 3), ("pad", 0, 3), ("dilation", 1, 2)):
        attributes[name] = (v.number(low, high), v.number(low, high))
    kernel = [v.number(1, 4), v.number(1, 4)]
    pairs = zip(kernel, attributes["dilation"], strict=True)
    image = [(k - 1) * d + 1 + v.number(0, 8) for k, d in pairs]
    x = v.real(v.number(1, 4), inputs, *image)
    return x, v.real(outputs, inputs // groups, *kernel), attributes


def _convolution(v: Values) -> Case:
    x, w, attributes = convolution(v)
    b = v.real(w.shape[0]) if v.one_of(True, False) else None
    return [x, w, b], attributes


def _result(name: str, attributes: dict[str, Any], **operands: Any) -> tuple[int, ...]:
    complete = {**VOCABULARY[name].attributes, **attributes}
    shapes = {key: None if a is None else a.shape for key, a in operands.items()}
    return tuple(VOCABULARY[name].shapes(shapes, complete)[0])


def _convolution_backward_data(v: Values) -> Case:
    x, w, attributes = convolution(v)
    dy = v.real(*_result("convolution", attributes, x=x, w=w, b=None))
    return [dy, w], {**attributes, "shape": x.shape}


def _convolution_backward_weights(v: Values) -> Case:
    x, w, attributes = convolution(v)
    dy = v.real(*_result("convolution", attributes, x=x, w=w, b=None))
    return [dy, x], {**attributes, "shape": w.shape}


def pooling(v: Values) -> tuple[Any, dict[str, Any]]:
    kernel = (v.number(1, 4), v.number(1, 4))
    attributes = {
        "kernel": kernel,
        "stride": tuple(v.number(1, k) for k in kernel),
        "pad": tuple(v.number(0, k - 1) for k in kernel),
        "rounding": v.one_of("ceil", "floor"),
    }
    # Few values, so that windows have equals.
    shape = v.number(1, 3), v.number(1, 5), *(k + v.number(0, 9) for k in kernel)
    return v.random.integers(-3, 4, shape).astype(v.dtype), attributes


def _pooling(v: Values) -> Case:
    x, attributes = pooling(v)
    return [x], attributes


def _pooling_average_backward(v: Values) -> Case:
    x, attributes = pooling(v)
    dy = v.real(*_result("pooling_average", attributes, x=x))
    return [dy], {**attributes, "shape": x.shape}


def _pooling_max_backward(v: Values) -> Case:
    x, attributes = pooling(v)
    dy = v.real(*_result("pooling_max", attributes, x=x))
    argmax = v.random.integers(0, x.shape[2] * x.shape[3], dy.shape).astype(np.int32)
    return [dy, argmax], {**attributes, "shape": x.shape}


def _elementwise(*operands: str) -> Callable[[Values], Case]:
    def case(v: Values) -> Case:
        shape = v.shape()
        return [v.real(*shape) for _ in operands], {"negative_slope": v.one_of(0.0, 0.1)}

    return case


def _dropout(v: Values) -> Case:
    ratio = v.one_of(0.0, 0.3, 0.5, 0.9)
    seed = v.number(-(2**63), 2**63)
    return [v.real(*v.shape()), *v.counters()], {"ratio": ratio, "seed": seed, "stream": v.number(0, 99)}


def _dropout_backward(v: Values) -> Case:
    dy = v.real(*v.shape())
    return [dy, v.random.integers(0, 2, dy.shape).astype(np.uint8)], {"ratio": v.one_of(0.3, 0.5)}


def _softmax(v: Values) -> Case:
    x = v.real(*v.shape()) * v.one_of(1, 30)
    return [x.astype(v.dtype)], {"axis": v.number(1, x.ndim - 1)}


def _softmax_backward(v: Values) -> Case:
    shape = v.shape()
    return [v.real(*shape), v.positive(*shape)], {"axis": v.number(1, len(shape) - 1)}


def _softmax_loss(v: Values) -> Case:
    x, label, attributes = labelled(v)
    kinds = v.one_of("valid", "full", "batch_size", "none")
    return [x, label], {**attributes, "normalization": kinds}


def _softmax_loss_backward(v: Values) -> Case:
    (x, label), attributes = _softmax_loss(v)
    return [v.real(), np.abs(x), label], attributes


def _accuracy(v: Values) -> Case:
    x, label, attributes = labelled(v)
    x = np.round(x).astype(v.dtype)  # so that there are ties
    return [x, label], {**attributes, "top_k": v.number(1, x.shape[attributes["axis"]])}


def lrn(v: Values) -> tuple[tuple[int, ...], dict[str, Any]]:
    shape = v.number(1, 3), v.number(1, 9), v.number(1, 7), v.number(1, 7)
    size, alpha, beta = v.one_of(1, 3, 5), v.one_of(1e-4, 0.5), v.one_of(0.75, 0.6)
    return shape, {"size": size, "alpha": alpha, "beta": beta, "k": v.one_of(1.0, 2.0)}


def _lrn(v: Values) -> Case:
    shape, attributes = lrn(v)
    return [v.real(*shape)], attributes


def _lrn_backward(v: Values) -> Case:
    shape, attributes = lrn(v)
    return [v.real(*shape), v.real(*shape), v.real(*shape), v.positive(*shape)], attributes


def affine(v: Values) -> tuple[Any, Any, dict[str, Any]]:
    shape = v.shape()
    axis = v.number(1, len(shape) - 1)
    w = v.real(v.number(1, 20), int(np.prod(shape[axis:])))
    transpose = v.one_of(True, False)
    w = np.ascontiguousarray(w.T) if transpose else w
    return v.real(*shape), w, {"axis": axis, "transpose": transpose}


def _inner_product(v: Values) -> Case:
    x, w, attributes = affine(v)
    outputs = w.shape[1] if attributes["transpose"] else w.shape[0]
    return [x, w, v.real(outputs) if v.one_of(True, False) else None], attributes


def _inner_product_backward_data(v: Values) -> Case:
    x, w, attributes = affine(v)
    dy = v.real(*_result("inner_product", attributes, x=x, w=w, b=None))
    return [dy, w], {**attributes, "shape": x.shape}


def _inner_product_backward_weights(v: Values) -> Case:
    x, w, attributes = affine(v)
    dy = v.real(*_result("inner_product", attributes, x=x, w=w, b=None))
    return [dy, x], {**attributes, "shape": w.shape}


def normalised(v: Values) -> tuple[Any, list[Any]]:
    """Images or vectors of some channels, and kept statistics."""
    x = v.real(v.number(2, 6), v.number(1, 20), *(v.number(1, 9) for _ in range(v.one_of(0, 1, 2))))
    channels = x.shape[1]
    return x, [v.real(channels), v.positive(channels), v.positive(1)]


def _learned(v: Values, channels: int) -> list[Any]:
    return [v.real(channels) if v.one_of(True, False) else None for _ in range(2)]


def _away_from_kink(
    dy: Any, x: Any, average: Any, inverse: Any, w: Any, b: Any, kinks: tuple[float, ...] = (0.0,)
) -> Any:
    """dy, but 0 where float32's rounding could put a result on the other side of a kink, the ReLU's."""
    shape = (-1, *[1] * (x.ndim - 2))
    numbers = (np.ones_like(inverse) if w is None else w, np.zeros_like(inverse) if b is None else b)
    average, inverse, w, b = (v.astype(np.float64).reshape(shape) for v in (average, inverse, *numbers))
    z = w * (x - average) * inverse + b
    near = np.any([np.abs(z - kink) < 1e-4 for kink in kinks], axis=0)
    return np.where(near, 0, dy).astype(dy.dtype)


def _batch_norm(v: Values) -> Case:
    x, kept = normalised(v)
    attributes = {"keep": v.one_of(0.5, 1.0), "epsilon": v.one_of(0.01, 1.0)}
    attributes["averaged"] = v.one_of(False, True)
    return [x, *kept, *_learned(v, x.shape[1])], {**attributes, "relu": v.one_of(True, False)}


def _batch_norm_backward(v: Values) -> Case:
    x, (average, inverse, _) = normalised(v)
    w, b = _learned(v, x.shape[1])
    dy = _away_from_kink(v.real(*x.shape), x, average, inverse, w, b)
    return [dy, x, w, b, average, inverse], {"relu": v.one_of(True, False)}


def _batch_norm_inference(v: Values) -> Case:
    x, kept = normalised(v)
    attributes = {"epsilon": v.one_of(0.01, 1.0), "relu": v.one_of(True, False)}
    return [x, *kept, *_learned(v, x.shape[1])], attributes


def _batch_norm_inference_backward(v: Values) -> Case:
    x, (mean, variance, factor) = normalised(v)
    w, b = _learned(v, x.shape[1])
    epsilon = v.one_of(0.01, 1.0)
    inverse = 1 / np.sqrt(variance / factor + epsilon)
    dy = _away_from_kink(v.real(*x.shape), x, mean / factor, inverse, w, b)
    attributes = {"epsilon": epsilon, "relu": v.one_of(True, False)}
    return [dy, x, mean, variance, factor, w, b], attributes


def _channel_moments(v: Values) -> Case:
    return [normalised(v)[0]], {}


def moments_of(x: Any) -> Any:
    """What channel_moments makes of x, in float64."""
    axes, wide = (0, *range(2, x.ndim)), x.astype(np.float64)
    return np.concatenate([wide.sum(axes), (wide**2).sum(axes), [x.size / x.shape[1]]])


def _settle_moments(v: Values) -> Case:
    x, kept = normalised(v)
    attributes = {"keep": v.one_of(0.5, 1.0), "epsilon": v.one_of(0.01, 1.0)}
    return [moments_of(x), *kept], {**attributes, "averaged": v.one_of(False, True)}


def _batch_norm_whole_backward(v: Values) -> Case:
    made = v.one_of(_batch_norm_backward, _batch_norm_clip_backward)
    (dy, x, *others), attributes = made(v)
    sums = v.random.standard_normal(2 * x.shape[1])
    return [dy, x, *others, sums, moments_of(x)], attributes


def _count_labels(v: Values) -> Case:
    return [v.labels(v.number(1, 40), 3)], {"ignore_label": v.number(0, 3)}


def _over_divisor(v: Values) -> Case:
    return [v.real(*v.shape()), np.array([float(v.number(0, 5))])], {"share": v.one_of(0.25, 1.0)}


LIMITS = {"least": -0.25, "most": 0.5}


def _batch_norm_clip(v: Values) -> Case:
    inputs, attributes = _batch_norm(v)
    return inputs, {**attributes, **LIMITS}


def _batch_norm_clip_backward(v: Values) -> Case:
    (dy, *others), _ = _batch_norm_backward(v)
    x, w, b, average, inverse = others
    dy = _away_from_kink(dy, x, average, inverse, w, b, (-0.25, 0.5))
    return [dy, *others], {"relu": False, **LIMITS}


def _batch_norm_inference_clip(v: Values) -> Case:
    inputs, attributes = _batch_norm_inference(v)
    return inputs, {**attributes, **LIMITS}


def _batch_norm_inference_clip_backward(v: Values) -> Case:
    (dy, *others), attributes = _batch_norm_inference_backward(v)
    x, mean, variance, factor, w, b = others
    inverse = 1 / np.sqrt(variance / factor + attributes["epsilon"])
    dy = _away_from_kink(dy, x, mean / factor, inverse, w, b, (-0.25, 0.5))
    return [dy, *others], {**attributes, "relu": False, **LIMITS}


def scaled(v: Values) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    x = v.real(*v.shape())
    axis = v.number(0, x.ndim - 1)
    return x, x.shape[axis : v.number(axis, x.ndim)], {"axis": axis}


def _scale(v: Values) -> Case:
    x, among, attributes = scaled(v)
    return [x, v.real(*among), v.real(*among) if v.one_of(True, False) else None], attributes


def _scale_backward(v: Values) -> Case:
    x, among, attributes = scaled(v)
    return [v.real(*x.shape), x, v.real(*among)], attributes


def _sum(v: Values) -> Case:
    shape, count = v.shape(), v.number(1, 4)
    coefficients = tuple(float(v.number(-2, 2)) for _ in range(count))
    return [v.real(*shape) for _ in range(count)], {"coefficients": v.one_of((), coefficients)}


def _sum_backward(v: Values) -> Case:
    (*xs,), attributes = _sum(v)
    return xs[:1], {**attributes, "shapes": tuple(x.shape for x in xs)}


def joined(v: Values) -> tuple[list[tuple[int, ...]], int]:
    shape = v.shape()
    axis = v.number(0, len(shape) - 1)
    extents = [v.number(1, 5) for _ in range(v.number(1, 4))]
    return [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents], axis


def _concat(v: Values) -> Case:
    shapes, axis = joined(v)
    return [v.real(*shape) for shape in shapes], {"axis": axis}


def _concat_backward(v: Values) -> Case:
    shapes, axis = joined(v)
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    return [v.real(*whole)], {"axis": axis, "shapes": tuple(shapes)}


def _fill(v: Values) -> Case:
    return [v.real(*v.shape())], {"value": v.one_of(0.0, -1.5)}


def _accumulate(v: Values) -> Case:
    shape = v.shape()
    return [v.real(*shape), v.real(*shape)], {}


def _image_transform(v: Values) -> Case:
    shape = v.number(1, 5), v.number(1, 3), v.number(2, 9), v.number(2, 9)
    x = v.random.integers(0, 256, shape).astype(v.one_of("uint8", "int32", v.dtype))
    mean = v.one_of(None, shape[1:], (shape[1], 1, 1), (1, 1, 1))
    attributes = {
        "scale": v.one_of(1.0, 1 / 256),
        "crop": v.one_of(0, v.number(1, min(shape[2:]))),
        "mirror": v.one_of(True, False),
        "random": v.one_of(True, False),
        "seed": v.number(0, 2**40),
        "stream": v.number(0, 99),
    }
    return [x, None if mean is None else v.positive(*mean), *v.counters()], attributes


def _momentum_update(v: Values) -> Case:
    sizes = [v.number(1, 9) for _ in range(v.number(1, 4))]
    edges = np.cumsum([0, *sizes])
    segments = tuple(
        (int(a), int(b), v.one_of(0.5, 1.0, 2.0), v.one_of(0.0, 1.0))
        for a, b in itertools.pairwise(edges)
    )
    count = int(edges[-1])
    attributes = {
        "momentum": 0.9,
        "decay": v.one_of(0.0, 0.004),
        "regularization": v.one_of("L1", "L2"),
        "segments": segments,
    }
    scale = v.one_of(None, np.array([0.25]))
    return [*(v.real(count) for _ in range(3)), np.array([0.01]), scale], attributes


CASES: dict[str, Callable[[Values], Case]] = {
    "accumulate": _accumulate,
    "accuracy": _accuracy,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "batch_norm_inference": _batch_norm_inference,
    "batch_norm_inference_backward": _batch_norm_inference_backward,
    "batch_norm_clip": _batch_norm_clip,
    "batch_norm_clip_backward": _batch_norm_clip_backward,
    "batch_norm_inference_clip": _batch_norm_inference_clip,
    "batch_norm_inference_clip_backward": _batch_norm_inference_clip_backward,
    "channel_moments": _channel_moments,
    "settle_moments": _settle_moments,
    "batch_norm_whole_backward": _batch_norm_whole_backward,
    "count_labels": _count_labels,
    "over_divisor": _over_divisor,
    "concat": _concat,
    "concat_backward": _concat_backward,
    "convolution": _convolution,
    "convolution_backward_data": _convolution_backward_data,
    "convolution_backward_weights": _convolution_backward_weights,
    "dropout": _dropout,
    "dropout_backward": _dropout_backward,
    "fill": _fill,
    "image_transform": _image_transform,
    "inner_product": _inner_product,
    "inner_product_backward_data": _inner_product_backward_data,
    "inner_product_backward_weights": _inner_product_backward_weights,
    "lrn_across_channels": _lrn,
    "lrn_across_channels_backward": _lrn_backward,
    "lrn_within_channel": _lrn,
    "lrn_within_channel_backward": _lrn_backward,
    "momentum_update": _momentum_update,
    "pooling_average": _pooling,
    "pooling_average_backward": _pooling_average_backward,
    "pooling_max": _pooling,
    "pooling_max_backward": _pooling_max_backward,
    "relu": _elementwise("x"),
    "relu_backward": _elementwise("dy", "y"),
    "scale": _scale,
    "scale_backward": _scale_backward,
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "softmax_loss": _softmax_loss,
    "softmax_loss_backward": _softmax_loss_backward,
    "sum": _sum,
    "sum_backward": _sum_backward,
}
