"""The error that checks raise, and the tolerances of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

WITHIN = {"f64": 1e-9, "f32": 1e-4, "tf32": 3e-3, "bf16": 1e-2}
"""The tolerance of a number, by precision, relative to the reference's in double precision and to the
largest in its array: for sums of a few hundred rounded products, added in any order."""

LEAST = 1e-2
"""The least value that counts as the largest number of an array: what remains of numbers of the order of
1 that cancel is rounding."""


class BrokenPromiseError(AssertionError):
    """A plugin did not do what its role promises; the message says what was found."""


def hold(kept: Any, sentence: str) -> None:
    """Raise BrokenPromiseError with ``sentence`` unless ``kept``."""
    if not kept:
        raise BrokenPromiseError(sentence)


def differing(ours: Any, theirs: Any, within: float, whose: str = "the reference's") -> str:
    """Return how ``ours`` differs from ``theirs``, logical arrays of the same shape, as the end of a
    sentence; "" if all numbers are ``within`` tolerance, relative to each number and the largest. Whole
    numbers have to be equal."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return f"the shape is {ours.shape}, but {whose} is {theirs.shape}"
    if theirs.dtype.kind == "f":
        expected = theirs.astype(np.float64)
        finite = np.isfinite(expected)
        largest = max(LEAST, float(np.abs(expected[finite]).max(initial=0.0)))
        found = ours.astype(np.float64)
        with np.errstate(invalid="ignore"):
            far = np.abs(found - expected)
            wrong = np.where(
                finite,
                ~(far <= within * (np.abs(expected) + largest)),
                ~((found == expected) | (np.isnan(found) & np.isnan(expected))),
            )
    else:
        wrong = ours != theirs
    if not wrong.any():
        return ""
    at = tuple(map(int, np.argwhere(wrong)[0]))
    place = f"that at {list(at)}" if at else "it"
    count = f"{int(wrong.sum()):,} of {wrong.size:,} numbers differ from {whose}"
    return f"{count}: {place} is {ours[at]:.7g}, not {theirs[at]:.7g}"
