"""Loops over the elements of a function of one element. Results may share an operand's memory; see
``elementwise``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from demitasse_cpu.loops.bfloat16 import got, number, put
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.exponentials import (
    exponential,
    exponential_less_one,
    logarithm,
    logarithm_of_one_plus,
)


@compiled()
def absolute(x: Array, y: Array, begin: int, end: int) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, abs(got(x, i)))


@compiled()
def absolute_backward(dy: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    zero = number(0, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value, slope = got(x, i), got(dy, i)
        put(dx, i, slope if value > zero else (-slope if value < zero else zero))


@inlined
def _sigmoid(value: Any, one: Any) -> Any:
    """Compute a sigmoid from the exponential of a number below 0, which stays in range."""
    small = exponential(-abs(value))
    return (one if value > 0 else small) / (one + small)


@compiled()
def softplus(x: Array, y: Array, begin: int, end: int) -> None:
    zero = number(0, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        more = logarithm_of_one_plus(exponential(-abs(value)))
        put(y, i, more if value < zero else value + more)


@compiled()
def softplus_backward(dy: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    one = number(1, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) * _sigmoid(got(x, i), one))


@compiled()
def clip(x: Array, y: Array, least: float, most: float, begin: int, end: int) -> None:
    low, high = number(least, x), number(most, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        value = high if value > high else value
        put(y, i, low if value < low else value)


@compiled()
def clip_backward(
    dy: Array, x: Array, dx: Array, least: float, most: float, begin: int, end: int
) -> None:
    low, high, zero = number(least, x), number(most, x), number(0, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(x, i)
        put(dx, i, got(dy, i) if (value >= low) & (value <= high) else zero)


@compiled()
def elu(x: Array, y: Array, alpha: float, begin: int, end: int) -> None:
    zero, factor = number(0, x), number(alpha, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        below = factor * exponential_less_one(zero if value > zero else value)
        put(y, i, value if value > zero else below)


@compiled()
def elu_backward(dy: Array, y: Array, dx: Array, alpha: float, begin: int, end: int) -> None:
    zero, factor = number(0, y), number(alpha, y)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        value, slope = got(y, i), got(dy, i)
        put(dx, i, slope if value > zero else slope * (value + factor))


@compiled()
def exponential_of(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    a, b = number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, exponential(a * got(x, i) + b))


@compiled()
def exponential_backward(dy: Array, y: Array, dx: Array, scale: float, begin: int, end: int) -> None:
    a = number(scale, y)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) * got(y, i) * a)


@compiled()
def logarithm_of(
    x: Array, y: Array, factor: float, scale: float, shift: float, begin: int, end: int
) -> None:
    c, a, b = number(factor, x), number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, c * logarithm(a * got(x, i) + b))


@compiled()
def logarithm_backward(
    dy: Array,
    x: Array,
    dx: Array,
    factor: float,
    scale: float,
    shift: float,
    begin: int,
    end: int,
) -> None:
    c, a, b = number(factor * scale, x), number(scale, x), number(shift, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) * c / (a * got(x, i) + b))


@compiled()
def affine(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    a, b = number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, a * got(x, i) + b)


@compiled()
def square(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    a, b = number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        base = a * got(x, i) + b
        put(y, i, base * base)


@compiled()
def square_backward(
    dy: Array, x: Array, dx: Array, scale: float, shift: float, begin: int, end: int
) -> None:
    a, b, factor = number(scale, x), number(shift, x), number(2 * scale, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) * factor * (a * got(x, i) + b))


@inlined
def _power(base: Any, exponent: Any, of_negative: Any) -> Any:
    """Compute a power in double precision, because it multiplies an error of the logarithm.
    ``of_negative`` is the power of -1."""
    value = exponential(exponent * logarithm(abs(base)))
    return of_negative * value if base < 0 else value


@compiled()
def power(
    x: Array,
    y: Array,
    scale: float,
    shift: float,
    exponent: float,
    of_negative: float,
    begin: int,
    end: int,
) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, _power(scale * np.float64(got(x, i)) + shift, exponent, of_negative))


@compiled()
def power_backward(
    dy: Array,
    x: Array,
    dx: Array,
    scale: float,
    shift: float,
    exponent: float,
    of_negative: float,
    factor: float,
    begin: int,
    end: int,
) -> None:
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        slope = factor * _power(scale * np.float64(got(x, i)) + shift, exponent, of_negative)
        put(dx, i, np.float64(got(dy, i)) * slope)


@inlined
def _half_power(base: Any, count: int, root: bool, inverse: bool, one: Any) -> Any:
    """Return base ^ (count + 1/2 if ``root``), for a count from 0 to 3, or its inverse."""
    value = base if count & 1 else one
    value *= base * base if count & 2 else one
    value *= np.sqrt(base) if root else one
    return one / value if inverse else value


@compiled()
def half_power(
    x: Array,
    y: Array,
    scale: float,
    shift: float,
    count: int,
    root: bool,
    inverse: bool,
    begin: int,
    end: int,
) -> None:
    one, a, b = number(1, x), number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, _half_power(a * got(x, i) + b, count, root, inverse, one))


@compiled()
def half_power_backward(
    dy: Array,
    x: Array,
    dx: Array,
    scale: float,
    shift: float,
    count: int,
    root: bool,
    inverse: bool,
    factor: float,
    begin: int,
    end: int,
) -> None:
    one, a, b, c = number(1, x), number(scale, x), number(shift, x), number(factor, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        slope = c * _half_power(a * got(x, i) + b, count, root, inverse, one)
        put(dx, i, got(dy, i) * slope)


@compiled()
def sigmoid(x: Array, y: Array, begin: int, end: int) -> None:
    one = number(1, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, _sigmoid(got(x, i), one))


@compiled()
def sigmoid_backward(dy: Array, y: Array, dx: Array, begin: int, end: int) -> None:
    one = number(1, y)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(y, i)
        put(dx, i, got(dy, i) * value * (one - value))


@compiled()
def swish(x: Array, y: Array, beta: float, begin: int, end: int) -> None:
    one, b = number(1, x), number(beta, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        put(y, i, value * _sigmoid(b * value, one))


@compiled()
def swish_backward(dy: Array, x: Array, dx: Array, beta: float, begin: int, end: int) -> None:
    one, b = number(1, x), number(beta, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = b * got(x, i)
        s = _sigmoid(value, one)
        put(dx, i, got(dy, i) * (s + value * s * (one - s)))


@compiled()
def tanh(x: Array, y: Array, begin: int, end: int) -> None:
    zero, two = number(0, x), number(2, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        less = exponential_less_one(-two * abs(value))
        size = -less / (two + less)
        put(y, i, -size if value < zero else size)


@compiled()
def tanh_backward(dy: Array, y: Array, dx: Array, begin: int, end: int) -> None:
    one = number(1, y)
    dy, y, dx = dy[begin:end], y[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(y, i)
        put(dx, i, got(dy, i) * (one - value * value))


@compiled()
def greater(x: Array, y: Array, threshold: float, begin: int, end: int) -> None:
    zero, one, least = number(0, x), number(1, x), number(threshold, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, one if got(x, i) > least else zero)


@inlined
def _gate(value: Any, scale: Any, shift: Any, zero: Any, one: Any) -> Any:
    line = scale * value + shift
    line = one if line > one else line
    return zero if line < zero else line


@compiled()
def hard_sigmoid(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    zero, one, a, b = number(0, x), number(1, x), number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, _gate(got(x, i), a, b, zero, one))


@compiled()
def hard_sigmoid_backward(
    dy: Array, x: Array, dx: Array, scale: float, shift: float, begin: int, end: int
) -> None:
    zero, one, a, b = number(0, x), number(1, x), number(scale, x), number(shift, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        line = a * got(x, i) + b
        put(dx, i, a * got(dy, i) if (line > zero) & (line < one) else zero)


@compiled()
def hard_swish(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    zero, one, a, b = number(0, x), number(1, x), number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        put(y, i, value * _gate(value, a, b, zero, one))


@compiled()
def hard_swish_backward(
    dy: Array, x: Array, dx: Array, scale: float, shift: float, begin: int, end: int
) -> None:
    zero, one, a, b = number(0, x), number(1, x), number(scale, x), number(shift, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(x, i)
        gate = _gate(value, a, b, zero, one)
        more = a * value if (gate > zero) & (gate < one) else zero
        put(dx, i, got(dy, i) * (gate + more))


@compiled()
def error_function(x: Array, y: Array, begin: int, end: int) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, math.erf(got(x, i)))


@compiled()
def error_function_backward(dy: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    factor = number(2 / math.sqrt(math.pi), x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(x, i)
        put(dx, i, got(dy, i) * factor * exponential(-value * value))


@compiled()
def floor(x: Array, y: Array, begin: int, end: int) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, np.floor(got(x, i)))


@compiled()
def nearest(x: Array, y: Array, begin: int, end: int) -> None:
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, np.rint(got(x, i)))


@compiled()
def sine(x: Array, y: Array, scale: float, shift: float, begin: int, end: int) -> None:
    a, b = number(scale, x), number(shift, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        put(y, i, np.sin(a * got(x, i) + b))


@compiled()
def sine_backward(
    dy: Array, x: Array, dx: Array, scale: float, shift: float, begin: int, end: int
) -> None:
    a, b = number(scale, x), number(shift, x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        put(dx, i, got(dy, i) * a * np.cos(a * got(x, i) + b))


@compiled()
def gelu(x: Array, y: Array, begin: int, end: int) -> None:
    half, one, root = number(0.5, x), number(1, x), number(math.sqrt(0.5), x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        put(y, i, value * (half * (one + math.erf(root * value))))


@compiled()
def gelu_backward(dy: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    half, one, root = number(0.5, x), number(1, x), number(math.sqrt(0.5), x)
    density = number(1 / math.sqrt(2 * math.pi), x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(x, i)
        share = half * (one + math.erf(root * value))
        put(dx, i, got(dy, i) * (share + value * density * exponential(-half * value * value)))


@inlined
def _share_below(value: Any, one: Any) -> Any:
    """Return the share of normally distributed numbers that are below ``value``, in single precision:
    Abramowitz and Stegun 1964, 7.1.26, with an error below 7.5e-8. Unlike the library's function it
    becomes vector code: 0.6 ms for 480,000 numbers instead of 3.9 ms."""
    size = abs(value)
    t = one / (one + np.float32(0.3275911 * 0.7071067811865476) * size)
    p = np.float32(1.061405429)
    p = p * t + np.float32(-1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t + np.float32(-0.284496736)
    p = p * t + np.float32(0.254829592)
    half = np.float32(0.5)
    beyond = half * p * t * exponential(-half * size * size)
    return beyond if value < 0 else one - beyond


@compiled()
def gelu_single(x: Array, y: Array, begin: int, end: int) -> None:
    one = number(1, x)
    x, y = x[begin:end], y[begin:end]
    for i in range(y.size):
        value = got(x, i)
        put(y, i, value * _share_below(value, one))


@compiled()
def gelu_single_backward(dy: Array, x: Array, dx: Array, begin: int, end: int) -> None:
    one, half = number(1, x), number(0.5, x)
    density = number(1 / math.sqrt(2 * math.pi), x)
    dy, x, dx = dy[begin:end], x[begin:end], dx[begin:end]
    for i in range(dx.size):
        value = got(x, i)
        slope = _share_below(value, one) + value * density * exponential(-half * value * value)
        put(dx, i, got(dy, i) * slope)
