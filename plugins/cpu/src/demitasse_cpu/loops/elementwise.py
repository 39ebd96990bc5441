"""Loops over elements that do not meet each other; each part takes a range of them."""

from __future__ import annotations

from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def relu(x: Array, y: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = x.dtype.type(0), x.dtype.type(negative_slope)
    for i in range(begin, end):
        y[i] = x[i] if x[i] > zero else slope * x[i]


@compiled()
def relu_backward(dy: Array, y: Array, dx: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = y.dtype.type(0), y.dtype.type(negative_slope)
    for i in range(begin, end):
        dx[i] = dy[i] if y[i] > zero else slope * dy[i]


@compiled()
def masked(dy: Array, mask: Array, dx: Array, factor: float, begin: int, end: int) -> None:
    zero, scale = dy.dtype.type(0), dy.dtype.type(factor)
    for i in range(begin, end):
        dx[i] = scale * dy[i] if mask[i] != 0 else zero


@compiled()
def scaled(x: Array, y: Array, factor: float, begin: int, end: int) -> None:
    scale = x.dtype.type(factor)
    for i in range(begin, end):
        y[i] = scale * x[i]


@compiled()
def scaled_sum(
    a: Array, b: Array, y: Array, factor_a: float, factor_b: float, begin: int, end: int
) -> None:
    scale_a, scale_b = a.dtype.type(factor_a), b.dtype.type(factor_b)
    for i in range(begin, end):
        y[i] = scale_a * a[i] + scale_b * b[i]


@compiled()
def momentum_update(
    parameter: Array,
    gradient: Array,
    history: Array,
    rate: Array,
    limits: Array,
    multipliers: Array,
    momentum: float,
    decay: float,
    l1: bool,
    begin: int,
    end: int,
) -> None:
    """``limits`` are the segments' (start, stop), ``multipliers`` their (rate, decay)."""
    real = parameter.dtype.type
    zero, one, kept = real(0), real(1), real(momentum)
    for segment in range(limits.shape[0]):
        start, stop = max(limits[segment, 0], begin), min(limits[segment, 1], end)
        step = real(rate[0] * multipliers[segment, 0])
        pull = real(decay * multipliers[segment, 1])
        for i in range(start, stop):
            value = parameter[i]
            towards = value
            if l1 and value != zero:
                towards = one if value > zero else -one
            change = kept * history[i] + step * (gradient[i] + pull * towards)
            history[i] = change
            parameter[i] = value - change
