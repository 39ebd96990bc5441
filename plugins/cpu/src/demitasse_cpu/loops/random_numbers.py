"""Dropout and image transforms with the random numbers of demitasse.keep_mask and crop_and_mirror.

Philox4x32-10 (Salmon et al., 2011), with each 32-bit word in a 64-bit one, because vectors multiply
those.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse_cpu.loops.bfloat16 import got, number, put
from demitasse_cpu.loops.compiled import Array, compiled, inlined

_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ONE, _TWO, _DOMAIN_1 = np.uint64(1), np.uint64(2), np.uint64(1 << 28)


@compiled()
def _philox(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, k: np.uint64, m: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    for _ in range(10):
        x, y = a * _MULTIPLIER_0, c * _MULTIPLIER_1
        a, b, c, d = (y >> _HALF) ^ b ^ k, y & _LOW, (x >> _HALF) ^ d ^ m, x & _LOW
        k, m = (k + _WEYL_0) & _LOW, (m + _WEYL_1) & _LOW
    return a, b, c, d


@compiled()
def _draw(
    drawn: Array,
    first: int,
    sample: np.uint64,
    number: np.uint64,
    high: np.uint64,
    k: np.uint64,
    m: np.uint64,
    threshold: np.uint64,
) -> None:
    """Draw the four bytes of each block from block ``first`` on, 1 to keep an element. They are stored
    as one word, lowest byte first, because vectors store whole words."""
    for i in range(drawn.size):
        a, b, c, d = _philox(np.uint64(first + i), sample, number, high, k, m)
        low = np.uint32(a >= threshold) | np.uint32(b >= threshold) << np.uint32(8)
        upper = np.uint32(c >= threshold) << np.uint32(16) | np.uint32(d >= threshold) << np.uint32(24)
        drawn[i] = low | upper


@inlined
def _dropped(
    x: Array, y: Array, mask: Array, keeps_mask: bool, drawn: Array, stride: int, count: int, scale: Any
) -> None:
    """Drop or keep ``count`` consecutive elements. Every ``stride``-th byte of ``drawn`` says whether to
    keep one; y may be x."""
    zero = number(0, x)
    if keeps_mask:
        told = mask[:count]
        for i in range(count):
            told[i] = got(drawn, i * stride)
        for i in range(count):
            value = scale * got(x, i)
            put(y, i, value if got(told, i) != 0 else zero)
    else:
        for i in range(count):
            value = scale * got(x, i)
            put(y, i, value if got(drawn, i * stride) != 0 else zero)


@compiled()
def dropout(
    x: Array,
    y: Array,
    mask: Array,
    keeps_mask: bool,
    words: Array,
    drawn: Array,
    iteration: Array,
    first_sample: Array,
    key: Array,
    threshold: np.uint64,
    factor: float,
    elements: int,
    channels: int,
    begin: int,
    end: int,
) -> None:
    """Apply dropout to samples ``begin`` to ``end`` of ``elements`` each. ``mask`` is not touched unless
    it is kept. ``words`` and ``drawn`` are the same memory, with room for all bytes of a sample if
    ``channels`` are innermost, otherwise (1) for some."""
    scale = number(factor, x)
    low, high = iteration[0] & _LOW, iteration[0] >> _HALF
    blocks, together = (elements + 3) // 4, words.size
    for n in range(begin, end):
        j = (first_sample[0] + np.uint64(n)) & _LOW
        for first in range(0, blocks, together):
            some = words[: min(together, blocks - first)]
            _draw(some, first, j, low, high, key[0], key[1], threshold)
            start, stop = n * elements + 4 * first, min(4 * (first + together), elements) + n * elements
            given, result = x[start:stop], y[start:stop]
            kept = mask[start:stop] if keeps_mask else mask
            if channels > 1:
                plane = elements // channels
                for p in range(plane):
                    at = p * channels
                    near, there, marks = given[at:], result[at:], kept[at:]
                    _dropped(near, there, marks, keeps_mask, drawn[p:], plane, channels, scale)
            else:
                _dropped(given, result, kept, keeps_mask, drawn, 1, result.size, scale)


@compiled()
def image_transform(
    x: Array,
    y: Array,
    mean: Array,
    iteration: Array,
    first_sample: Array,
    key: Array,
    factor: float,
    random: bool,
    mirror: bool,
    begin: int,
    end: int,
) -> None:
    """Transform images x (N, C, H, W) of any element type to y (N, C, h, w). mean is (C, H, W), with
    strides of 0 where one number stands for many."""
    rows, columns = x.shape[2] - y.shape[2], x.shape[3] - y.shape[3]
    width, scale = y.shape[3], y.dtype.type(factor)
    number, high = iteration[0] & _LOW, (iteration[0] >> _HALF) + _DOMAIN_1
    for n in range(begin, end):
        top, left, flipped = rows // 2, columns // 2, False
        if random:
            j = (first_sample[0] + np.uint64(n)) & _LOW
            words = _philox(np.uint64(0), j, number, high, key[0], key[1])
            top = np.int64(words[0] * (np.uint64(rows) + _ONE) >> _HALF)
            left = np.int64(words[1] * (np.uint64(columns) + _ONE) >> _HALF)
            flipped = mirror and (words[2] * _TWO >> _HALF) == _ONE
        for c in range(x.shape[1]):
            for i in range(y.shape[2]):
                if flipped:
                    for k in range(width):
                        value = x[n, c, top + i, left + k] - mean[c, top + i, left + k]
                        y[n, c, i, width - 1 - k] = scale * value
                else:
                    for k in range(width):
                        value = x[n, c, top + i, left + k] - mean[c, top + i, left + k]
                        y[n, c, i, k] = scale * value
