"""Solver updates of a slice of flat memory, and the norms that some of them need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from demitasse_reference.kernels.arrays import Kernels, Reals, Values

Segments = Sequence[tuple[int, int, float, float]]
"""(start, stop, rate multiplier, decay multiplier) of each parameter's part of the slice."""


def momentum_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """Stochastic gradient descent with momentum, in Caffe's order: the history includes the rate."""
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    return _moved(parameter, history, slope, momentum, _rates(rate, segments))


def nesterov_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """Nesterov's accelerated gradient (Sutskever et al. 2013), at the look-ahead point."""
    parameter, history = parameter.copy(), history.copy()
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    for part, step in _rates(rate, segments):
        before = history[part].copy()
        history[part] = momentum * before + step * slope[part]
        parameter[part] -= (1 + momentum) * history[part] - momentum * before
    return parameter, history


def adagrad_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    delta: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """Duchi, Hazan and Singer 2011."""
    parameter = parameter.copy()
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    history = history + slope**2
    for part, step in _rates(rate, segments):
        parameter[part] -= step * slope[part] / (np.sqrt(history[part]) + delta)
    return parameter, history


def rmsprop_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    rms_decay: float,
    delta: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """Tieleman and Hinton 2012, lecture 6.5."""
    parameter = parameter.copy()
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    history = rms_decay * history + (1 - rms_decay) * slope**2
    for part, step in _rates(rate, segments):
        parameter[part] -= step * slope[part] / (np.sqrt(history[part]) + delta)
    return parameter, history


def adadelta_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    second: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    delta: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals, Reals]:
    """Zeiler 2012, algorithm 1."""
    parameter = parameter.copy()
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    history = momentum * history + (1 - momentum) * slope**2
    change = slope * np.sqrt((second + delta) / (history + delta))
    second = momentum * second + (1 - momentum) * change**2
    for part, step in _rates(rate, segments):
        parameter[part] -= step * change[part]
    return parameter, history, second


def adam_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    second: Reals,
    iteration: Values,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    momentum2: float,
    delta: float,
    decay: float,
    regularization: str,
    segments: Segments,
) -> tuple[Reals, Reals, Reals]:
    """Kingma and Ba 2015, in the order that its section 2 calls more efficient."""
    parameter = parameter.copy()
    slope = _regularized(parameter, gradient, scale, decay, regularization, segments)
    history = momentum * history + (1 - momentum) * slope
    second = momentum2 * second + (1 - momentum2) * slope**2
    count = float(iteration[0]) + 1
    correction = np.sqrt(1 - momentum2**count) / (1 - momentum**count)
    for part, step in _rates(rate, segments):
        parameter[part] -= step * correction * history[part] / (np.sqrt(second[part]) + delta)
    return parameter, history, second


def lars_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    squares: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    trust: float,
    decay: float,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """You, Gitman and Ginsburg 2017, algorithm 1; parameters without decay keep the global rate."""
    slope = _regularized(parameter, gradient, scale, decay, "L2", segments)
    steps = []
    for (part, step), (length, steepness), segment in zip(
        _rates(rate, segments), _lengths(squares, scale), segments, strict=True
    ):
        local = 1.0
        if segment[3] != 0 and length > 0 and steepness > 0:
            local = trust * length / (steepness + decay * segment[3] * length)
        steps.append((part, step * local))
    return _moved(parameter, history, slope, momentum, steps)


def larc_update(
    parameter: Reals,
    gradient: Reals,
    history: Reals,
    squares: Reals,
    rate: Reals,
    scale: Reals | None = None,
    *,
    momentum: float,
    trust: float,
    clip: bool,
    decay: float,
    segments: Segments,
) -> tuple[Reals, Reals]:
    """As in NVIDIA's fork: trust times the length of a parameter over that of its gradient multiplies
    the rate or, with ``clip``, bounds it."""
    slope = _regularized(parameter, gradient, scale, decay, "L2", segments)
    steps = []
    for (length, steepness), (start, stop, multiplier, _) in zip(
        _lengths(squares, scale), segments, strict=True
    ):
        local = trust * length / steepness if length > 0 and steepness > 0 else 1.0
        step = min(rate[0], local) if clip else rate[0] * local
        steps.append((slice(start, stop), step if multiplier > 0 else 0.0))
    return _moved(parameter, history, slope, momentum, steps)


def squares(parameter: Reals, gradient: Reals, total: Reals, *, segments: Segments) -> Reals:
    sums = [
        [np.square(values[start:stop]).sum() for values in (parameter, gradient)]
        for start, stop, *_ in segments
    ]
    return np.array(sums, np.float64).reshape(total.shape)


def _regularized(
    parameter: Reals,
    gradient: Reals,
    scale: Reals | None,
    decay: float,
    regularization: str,
    segments: Segments,
) -> Reals:
    """Return the scaled gradient of the loss plus the gradient of the regularization term."""
    slope = gradient.copy() if scale is None else scale[0] * gradient
    pull = {"L2": parameter, "L1": np.sign(parameter)}[regularization]
    for start, stop, _, multiplier in segments:
        slope[start:stop] += decay * multiplier * pull[start:stop]
    return slope


def _moved(
    parameter: Reals,
    history: Reals,
    slope: Reals,
    momentum: float,
    steps: Iterable[tuple[slice, float]],
) -> tuple[Reals, Reals]:
    """Return the parameter and its history after a step with each part's own size."""
    parameter, history = parameter.copy(), history.copy()
    for part, step in steps:
        history[part] = momentum * history[part] + step * slope[part]
        parameter[part] -= history[part]
    return parameter, history


def _lengths(squares: Reals, scale: Reals | None) -> Reals:
    """Return the lengths of each parameter and of its scaled gradient: (segments, 2)."""
    lengths: Reals = np.sqrt(squares.reshape(-1, 2))
    lengths[:, 1] *= 1.0 if scale is None else scale[0]
    return lengths


def _rates(rate: Reals, segments: Segments) -> Iterator[tuple[slice, float]]:
    """Yield each segment's place and learning rate."""
    for start, stop, multiplier, _ in segments:
        yield slice(start, stop), float(rate[0]) * multiplier


KERNELS: Kernels = {
    "adadelta_update": adadelta_update,
    "adagrad_update": adagrad_update,
    "adam_update": adam_update,
    "larc_update": larc_update,
    "lars_update": lars_update,
    "momentum_update": momentum_update,
    "nesterov_update": nesterov_update,
    "rmsprop_update": rmsprop_update,
    "squares": squares,
}
