"""Crop, mirror, mean and scale, applied when samples are read. Random draws for a sample depend on its
number in the global order, so they are the same for any number of workers and after any resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse import DataError, Field, crop_and_mirror
from demitasse_striped_io import loops

BITS = 30


def draws(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return (count, 3) int64, for samples from number ``first`` of the order on: two numbers below
    2**30, and 0 or 1."""
    top = (1 << BITS) - 1
    drawn: np.ndarray = crop_and_mirror(seed, stream, 0, first, count, top, top)
    return drawn


def places(drawn: np.ndarray, rows: int, columns: int, random: bool) -> np.ndarray:
    """Return (count, 2) int64: top and left of crops that leave ``rows`` and ``columns`` out; in the
    middle unless ``random``."""
    if not random:
        return np.broadcast_to(np.array([rows // 2, columns // 2]), (len(drawn), 2))
    return np.asarray(drawn[:, :2] * np.array([rows + 1, columns + 1]) >> BITS)


class Transform:
    """Computes (image - mean) * scale of a crop, and mirrors half of the samples, at random."""

    def __init__(self, given: Mapping[str, Any], field: Field, seed: int, stream: int) -> None:
        """Raises DataError if the samples are not images, are smaller than the crop, or do not fit the
        mean."""
        if len(field.shape) != 3:
            raise DataError(f"only images can be transformed, not samples of shape {field.shape}")
        channels, height, width = field.shape
        self.crop, self.random = int(given["crop"]), bool(given["random"])
        self.mirror, self.scale = bool(given["mirror"]), float(given["scale"])
        if self.crop > min(height, width):
            raise DataError(f"samples of shape {field.shape} are too small for a crop of {self.crop}")
        mean = given["mean"]
        self.whole = mean.shape == field.shape
        if not self.whole:
            if mean.size not in (1, channels):
                raise DataError(
                    f"a mean of shape {mean.shape} for samples of shape {field.shape} (valid: a "
                    f"number, {channels} of them, or an image of that shape)"
                )
            mean = np.broadcast_to(mean.reshape(-1, 1, 1), (channels, 1, 1))
        self.mean = np.ascontiguousarray(mean, np.float32)
        self.rows, self.columns = (self.crop, self.crop) if self.crop else (height, width)
        self.out = (height - self.rows, width - self.columns)
        self.field = Field((channels, self.rows, self.columns), "float32")
        self.seed, self.stream = seed, stream

    def places(self, first: int, count: int) -> np.ndarray:
        """Return (count, 3) int64: top, left, mirrored."""
        drawn = draws(self.seed, self.stream, first, count)
        made = np.empty((count, 3), np.int64)
        made[:, :2] = places(drawn, *self.out, self.random)
        made[:, 2] = drawn[:, 2] if self.mirror else 0
        return made

    def apply(self, samples: np.ndarray, where: np.ndarray, out: np.ndarray) -> None:
        """Transform samples (n, channels, height, width) into ``out``, float32."""
        loops.transform(samples, where, self.mean, self.whole, self.scale, out)
