"""Counter-based random numbers, the same however the work is divided. Philox4x32-10 (Salmon et al.,
2011) maps a counter of four 32-bit words and a key of two words to four words. Compiled kernels use
    key     = random_key(seed, stream)
    counter = (i mod 2**32, j mod 2**32, number mod 2**32, number // 2**32 + domain * 2**28)
``number`` is an iteration or epoch below 2**60; domains keep the functions' counters apart."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

LOW, WEYL = 2**32 - 1, 0x9E3779B9
_BLOCK = 2**13  # counters; their words and intermediate values stay in the second-level cache
_SHARE = 2**16  # numbers that each of several threads draws at a time; each step may wait for others


def random_key(seed: int, stream: int) -> tuple[int, int]:
    """Return two 32-bit words: (seed mod 2**32, (seed // 2**32 + stream * 0x9E3779B9) mod 2**32)."""
    seed, stream = int(seed), int(stream)
    return seed & LOW, ((seed >> 32) + stream * WEYL) & LOW


def philox4x32(counter: Any, key: Any) -> Any:
    """Return four words (uint32) for each counter (..., 4) under a key of two words."""
    words = [counter[..., i].astype(np.uint64) for i in range(4)]
    _rounds(words, key)
    return np.stack(words, axis=-1).astype(np.uint32)


def _rounds(words: Any, key: Any) -> None:
    """Do the ten rounds, in place on four arrays of uint64."""
    a, b, c, d = words
    x, y, low, half = np.empty_like(a), np.empty_like(a), np.uint64(LOW), np.uint64(32)
    for step in range(10):
        k, m = (int(key[0]) + step * WEYL) & LOW, (int(key[1]) + step * 0xBB67AE85) & LOW
        np.multiply(a, np.uint64(0xD2511F53), out=x)
        np.multiply(c, np.uint64(0xCD9E8D57), out=y)
        for high, other, word, product in ((a, b, k, y), (c, d, m, x)):
            np.right_shift(product, half, out=high)
            np.bitwise_xor(high, other, out=high)
            np.bitwise_xor(high, np.uint64(word), out=high)
            np.bitwise_and(product, low, out=other)


def _words(domain: int, seed: int, stream: int, number: int, i: Any, j: Any) -> Any:
    number = int(number)
    words = i & LOW, j & LOW, number & LOW, (number >> 32) + (domain << 28)
    return philox4x32(np.stack(np.broadcast_arrays(*words), axis=-1), random_key(seed, stream))


def keep_mask(
    seed: int, stream: int, iteration: int, first_sample: int, shape: tuple[int, ...], ratio: float
) -> Any:
    """Return dropout's uint8 mask of ``shape``, samples first. Element e of sample n (e is its flat
    index in the sample) is 0 if word e mod 4 of domain 0, i = e // 4, j = first_sample + n is less than
    ratio * 2**32, and 1 otherwise."""
    samples, elements = np.arange(shape[0]) + int(first_sample), int(np.prod(shape[1:]))
    words = _words(0, seed, stream, iteration, np.arange(-(-elements // 4)), samples[:, None])
    words = words.reshape(shape[0], words.shape[1] * 4)[:, :elements]
    return (words >= np.ceil(ratio * 2**32)).astype(np.uint8).reshape(shape)


def crop_and_mirror(
    seed: int, stream: int, iteration: int, first_sample: int, count: int, rows: int, columns: int
) -> Any:
    """Return (row, column, mirror) for each of ``count`` samples, int64. For sample n they are, with the
    words of domain 1, i = 0, j = first_sample + n: word 0 * (rows + 1) // 2**32, word 1 * (columns + 1)
    // 2**32 and word 2 * 2 // 2**32."""
    words = _words(1, seed, stream, iteration, 0, np.arange(count) + int(first_sample))
    return words[:, :3].astype(np.int64) * (rows + 1, columns + 1, 2) >> 32


def permutation(seed: int, epoch: int, size: int) -> Any:
    """Return the order in which an epoch reads ``size`` samples: their numbers (int64), each once, the
    same for the same arguments. They are sorted by word 0 + word 1 * 2**32 of domain 2, stream 0, i =
    sample."""
    keys = np.empty(size, np.uint64)
    for start in range(0, size, _BLOCK):
        some = np.arange(start, min(start + _BLOCK, size))
        words = _words(2, seed, 0, epoch, some, 0).astype(np.uint64)
        keys[start : start + _BLOCK] = words[:, 0] | words[:, 1] << 32
    order = np.argsort(keys)
    if (keys[order[1:]] == keys[order[:-1]]).any():  # equal keys: keep sample order, in twice the time
        order = np.argsort(keys, kind="stable")
    return order.astype(np.int64, copy=False)


class RandomStream:
    """Numbers for fillers. Call n draws from domain 3, number = n, i = 0, 1, ... A uniform number, in
    [low, high), takes 53 bits of two words; a normal one (Box and Muller) takes two uniform ones. All
    are computed in float64 and rounded once to ``dtype``, block by block, so that a large array needs no
    more memory than its own."""

    def __init__(self, seed: int, stream: int = 0, dtype: str = "float64") -> None:
        self.seed, self.stream, self.dtype, self.calls = seed, stream, dtype, -1

    def uniform(self, shape: Any, low: float = 0.0, high: float = 1.0) -> Any:
        """Return an array of ``shape`` with numbers uniform in [low, high)."""

        def fill(part: Any, start: int, stop: int) -> None:
            drawn = self._part(start, stop)
            if (low, high) != (0.0, 1.0):
                drawn *= high - low
                drawn += low
            part[...] = drawn

        return self._filled(shape, fill)

    def normal(self, shape: Any, mean: float = 0.0, std: float = 1.0) -> Any:
        """Return an array of ``shape`` with normal numbers of this mean and standard deviation."""
        size = int(np.prod(shape))

        def fill(part: Any, start: int, stop: int) -> None:
            radius, angle = self._part(start, stop), self._part(size + start, size + stop)
            np.log1p(np.negative(radius, out=radius), out=radius)
            radius *= -2
            np.sqrt(radius, out=radius)
            angle *= 2 * np.pi
            radius *= np.cos(angle, out=angle)
            radius *= std
            radius += mean
            part[...] = radius

        return self._filled(shape, fill)

    def _filled(self, shape: Any, fill: Callable[[Any, int, int], None]) -> Any:
        """Return the next call's array, filled in parts; a large one by all of the process's cores."""
        self.calls += 1
        result = np.empty(np.broadcast_shapes(shape), self.dtype)
        flat = result.reshape(-1)

        def share(start: int, block: int = _SHARE) -> None:
            stop = min(start + block, flat.size)
            fill(flat[start:stop], start, stop)

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if (threads := min(flat.size // (4 * _SHARE), cores)) < 2:
            for start in range(0, flat.size, _BLOCK):
                share(start, _BLOCK)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(share, range(0, flat.size, _SHARE)))
        return result

    def integers(self, shape: Any, high: int) -> Any:
        """Return an int64 array of ``shape``, uniform in 0 to ``high`` - 1."""
        count, self.calls = int(np.prod(shape)), self.calls + 1
        return (self._part(0, count) * high).astype(np.int64).reshape(shape)

    def _part(self, begin: int, end: int) -> Any:
        """Return numbers ``begin`` up to ``end`` of the current call, uniform in [0, 1)."""
        counters = np.arange(begin // 2, -(-end // 2), dtype=np.uint64)
        rest = 0, self.calls & LOW, (self.calls >> 32) + (3 << 28)
        words = [counters & np.uint64(LOW), *(np.full_like(counters, word) for word in rest)]
        _rounds(words, random_key(self.seed, self.stream))
        part = np.empty((len(counters), 2))
        for number, (high, low) in enumerate((words[:2], words[2:])):
            np.right_shift(high, np.uint64(5), out=high)
            np.multiply(high, 2.0**26, out=part[:, number])
            part[:, number] += np.right_shift(low, np.uint64(6), out=low)
        part /= 2**53
        return part.reshape(-1)[begin % 2 : begin % 2 + end - begin]
