"""Local response normalisation across channels that are innermost. As many points at a time as stay in
the nearest cache form one long row of channels. In it, window sums are sums of neighbours; those near
the ends of a point would be wrong, and are summed again.

The gradient needs y and scale of the forward pass, but computes them from x again. That takes less time
than reading them (for AlexNet's first normalisation, 111 MB are read instead of 185 MB).
"""

from __future__ import annotations

from typing import Any

from demitasse_cpu.loops.bfloat16 import got, number, put
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.powers import inverse_power_75


@inlined
def _end_sum(values: Array, point: int, c: int, n: int, reach: int) -> Any:
    """Return the window's sum around a channel near an end; values[reach] is the first channel."""
    first, last = max(0, c - reach), min(n, c + reach + 1)
    total = values[point + first + reach]
    for other in range(first + 1, last):
        total += values[point + other + reach]
    return total


@inlined
def _window_sums(values: Array, sums: Array, n: int, size: int, reach: int) -> None:
    """Compute window sums of ``size`` / ``n`` points. ``values`` begin ``reach`` before the first
    channel of the first point and end as far after the last."""
    if reach == 1:
        for i in range(size):
            sums[i] = got(values, i) + got(values, i + 1) + got(values, i + 2)
    elif reach == 2:
        for i in range(size):
            near = got(values, i + 1) + got(values, i + 2) + got(values, i + 3)
            sums[i] = near + (got(values, i) + got(values, i + 4))
    else:
        for i in range(size):
            sums[i] = got(values, i)
        for j in range(1, 2 * reach + 1):
            for i in range(size):
                sums[i] += got(values, i + j)
    for point in range(0, size, n):
        if reach == 2 and n >= 4:
            last = point + n - 1
            inner = got(values, point + 2) + got(values, point + 3) + got(values, point + 4)
            sums[point], sums[point + 1] = inner, inner + got(values, point + 5)
            inner = got(values, last + 2) + got(values, last + 1) + got(values, last)
            sums[last], sums[last - 1] = inner, inner + got(values, last - 1)
        else:
            for c in range(min(reach, n)):
                sums[point + c] = _end_sum(values, point, c, n, reach)
            for c in range(max(0, n - reach), n):
                sums[point + c] = _end_sum(values, point, c, n, reach)


@compiled()
def across_channels(
    x: Array,
    y: Array,
    scale: Array,
    keeps_scale: bool,
    room: Array,
    some: int,
    n: int,
    reach: int,
    share: float,
    exponent: float,
    offset: float,
    begin: int,
    end: int,
) -> None:
    """Normalise points ``begin`` to ``end`` of ``n`` channels, ``some`` at a time. ``share`` is alpha /
    size. ``scale`` is not touched unless it is kept. ``room`` has space for two such rows and twice the
    reach."""
    factor, beta, first = number(share, x), number(exponent, x), number(offset, x)
    for point in range(begin, end, some):
        at, size = point * n, min(some, end - point) * n
        middle, sums = room[reach : reach + size], room[size + 2 * reach : 2 * size + 2 * reach]
        values = room[: size + 2 * reach]
        for i in range(size):
            value = got(x, at + i)
            middle[i] = value * value
        _window_sums(values, sums, n, size, reach)
        if exponent == 0.75:
            if keeps_scale:
                for i in range(size):
                    total = first + factor * got(sums, i)
                    put(scale, at + i, total)
                    put(y, at + i, got(x, at + i) * inverse_power_75(total))
            else:
                for i in range(size):
                    total = first + factor * got(sums, i)
                    put(y, at + i, got(x, at + i) * inverse_power_75(total))
        else:
            for i in range(size):
                total = first + factor * got(sums, i)
                if keeps_scale:
                    put(scale, at + i, total)
                put(y, at + i, got(x, at + i) * total**-beta)


@compiled()
def across_channels_backward(
    dy: Array,
    x: Array,
    dx: Array,
    room: Array,
    some: int,
    n: int,
    reach: int,
    share: float,
    exponent: float,
    offset: float,
    begin: int,
    end: int,
) -> None:
    """Compute the gradient. ``room`` has space for four rows of ``some`` points and four times the
    reach."""
    factor, beta, first = number(share, x), number(exponent, x), number(offset, x)
    twice, one = number(2 * share * exponent, x), number(1, x)
    for point in range(begin, end, some):
        at, size = point * n, min(some, end - point) * n
        wide = size + 2 * reach
        values, ratios = room[:wide], room[wide : 2 * wide]
        sums, direct = room[2 * wide : 2 * wide + size], room[2 * wide + size : 2 * wide + 2 * size]
        middle, ratio = values[reach : reach + size], ratios[reach : reach + size]
        for i in range(size):
            value = got(x, at + i)
            middle[i] = value * value
        _window_sums(values, sums, n, size, reach)
        if exponent == 0.75:
            for i in range(size):
                total = first + factor * got(sums, i)
                power = inverse_power_75(total)
                root = power * power * total  # total ** -0.5, whose square is 1 / total
                own = got(dy, at + i) * power
                direct[i] = own
                ratio[i] = own * got(x, at + i) * (root * root)
        else:
            for i in range(size):
                total = first + factor * got(sums, i)
                own = got(dy, at + i) * total**-beta
                direct[i] = own
                ratio[i] = own * got(x, at + i) * (one / total)
        _window_sums(ratios, sums, n, size, reach)
        for i in range(size):
            put(dx, at + i, got(direct, i) - twice * got(x, at + i) * got(sums, i))
