"""Inputs and samples that are not finite, told before a ReLU or the largest of a pool makes an ordinary
number of one: some kernels take a NaN for less than 0."""

from __future__ import annotations

import numpy as np

_FEW = 2**13
_CHUNK = 2**16
"""Numbers that stay in a cache between two looks at them."""


def not_finite(array: np.ndarray) -> str:
    """Which number of an array of samples is not finite, in words; empty where all are."""
    if array.dtype.kind != "f" or _is_finite(array):
        return ""
    sample, *place = np.argwhere(~np.isfinite(array))[0].tolist() if array.ndim else [0]
    at = f" at ({', '.join(map(str, place))})" if place else ""
    number = array[(sample, *place)] if array.ndim else array
    return (
        f"sample {sample} has {number:g}{at}; valid are finite numbers: kernels may make ordinary ones "
        f"of others"
    )


def _is_finite(array: np.ndarray) -> bool:
    if not array.flags.c_contiguous or array.dtype.itemsize < 4:
        return bool(np.isfinite(array).all())
    flat = array.reshape(-1)
    if flat.size <= _FEW:
        with np.errstate(all="ignore"):  # a sum of squares is finite only where all are
            return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
    chunks = (flat[at : at + _CHUNK] for at in range(0, flat.size, _CHUNK))
    return all(np.isfinite(chunk.max()) and np.isfinite(chunk.min()) for chunk in chunks)
