"""Gradients of depthwise convolutions (one group per channel), with channels innermost: a vector of
channels is multiplied by a vector of their weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from demitasse_cpu.loops.bfloat16 import got, put
from demitasse_cpu.loops.compiled import Array, compiled


class Depthwise(NamedTuple):
    """Images of ``height`` x ``width``, results of ``rows`` x ``columns``, and how windows move. Each
    pair is (rows, columns)."""

    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    channels: int


@compiled()
def by_taps(w: Array, packed: Array, channels: int, taps: int) -> None:
    """Copy weights (channels, taps) to an order with the channels innermost."""
    for c in range(channels):
        for t in range(taps):
            packed[t * channels + c] = w[c * taps + t]


@compiled()
def to_data(g: Any, dy: Array, packed: Array, dx: Array, line: Array, begin: int, end: int) -> None:
    """Compute lines ``begin`` to ``end`` of dx. Each is summed in ``line``: tap after tap, all points of
    dy that depend on it are added."""
    channels = g.channels
    for number in range(begin, end):
        image, row = number // g.image[0], number % g.image[0]
        line[:] = 0
        for i in range(g.kernel[0]):
            down = row + g.pad[0] - i * g.dilation[0]
            if down < 0 or down % g.stride[0] != 0 or down // g.stride[0] >= g.result[0]:
                continue
            above = (image * g.result[0] + down // g.stride[0]) * g.result[1]
            for j in range(g.kernel[1]):
                tap = (i * g.kernel[1] + j) * channels
                weights = packed[tap : tap + channels]
                for across in range(g.result[1]):
                    column = across * g.stride[1] + j * g.dilation[1] - g.pad[1]
                    if column < 0 or column >= g.image[1]:
                        continue
                    at = (above + across) * channels
                    slopes = dy[at : at + channels]
                    total = line[column * channels : (column + 1) * channels]
                    for c in range(channels):
                        total[c] += got(slopes, c) * weights[c]
        result = dx[number * line.size : (number + 1) * line.size]
        for i in range(line.size):
            put(result, i, line[i])


@compiled()
def to_weights(g: Any, dy: Array, x: Array, sums: Array, of_line: Array, begin: int, end: int) -> None:
    """Add up the contributions of lines ``begin`` to ``end`` of dy, as (taps, channels) followed by the
    sums of dy alone. A line's sums are added to the others' as a whole, so that numbers of similar size
    are added."""
    channels, taps = g.channels, g.kernel[0] * g.kernel[1]
    sums[:] = 0
    for line in range(begin, end):
        image, row = line // g.result[0], line % g.result[0]
        of_line[:] = 0
        bias = of_line[taps * channels : (taps + 1) * channels]
        for column in range(g.result[1]):
            at = (line * g.result[1] + column) * channels
            slopes = dy[at : at + channels]
            for c in range(channels):
                bias[c] += got(slopes, c)
            for i in range(g.kernel[0]):
                down = row * g.stride[0] - g.pad[0] + i * g.dilation[0]
                if down < 0 or down >= g.image[0]:
                    continue
                for j in range(g.kernel[1]):
                    across = column * g.stride[1] - g.pad[1] + j * g.dilation[1]
                    if across < 0 or across >= g.image[1]:
                        continue
                    at = ((image * g.image[0] + down) * g.image[1] + across) * channels
                    tap = (i * g.kernel[1] + j) * channels
                    seen, total = x[at : at + channels], of_line[tap : tap + channels]
                    for c in range(channels):
                        total[c] += got(slopes, c) * got(seen, c)
        for i in range(sums.size):
            sums[i] += of_line[i]


@compiled()
def add_up(sums: Array, dw: Array, db: Array, channels: int, taps: int) -> None:
    """Add up the sums of all parts, as (channels, taps)."""
    for c in range(channels):
        for t in range(taps):
            total = dw.dtype.type(0)
            for part in range(sums.shape[0]):
                total += sums[part, t * channels + c]
            dw[c * taps + t] = total
        if db.size > 0:
            total = db.dtype.type(0)
            for part in range(sums.shape[0]):
                total += sums[part, taps * channels + c]
            db[c] = total
