"""Loops over elements that do not meet each other; each part takes a range of them."""

from __future__ import annotations

from demitasse_cpu.loops.compiled import Array, compiled


@compiled()
def relu(x: Array, y: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = x.dtype.type(0), x.dtype.type(negative_slope)
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        y[i] = x[i] if x[i] > zero else slope * x[i]


@compiled()
def relu_backward(dy: Array, y: Array, dx: Array, negative_slope: float, begin: int, end: int) -> None:
    zero, slope = y.dtype.type(0), y.dtype.type(negative_slope)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        dx[i] = dy[i] if y[i] > zero else slope * dy[i]


@compiled()
def masked(dy: Array, mask: Array, dx: Array, factor: float, begin: int, end: int) -> None:
    zero, scale = dy.dtype.type(0), dy.dtype.type(factor)
    dy, mask, dx = dy[begin:end], mask[begin:end], dx[begin:end]
    for i in range(dx.size):
        dx[i] = scale * dy[i] if mask[i] != 0 else zero


@compiled()
def scaled(x: Array, y: Array, factor: float, begin: int, end: int) -> None:
    scale = x.dtype.type(factor)
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        y[i] = scale * x[i]


@compiled()
def scaled_sum(
    a: Array, b: Array, y: Array, factor_a: float, factor_b: float, begin: int, end: int
) -> None:
    scale_a, scale_b = a.dtype.type(factor_a), b.dtype.type(factor_b)
    a, b, y = a[begin:end], b[begin:end], y[begin:end]
    for i in range(y.size):
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
        if start >= stop:
            continue
        value, slope, past = parameter[start:stop], gradient[start:stop], history[start:stop]
        for i in range(value.size):
            towards = value[i]
            if l1:
                towards = one if value[i] > zero else (-one if value[i] < zero else value[i])
            past[i] = kept * past[i] + step * (slope[i] + pull * towards)
            value[i] -= past[i]
