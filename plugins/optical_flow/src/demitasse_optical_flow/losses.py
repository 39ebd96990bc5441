"""Losses of flows and disparities, which ignore places where the ground truth is NaN, and the
downsampling of flows.

Dosovitskiy et al. 2015, *FlowNet*, section 4, *Endpoint error*; Sun et al. 2018, *PWC-Net*, section 3,
*Training loss*, whose robust loss is the case p = 1, q = 0.4 and epsilon = 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
About: TypeAlias = Mapping[str, Any]


class _Terms:
    """The terms of a loss: differences (samples x channels x places), and what is computed from them."""

    def __init__(self, a: Any, b: Any, iteration: Any, about: About) -> None:
        samples, channels = a.shape[:2]
        given = np.asarray(a, np.float64).reshape(samples, channels, -1)
        if b is not None:
            given = given - np.asarray(b, np.float64).reshape(given.shape)
        self.known = ~np.isnan(given)
        self.entries = float(self.known.sum()) / channels
        self.over = {"valid": max(self.entries, 1.0), "batch_size": float(samples), "none": 1.0}[
            about["normalization"]
        ]
        self.difference = np.where(self.known, given, 0.0)
        size = np.abs(self.difference)
        self.counted = self.known
        if about["plateau"] > 0 and not about["by_location"]:
            self.counted = self.known & (size >= about["plateau"])
            size = np.where(self.counted, size, 0.0)
        stage = max(n for n, start in enumerate(about["starts"]) if start <= int(iteration[0]))
        self.p, self.q = float(about["p"][stage]), float(about["q"][stage])
        self.scale = 1 / channels if about["prescale"] else 1.0
        self.inner = size + about["p_epsilon"]
        self.total = self.scale * _power(self.inner, self.p).sum(1, keepdims=True)
        self.raised = np.ones(self.total.shape, bool)
        if about["plateau"] > 0 and about["by_location"]:
            self.raised = self.total >= about["plateau"] ** 2
        self.outer = np.where(self.raised, self.total, 0.0) + about["q_epsilon"]


def loss(a: Any, b: Any, iteration: Any, about: About) -> tuple[float, float]:
    """Return the loss, and how many differences are known, over the channels; ``b`` may be None."""
    terms = _Terms(a, b, iteration, about)
    return float(_power(terms.outer, terms.q).sum()) / terms.over, terms.entries


def loss_backward(dloss: Any, a: Any, b: Any, iteration: Any, about: About) -> Reals:
    """Return da, in the shape of a."""
    terms = _Terms(a, b, iteration, about)
    slope = _slope(terms.outer, terms.q) * terms.raised * terms.scale * _slope(terms.inner, terms.p)
    signed = np.where(terms.difference > 0, slope, -slope)
    given = np.asarray(dloss, np.float64).reshape(-1)[0] / terms.over
    made: Reals = np.where(terms.counted, given * signed, 0.0).reshape(a.shape)
    return made


def _power(x: Reals, power: float) -> Reals:
    return np.asarray(x if power == 1 else np.power(x, power))


def _slope(x: Reals, power: float) -> Reals:
    """Return power * x^(power - 1), with 0 instead of infinity at 0."""
    if power == 1:
        return np.ones_like(x)
    there = x > 0
    return np.where(there, power * np.power(np.where(there, x, 1.0), power - 1), 0.0)


def downsampled(x: Any, about: About) -> Reals:
    """Return x at another number of places, usually fewer, ignoring NaN. A place is NaN if the weight of
    NaN around it is more than half of the weight of numbers."""
    rows, columns = (
        _weights(extent, size) for extent, size in zip(x.shape[2:], about["size"], strict=True)
    )
    given = np.asarray(x, np.float64)
    known = ~np.isnan(given)

    def summed(values: Any) -> Reals:
        return np.asarray(np.einsum("ri,ncij,sj->ncrs", rows, values, columns, optimize=True))

    weight, unknown = summed(known.astype(np.float64)), summed((~known).astype(np.float64))
    total = summed(np.where(known, given, 0.0))
    there = weight > 0
    weight = np.where(there, weight, 1.0)
    return np.where(there & (unknown / weight <= 0.5), total / weight, math.nan)


def _weights(extent: int, size: int) -> Reals:
    """Return the weight of each of ``extent`` places for each of ``size``, in single precision as in the
    fork. Only places count whose distance to the nearest place is at most the spacing of the results,
    rounded up."""
    single = np.float32
    apart = single(extent - 1) / single(size - 1)
    at = np.arange(size, dtype=single) / single(size - 1) * single(extent - 1)
    middle = np.floor(at + single(0.5))
    place = np.arange(extent, dtype=single)
    distance = np.abs(place - at[:, None])
    if apart == 0:  # a single place is the mean of all
        return np.ones((size, extent))
    weight = np.maximum(0, 1 - distance / apart)
    near = np.abs(place - middle[:, None]) <= np.ceil(apart)
    return np.asarray(weight * near, np.float64)
