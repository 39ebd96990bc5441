"""The solver's update compared with its recurrence, one number at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Apply = Callable[..., Any]


@pytest.mark.parametrize("regularization", ["L2", "L1"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 2e-6)])
def test_three_steps_follow_the_recurrence(
    apply: Apply, regularization: str, dtype: str, tolerance: float
) -> None:
    rng = np.random.default_rng(8)
    segments = ((0, 3, 1.0, 1.0), (3, 5, 2.0, 0.0), (5, 9, 0.5, 3.0))
    momentum, decay = 0.9, 0.05
    parameter, history = rng.normal(size=9).astype(dtype), np.zeros(9, dtype)
    expected = [(float(p), 0.0) for p in parameter]
    for rate in (0.1, 0.01, 0.02):
        gradient = rng.normal(size=9).astype(dtype)
        parameter, history = apply(
            "momentum_update",
            parameter,
            gradient,
            history,
            np.array([rate]),
            momentum=momentum,
            decay=decay,
            regularization=regularization,
            segments=segments,
        )
        for start, stop, rate_multiplier, decay_multiplier in segments:
            for i in range(start, stop):
                p, h = expected[i]
                pull = p if regularization == "L2" else (p > 0) - (p < 0)
                step = float(gradient[i]) + decay * decay_multiplier * pull
                h = momentum * h + rate * rate_multiplier * step
                expected[i] = (p - h, h)
    assert np.allclose(parameter, [p for p, _ in expected], rtol=tolerance, atol=tolerance)
    assert np.allclose(history, [h for _, h in expected], rtol=tolerance, atol=tolerance)


def test_the_memory_itself_is_updated(apply: Apply) -> None:
    """A slice of flat memory changes in place; its neighbours do not."""
    from demitasse import Place, Request, TensorSpec
    from demitasse.operations import VOCABULARY
    from demitasse_reference import plugin

    flat = {name: np.ones(6, np.float32) for name in ("parameter", "gradient", "history")}
    rate = np.array([0.5])
    operands = [flat["parameter"][2:4], flat["gradient"][2:4], flat["history"][2:4], rate]
    specs = tuple(TensorSpec(a.shape, str(a.dtype)) for a in operands)
    operation = VOCABULARY["momentum_update"]
    attributes = {**operation.attributes, "segments": ((0, 2, 1.0, 1.0),)}
    (candidate,) = plugin.kernels(Request(operation, specs, (), attributes, Place("machine")))
    work = candidate.bind(operands, [], None)
    work()
    assert flat["parameter"].tolist() == [1, 1, 0.5, 0.5, 1, 1]
    assert flat["history"].tolist() == [1, 1, 0.5, 0.5, 1, 1]
    assert flat["gradient"].tolist() == [1] * 6
    rate[0] = 1.0
    work()
    assert flat["parameter"].tolist() == [1, 1, -0.5, -0.5, 1, 1]
