"""Batch normalisation of a part of a batch by the statistics of the whole: what a part contributes to
them, and what is computed once they are known. Sums over channels are those of ``batch_normalization``
and ``plane_normalization``; here they become float64 sums of numbers as they are, not less a shift,
because other workers have other shifts."""

from __future__ import annotations

import numpy as np

from demitasse_cpu.loops.batch_normalization import keep_moments, repeat, total_of_lanes
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.plane_normalization import plane_moments


@inlined
def _put_moments(
    moments: Array, channel: int, shift: float, sums: float, squares: float, n: int
) -> None:
    """Write the sums of n numbers and of their squares, from those of the numbers less ``shift``."""
    channels = (moments.size - 1) // 2
    moments[channel] = n * shift + sums
    moments[channels + channel] = squares + 2 * shift * sums + n * shift * shift


@compiled()
def line_whole_moments(
    shift: Array, sums: Array, squares: Array, moments: Array, width: int, parts: int, n: int
) -> None:
    """Compute the moments from the parts' sums in lanes of lines."""
    channels = (moments.size - 1) // 2
    for c in range(channels):
        first = total_of_lanes(sums, c, channels, width, parts)
        second = total_of_lanes(squares, c, channels, width, parts)
        _put_moments(moments, c, shift[c], first, second, n)
    moments[2 * channels] = n


@compiled(reassociate=True)
def plane_whole_moments(x: Array, moments: Array, plane: int, images: int, begin: int, end: int) -> None:
    """Compute the moments of channels ``begin`` to ``end``."""
    channels = (moments.size - 1) // 2
    for c in range(begin, end):
        shift, sums, squares = plane_moments(x, c, channels, plane, images)
        _put_moments(moments, c, shift, sums, squares, images * plane)
    moments[2 * channels] = images * plane


@compiled()
def whole_settled(
    moments: Array,
    mean: Array,
    variance: Array,
    factor: Array,
    average: Array,
    spread: Array,
    inverse: Array,
    keep: float,
    averaged: bool,
    epsilon: float,
) -> None:
    """Compute the batch's statistics, and update the kept ones. ``inverse`` is of the variance as it is
    stored, because the result is computed from that."""
    real, channels, n = mean.dtype.type, mean.size, moments[2 * mean.size]
    centre_share = 1.0 - keep if averaged else 1.0
    spread_share = 1.0 - keep if averaged else (n / (n - 1.0) if n > 1 else 1.0)
    for c in range(channels):
        centre = moments[c] / n
        variance_now = max(0.0, moments[channels + c] / n - centre * centre)
        average[c], spread[c] = real(centre), real(variance_now)
        inverse[c] = real(1.0 / np.sqrt(spread[c] + epsilon))
        keep_moments(mean, variance, c, centre, variance_now, keep, centre_share, spread_share)
    if not averaged:
        factor[0] = keep * factor[0] + 1.0


@compiled()
def whole_tilts(
    sums: Array,
    moments: Array,
    inverse: Array,
    slope: Array,
    offset: Array,
    tilt: Array,
) -> None:
    """Along a line, write the offset and tilt of dx = slope * dz - offset - tilt * (x - average) from dw
    and db of the whole batch."""
    real, channels, n = inverse.dtype.type, inverse.size, moments[moments.size - 1]
    for c in range(channels):
        share = slope[c] / n
        offset[c] = real(share * sums[channels + c])
        tilt[c] = real(share * inverse[c] * sums[c])
    for each in (offset, tilt):
        repeat(each, channels, each.size)


@compiled()
def count_labels(label: Array, labels: Array, ignored: float) -> None:
    """Count the labels that are not ``ignored``, without their fractions."""
    total = 0
    for i in range(label.size):
        total += np.trunc(float(label[i])) != ignored
    labels[0] = total


@compiled()
def over_divisor(x: Array, divisor: Array, y: Array, share: float) -> None:
    over = share * max(1.0, divisor[0])
    for i in range(x.size):
        y[i] = x[i] / over
