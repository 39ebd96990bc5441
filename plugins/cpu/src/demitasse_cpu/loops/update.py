"""Solver updates of flat memory in one pass, one segment of constant learning rate and decay after the
other.

``limits`` are the segments' (start, stop), ``multipliers`` their (rate, decay), and ``scale`` one number
by which the gradient is multiplied. Every loop takes a range of elements. The formulas are those of the
vocabulary's operations of the same names: g is scale * gradient + decay * parameter or, with ``l1``,
decay * the parameter's sign. Rate and decay are multiplied by the segment's multipliers.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled, inlined


@inlined
def _pull(value: float, zero: float, one: float, l1: bool) -> float:
    """Return what the decay is multiplied by: the value, or its sign. All numbers have one type, because
    any other would make the loop compute in double precision."""
    if l1 and value > zero:
        return one
    if l1 and value < zero:
        return -one
    return value


@inlined
def _move(
    value: Array, slope: Array, past: Array, pull: float, factor: float, kept: float, step: float
) -> None:
    """Compute past = kept * past + step * g, where g = pull * value + factor * slope; then value -=
    past."""
    for i in range(value.size):
        g = pull * value[i] + factor * slope[i]
        past[i] = kept * past[i] + step * g
        value[i] -= past[i]


@compiled()
def momentum_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    momentum: float,
    begin: int,
    end: int,
) -> None:
    """Compute history = momentum * history + rate * g; parameter -= history."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, kept = real(scale[0]), real(momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step, pull = real(rate[0] * multipliers[segment, 0]), real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope, past = parameter[start:stop], gradient[start:stop], history[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            past[i] = kept * past[i] + step * g
            value[i] -= past[i]


@compiled()
def nesterov_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    momentum: float,
    begin: int,
    end: int,
) -> None:
    """As momentum_update, with parameter -= (1 + momentum) * history - momentum * history before
    (Sutskever et al. 2013)."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, kept, ahead = real(scale[0]), real(momentum), real(1 + momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step, pull = real(rate[0] * multipliers[segment, 0]), real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope, past = parameter[start:stop], gradient[start:stop], history[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            before = kept * past[i]
            past[i] = before + step * g
            value[i] -= ahead * past[i] - before


@compiled()
def adagrad_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    delta: float,
    begin: int,
    end: int,
) -> None:
    """Compute history += g^2; parameter -= rate * g / (sqrt(history) + delta) (Duchi, Hazan and Singer
    2011)."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, least = real(scale[0]), real(delta)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step, pull = real(rate[0] * multipliers[segment, 0]), real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope, square = parameter[start:stop], gradient[start:stop], history[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            square[i] += g * g
            value[i] -= step * g / (sqrt(square[i]) + least)


@compiled()
def rmsprop_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    rms_decay: float,
    delta: float,
    begin: int,
    end: int,
) -> None:
    """Compute history = rms_decay * history + (1 - rms_decay) * g^2; the step is AdaGrad's (Tieleman and
    Hinton 2012)."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, least = real(scale[0]), real(delta)
    kept, new = real(rms_decay), real(1 - rms_decay)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step, pull = real(rate[0] * multipliers[segment, 0]), real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope, square = parameter[start:stop], gradient[start:stop], history[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            square[i] = kept * square[i] + new * (g * g)
            value[i] -= step * g / (sqrt(square[i]) + least)


@compiled()
def adadelta_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    second: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    momentum: float,
    delta: float,
    begin: int,
    end: int,
) -> None:
    """Update ``history`` and ``second``, the running means of g^2 and of the squares of changes. A
    change is g * sqrt((second + delta) / (history + delta)) (Zeiler 2012, algorithm 1)."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, least = real(scale[0]), real(delta)
    kept, new = real(momentum), real(1 - momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step, pull = real(rate[0] * multipliers[segment, 0]), real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope = parameter[start:stop], gradient[start:stop]
        square, moved = history[start:stop], second[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            square[i] = kept * square[i] + new * (g * g)
            change = g * sqrt((moved[i] + least) / (square[i] + least))
            moved[i] = kept * moved[i] + new * (change * change)
            value[i] -= step * change


@compiled()
def adam_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    second: Array,
    iteration: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    l1: bool,
    momentum: float,
    momentum2: float,
    delta: float,
    begin: int,
    end: int,
) -> None:
    """Update ``history`` and ``second``, the running means of g and g^2, whose bias the rate corrects
    (Kingma and Ba 2015, at the end of section 2). ``iteration`` counts from 0."""
    real = parameter.dtype.type
    zero, one = real(0), real(1)
    factor, least = real(scale[0]), real(delta)
    kept, new, kept2, new2 = real(momentum), real(1 - momentum), real(momentum2), real(1 - momentum2)
    count = float(iteration[0]) + 1.0
    correction = sqrt(1.0 - momentum2**count) / (1.0 - momentum**count)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step = real(rate[0] * multipliers[segment, 0] * correction)
        pull = real(decay * multipliers[segment, 1])
        if start >= stop:
            continue
        value, slope = parameter[start:stop], gradient[start:stop]
        mean, square = history[start:stop], second[start:stop]
        for i in range(value.size):
            g = pull * _pull(value[i], zero, one, l1) + factor * slope[i]
            mean[i] = kept * mean[i] + new * g
            square[i] = kept2 * square[i] + new2 * (g * g)
            value[i] -= step * mean[i] / (sqrt(square[i]) + least)


@compiled()
def lars_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    squares: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    momentum: float,
    trust: float,
    begin: int,
    end: int,
) -> None:
    """As momentum_update, but in each segment that decays, the rate is multiplied by trust * |parameter|
    / (|scale * gradient| + decay * |parameter|). ``squares`` has |parameter|^2 and |gradient|^2 of each
    segment (You, Gitman and Ginsburg 2017, algorithm 1)."""
    real = parameter.dtype.type
    factor, kept = real(scale[0]), real(momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        if start >= stop:
            continue
        length, steepness = sqrt(squares[2 * segment]), scale[0] * sqrt(squares[2 * segment + 1])
        local, weighed = 1.0, decay * multipliers[segment, 1]
        if multipliers[segment, 1] != 0 and length > 0 and steepness > 0:
            local = trust * length / (steepness + weighed * length)
        step, pull = real(rate[0] * multipliers[segment, 0] * local), real(weighed)
        value, slope, past = parameter[start:stop], gradient[start:stop], history[start:stop]
        _move(value, slope, past, pull, factor, kept, step)


@compiled()
def larc_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    squares: Array,
    rate: Array,
    scale: Array,
    limits: Array,
    multipliers: Array,
    decay: float,
    momentum: float,
    trust: float,
    clip: float,
    begin: int,
    end: int,
) -> None:
    """As momentum_update, but in each segment that has a rate, the rate is multiplied by trust *
    |parameter| / |scale * gradient| or, with ``clip``, is the smaller of the two. ``squares`` are as in
    lars_update."""
    real = parameter.dtype.type
    factor, kept = real(scale[0]), real(momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        if start >= stop:
            continue
        length, steepness = sqrt(squares[2 * segment]), scale[0] * sqrt(squares[2 * segment + 1])
        local = trust * length / steepness if length > 0 and steepness > 0 else 1.0
        local = local if multipliers[segment, 0] > 0 else 0.0
        step = real(min(rate[0], local) if clip != 0 else rate[0] * local)
        pull = real(decay * multipliers[segment, 1])
        value, slope, past = parameter[start:stop], gradient[start:stop], history[start:stop]
        _move(value, slope, past, pull, factor, kept, step)


@compiled(reassociate=True)
def squares_by_block(
    parameter: Array, gradient: Array, blocks: Array, partial: Array, begin: int, end: int
) -> None:
    """Compute the two sums of each block (start, stop) of elements, in double precision."""
    for block in range(begin, end):
        start, stop = blocks[block, 0], blocks[block, 1]
        value, slope = parameter[start:stop], gradient[start:stop]
        length, steepness = 0.0, 0.0
        for i in range(value.size):
            v, g = np.float64(value[i]), np.float64(slope[i])
            length += v * v
            steepness += g * g
        partial[2 * block] = length
        partial[2 * block + 1] = steepness


@compiled()
def squares_by_segment(partial: Array, edges: Array, total: Array) -> None:
    """Add up the sums of each segment's blocks, which are those from edge to edge."""
    for segment in range(edges.size - 1):
        length, steepness = 0.0, 0.0
        for block in range(edges[segment], edges[segment + 1]):
            length += partial[2 * block]
            steepness += partial[2 * block + 1]
        total[2 * segment] = length
        total[2 * segment + 1] = steepness
