"""An epoch's order, as ``demitasse.permutation`` draws it, from a compiled loop.

It computes the same numbers in a tenth of the time. For CIFAR-10's 50,000 samples, NumPy takes 7.5 ms,
while copying all of them takes 8 ms; without a free core, half of the time went into the order.
"""

from __future__ import annotations

import numpy as np

from demitasse import compiled_loop
from demitasse_striped_io.loops import Array

_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_DOMAIN = 2 << 28
"""The fourth word of the counter (see demitasse_random): domain 2, orders."""


@compiled_loop
def _keys(seed: int, seed_high: int, epoch: int, last: int, out: Array) -> None:
    """For each sample, the first two words of Philox4x32-10 at the counter (sample, 0, epoch, last)."""
    for i in range(len(out)):
        a, b = np.uint64(i), np.uint64(0)
        c, d = np.uint64(epoch), np.uint64(last)
        k, m = np.uint64(seed), np.uint64(seed_high)
        for _ in range(10):
            x = a * np.uint64(0xD2511F53)
            y = c * np.uint64(0xCD9E8D57)
            a = (y >> _HALF) ^ b ^ k
            b = y & _LOW
            c = (x >> _HALF) ^ d ^ m
            d = x & _LOW
            k = (k + np.uint64(0x9E3779B9)) & _LOW
            m = (m + np.uint64(0xBB67AE85)) & _LOW
        out[i] = a | b << _HALF


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """Return an epoch's order, int64, of fewer than 2**32 samples."""
    keys = np.empty(size, np.uint64)
    low = int(_LOW)
    _keys(seed & low, (seed >> 32) & low, epoch & low, (epoch >> 32) + _DOMAIN, keys)
    order = np.argsort(keys)
    ranked = keys[order]
    if (ranked[1:] == ranked[:-1]).any():  # equal keys must keep their order; this sort is not stable
        order = np.argsort(keys, kind="stable")
    return order.astype(np.int64, copy=False)
