"""Operands and attributes of the words for statistics of a batch that workers share, drawn at random,
for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from agreement import Case, Values
from kernel_cases import CASES as OF_ONE_WORKER
from kernel_cases import normalised


def _channel_moments(v: Values) -> Case:
    x, _ = normalised(v)
    return [x], {}


def _settle_moments(v: Values) -> Case:
    """Of single numbers, too."""
    x, kept = normalised(v)
    whole = x[: v.one_of(len(x), 1)].astype(np.float64).reshape(-1, x.shape[1])
    moments = np.concatenate([whole.sum(0), (whole**2).sum(0), [len(whole)]])
    attributes = {"keep": v.one_of(0.5, 1.0), "epsilon": v.one_of(0.01, 1.0)}
    return [moments, *kept], {**attributes, "averaged": v.one_of(False, True)}


def _whole_backward(v: Values) -> Case:
    (dy, x, *others), attributes = OF_ONE_WORKER["batch_norm_backward"](v)
    channels, n = x.shape[1], 2 * x.size // x.shape[1]  # of two workers
    sums = n * v.random.standard_normal(2 * channels)
    moments = np.append(v.random.standard_normal(2 * channels), n)
    return [dy, x, *others, sums, moments], attributes


def _count_labels(v: Values) -> Case:
    kind = v.one_of(v.dtype, "int32", "uint8", "int64")
    label = v.random.uniform(0, 4, v.shape()).astype(kind)  # floats with fractions
    return [label], {"ignore_label": v.one_of(0, 3, 255, -1)}


def _over_labels(v: Values) -> Case:
    x = v.real(*v.one_of((), v.shape()))
    return [np.asarray(x, v.dtype), np.array([v.one_of(0.0, 1.0, 7.0)])], {"share": v.one_of(1.0, 0.3)}


CASES: dict[str, Callable[[Values], Case]] = {
    "channel_moments": _channel_moments,
    "settle_moments": _settle_moments,
    "batch_norm_whole_backward": _whole_backward,
    "count_labels": _count_labels,
    "over_labels": _over_labels,
}
