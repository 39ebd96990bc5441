"""Squares cut from images of any size. Draws depend on a sample's number in the global order, and are
therefore the same however the work is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from demitasse import DataError, crop_and_mirror
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.scaling import Scaling

BITS = 30


def draws(seed: int, stream: int, first: int, count: int) -> np.ndarray:
    """Return (count, 3) int64, for samples from ``first`` on: two numbers below 2**30, and 0 or 1."""
    top = (1 << BITS) - 1
    drawn: np.ndarray = crop_and_mirror(seed, stream, 0, first, count, top, top)
    return drawn


def below(draw: int, extent: int) -> int:
    """Scale a draw below 2**30 to a whole number below ``extent``."""
    return int(draw) * extent >> BITS


@dataclass(frozen=True)
class Crop:
    """A square of ``size`` pixels (0: the whole image), from the middle or a random place. Images are
    first resized by ``scaling``; without a crop, all to the same size."""

    size: int = 0
    random: bool = False
    seed: int = 0
    stream: int = 0
    scaling: Scaling | None = None

    @property
    def whole(self) -> bool:
        """Whether images keep their size."""
        return not self.size and self.scaling is None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that an image of ``shape`` (channels, height, width) gets. Raises DataError
        if it is too small."""
        if self.size > min(shape[1:]) and self.scaling is None:
            self._refuse(shape)
        if self.size:
            return (shape[0], self.size, self.size)
        fitted = getattr(self.scaling, "size", None)
        return (shape[0], *fitted) if fitted else shape

    def _refuse(self, shape: tuple[int, ...]) -> NoReturn:
        raise DataError(
            f"its image has shape {shape} (channels, height, width), too small for a crop of {self.size}"
        )

    def draws(self, first: int, count: int) -> np.ndarray:
        """Return the draws for ``cut``, for samples from ``first`` on."""
        if self.size and self.random:
            return draws(self.seed, self.stream, first, count)
        return np.zeros((count, 3), np.int64)

    def cut(self, pixels: np.ndarray, draw: np.ndarray, sample: int) -> np.ndarray:
        """Return the square cut from the image of sample ``sample`` (a view, unless it was scaled).
        Raises DataError if the image is too small."""
        if self.scaling is not None:
            drawn = Draws(self.seed, self.stream, sample, self.scaling.takes).block(self.scaling.takes)
            rows = np.ascontiguousarray(pixels.transpose(1, 2, 0))
            pixels = self.scaling(rows, self.size, drawn).transpose(2, 0, 1)
        if self.size > min(pixels.shape[1:]):
            self._refuse(pixels.shape)
        if not self.size:
            return pixels
        rows, columns = (extent - self.size for extent in pixels.shape[1:])
        top, left = rows // 2, columns // 2
        if self.random:
            top, left = below(draw[0], rows + 1), below(draw[1], columns + 1)
        return pixels[:, top : top + self.size, left : left + self.size]


def fit(pixels: np.ndarray, place: np.ndarray) -> None:
    """Copy an image to its place in a batch. Raises DataError if its shape or type differs from the
    first sample's, for which the batch was made."""
    if pixels.shape != place.shape or pixels.dtype != place.dtype:
        raise DataError(
            f"its image has shape {pixels.shape} ({pixels.dtype}), but the first sample's has "
            f"{place.shape} ({place.dtype}); all of a batch must be equal: resize them when read or "
            f"converted, crop, or have batches of one"
        )
    np.copyto(place, pixels)
