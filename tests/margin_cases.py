"""Operands and attributes of products with a margin of the angle, drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np


def _case(v: Any) -> Any:
    samples, classes = v.number(1, 9), v.number(1, 40)
    length = np.asarray(v.positive(samples))
    x = length[:, None] * np.cos(v.random.uniform(0, np.pi, (samples, classes)))
    attributes = {
        "margin": v.one_of(1, 2, 3, 4),
        "base": v.one_of(1.0, 40.0),
        "gamma": v.one_of(0.0, 0.1),
        "power": v.one_of(1.0, 2.0),
        "least": v.one_of(0.0, 3.0),
        "first": v.one_of(0, 7),
    }
    iteration = np.array([v.one_of(0, 3, 2**33)], np.uint64)
    return [x.astype(v.dtype), length, v.labels(samples, classes), iteration], attributes


def _backward(v: Any) -> Any:
    (x, length, label, _), attributes = _case(v)
    factor = np.array([v.one_of(0.0, 5.0, 1000.0)], v.dtype)
    return [v.real(*x.shape), x, length, label, factor], {"margin": attributes["margin"]}


CASES = {"angular_margin": _case, "angular_margin_backward": _backward}
