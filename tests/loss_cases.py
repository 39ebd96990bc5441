"""Operands and attributes of losses' words, drawn at random, for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from agreement import labelled


def _pair(v: Any) -> Any:
    x = v.real(*v.shape())
    return [x, v.real(len(x), x.size // len(x))], {}


def _targets(v: Any) -> Any:
    x = v.real(*v.shape()) * v.one_of(1, 40)
    target = v.random.uniform(-1.4, 1.4, x.shape).astype(v.dtype)
    kinds = v.one_of("valid", "full", "batch_size", "none")
    return [x.astype(v.dtype), target], {"ignore_label": v.one_of(None, -1, 0), "normalization": kinds}


def _scores(v: Any) -> Any:
    x = v.real(*v.shape())
    return [x, v.labels(len(x), x.size // len(x))], {"norm": v.one_of("L1", "L2")}


def _shares(v: Any) -> Any:
    (x, label), attributes = _scores(v)
    return [np.maximum(x, 0), label], attributes


def _infogain(v: Any) -> Any:
    x, label, attributes = labelled(v)
    classes, label = x.shape[attributes["axis"]], label.reshape(len(x), -1)
    kinds = v.one_of("valid", "full", "batch_size", "none")
    return [x, label, v.positive(classes, classes)], {**attributes, "normalization": kinds}


def _segments(v: Any) -> Any:
    classes = v.number(1, 9)
    x = v.real(v.number(1, 3), classes, v.number(1, 9), v.number(1, 9))
    x = np.round(x, v.one_of(0, 3)).astype(v.dtype)  # of equals the later class counts
    label = v.random.integers(0, classes, (len(x), 1, *x.shape[2:])).astype(v.dtype)
    ignored = v.one_of((), (255,), (0, 255))
    if ignored:
        label[v.random.uniform(size=label.shape) < 0.2] = 255
    return [x, label], {"ignored": ignored}


def _infogain_backward(v: Any) -> Any:
    (x, label, matrix), attributes = _infogain(v)
    return [v.real(), np.abs(x), label, matrix], attributes


def _contrast(v: Any) -> Any:
    samples, length = v.number(1, 9), v.number(1, 40)
    similar = v.random.integers(0, 2, samples).astype(v.dtype)
    attributes = {"margin": v.one_of(1.0, 5.0), "legacy": v.one_of(True, False)}
    return [v.real(samples, length), v.real(samples, length), similar], attributes


def backward(case: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def with_gradient(v: Any) -> Any:
        inputs, attributes = case(v)
        return [v.real(), *inputs], attributes

    return with_gradient


CASES = {
    "half_squared_distance": _pair,
    "half_squared_distance_backward": backward(_pair),
    "sigmoid_cross_entropy_loss": _targets,
    "sigmoid_cross_entropy_loss_backward": backward(_targets),
    "hinge_loss": _scores,
    "hinge_loss_backward": backward(_scores),
    "negative_log_likelihood": _shares,
    "negative_log_likelihood_backward": backward(_shares),
    "infogain_loss": _infogain,
    "infogain_loss_backward": _infogain_backward,
    "segment_scores": _segments,
    "contrastive_loss": _contrast,
    "contrastive_loss_backward": backward(_contrast),
}
