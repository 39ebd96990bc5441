"""Converts samples to a blob: mean, scale, crop and mirror, row by row."""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.mesh import FLOPS, stream
from demitasse_sw26010.model.programs import Array, program


@program
def draw(key: Array, number: int, j: int) -> tuple[int, int, int]:
    """Return the first three words for domain 1's counter (0, j) by Philox4x32-10."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = np.uint64(0), np.uint64(j) & low
    c, d = np.uint64(number) & low, (np.uint64(number) >> half) + np.uint64(1 << 28)
    for step in range(10):
        k = (np.uint64(key[0]) + np.uint64(step) * np.uint64(0x9E3779B9)) & low
        m = (np.uint64(key[1]) + np.uint64(step) * np.uint64(0xBB67AE85)) & low
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (q >> half) ^ b ^ k, q & low, (p >> half) ^ d ^ m, p & low
    return int(a), int(b), int(c)


@program
def image_transform(
    count: Array,
    touch: bool,
    lx: Array,
    x: Array,
    mean: Array,
    iteration: Array,
    sample: Array,
    y: Array,
    shape: Array,
    size: Array,
    each: Array,
    scale: float,
    random: bool,
    mirror: bool,
    key: Array,
) -> None:
    """y = (x - mean) * scale, cropped and mirrored, with rows passing through LDM. ``shape`` is that of
    x, ``size`` that of y's planes, and ``each`` that of the mean."""
    n, c, h, w = shape[0], shape[1], shape[2], shape[3]
    moved = 1.0 * n * c * size[0] * size[1]
    stream(count, moved, moved, moved / 64.0)
    count[FLOPS] += 2.0 * moved
    if not touch:
        return
    for i in range(n):
        top, left, turned = (h - size[0]) // 2, (w - size[1]) // 2, False
        if random:
            first, second, third = draw(key, int(iteration[0]), int(sample[0]) + i)
            top = first * (h - size[0] + 1) >> 32
            left = second * (w - size[1] + 1) >> 32
            turned = mirror and (third * 2 >> 32) > 0
        for channel in range(c):
            for row in range(size[0]):
                start = ((i * c + channel) * h + top + row) * w + left
                for v in range(size[1]):
                    less = 0.0
                    if mean.size > 0:
                        at = (channel if each[0] > 1 else 0) * each[1] + (
                            top + row if each[1] > 1 else 0
                        )
                        less = mean[at * each[2] + (left + v if each[2] > 1 else 0)]
                    lx[v] = (x[start + v] - less) * scale
                target = ((i * c + channel) * size[0] + row) * size[1]
                for v in range(size[1]):
                    y[target + v] = lx[size[1] - 1 - v if turned else v]
