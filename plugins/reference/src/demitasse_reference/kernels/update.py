"""Solver updates of a slice of flat memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse_reference.kernels.arrays import Kernels, Reals


def momentum_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    rate: Reals,
    *,
    momentum: float,
    decay: float,
    regularization: str,
    segments: Sequence[tuple[int, int, float, float]],
) -> tuple[Reals, Reals]:
    parameter, history = parameter.copy(), history.copy()
    for start, stop, rate_multiplier, decay_multiplier in segments:
        part = slice(start, stop)
        pull = {"L2": parameter[part], "L1": np.sign(parameter[part])}[regularization]
        step = gradient[part] + decay * decay_multiplier * pull
        history[part] = momentum * history[part] + rate[0] * rate_multiplier * step
        parameter[part] -= history[part]
    return parameter, history


KERNELS: Kernels = {"momentum_update": momentum_update}
