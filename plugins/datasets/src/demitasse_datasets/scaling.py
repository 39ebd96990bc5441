"""Resizing images before a square is cut from them: at random, as in Intel's and NVIDIA's forks of Caffe
for training on ImageNet (Szegedy et al. 2015, *Going Deeper with Convolutions*, section 6), or to one
size, as in SSD's fork."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import DataError
from demitasse_datasets.annotated.resizing import Resizing
from demitasse_datasets.images import INTERPOLATIONS, LARGEST_IMAGE, opencv


def sized(pixels: np.ndarray, height: int, width: int, how: str) -> np.ndarray:
    """Resize an image (height, width, channels) by one of ``INTERPOLATIONS``."""
    cv2 = opencv()
    made = cv2.resize(pixels, (width, height), interpolation=getattr(cv2, f"INTER_{how}"))
    return np.asarray(made[:, :, None] if made.ndim == 2 else made)


def with_shorter_side(pixels: np.ndarray, side: int, how: str) -> np.ndarray:
    """Resize an image, keeping its proportions, so that its shorter side has this length."""
    height, width = pixels.shape[:2]
    if height < width:
        return sized(pixels, side, int(width / height * side), how)
    return sized(pixels, int(height / width * side), side, how)


@dataclass(frozen=True)
class ShorterSide:
    """Resizes so that the shorter side has ``least`` to ``most`` pixels, where 0 stands for the length
    of the shorter and of the longer side, respectively."""

    least: int = 0
    most: int = 0
    interpolations: tuple[str, ...] = ("LINEAR",)

    takes = 2
    """How many random numbers an image takes."""

    def __call__(self, pixels: np.ndarray, crop: int, drawn: np.ndarray) -> np.ndarray:
        """Resize an image by numbers in [0, 1); the crop is cut from it afterwards. Raises DataError."""
        least, most = self.least or min(pixels.shape[:2]), self.most or max(pixels.shape[:2])
        if most < least:
            raise DataError(
                f"its shorter side would be {least} to {most} pixels long, which is out of range"
            )
        side = least + int(drawn[0] * (most - least + 1))
        return with_shorter_side(pixels, side, _one_of(self.interpolations, drawn[1]))


@dataclass(frozen=True)
class PartOfArea:
    """Takes a part of the image and resizes it to a square of the crop's size. The part has a fraction
    of the area between ``least`` and ``most``; compared with a square, its sides are longer and shorter
    by a factor between ``change`` and 1 / ``change``. If none of ``attempts`` parts fits into the image,
    the shorter side is resized to the crop's."""

    least: float = 0.5
    most: float = 1.0
    change: float = 1.0
    attempts: int = 10
    interpolations: tuple[str, ...] = ("LINEAR",)

    @property
    def takes(self) -> int:
        """How many random numbers an image takes."""
        return 5 * self.attempts + 1

    def __call__(self, pixels: np.ndarray, crop: int, drawn: np.ndarray) -> np.ndarray:
        """Return an image of at least ``crop`` x ``crop`` pixels for numbers in [0, 1)."""
        height, width = pixels.shape[:2]
        how = _one_of(self.interpolations, drawn[-1])
        for area, change, swapped, down, across in drawn[:-1].reshape(-1, 5):
            share = self.least + area * (self.most - self.least)
            factor = self.change + change * (1 / self.change - self.change)
            side = np.sqrt(share * height * width)
            tall, wide = max(1, int(side * factor)), max(1, int(side / factor))
            if swapped < 0.5:
                tall, wide = wide, tall
            if tall <= height and wide <= width:
                top, left = int(down * (height - tall + 1)), int(across * (width - wide + 1))
                part = np.ascontiguousarray(pixels[top : top + tall, left : left + wide])
                return sized(part, crop, crop, how)
        return with_shorter_side(pixels, crop, how)


@dataclass(frozen=True)
class Stretched:
    """Resizes the shorter side to ``least`` to ``most`` pixels (0: unchanged). With a ``ratio`` above 1,
    the longer side becomes that many times as long. Then both are stretched, by ``tall`` and ``wide``.
    Each is a pair between which to draw. No side gets shorter than the crop's or, unless ``enlarges``,
    longer than it was."""

    least: int = 0
    most: int = 0
    ratio: tuple[float, float] = (0.0, 0.0)
    tall: tuple[float, float] = (1.0, 1.0)
    wide: tuple[float, float] = (1.0, 1.0)
    enlarges: bool = False
    interpolations: tuple[str, ...] = ("NEAREST", "CUBIC")
    """For images that get smaller, and for others."""

    takes = 5
    """How many random numbers an image takes."""

    def __call__(self, pixels: np.ndarray, crop: int, drawn: np.ndarray) -> np.ndarray:
        """Resize an image by numbers in [0, 1); the crop is cut from it afterwards."""
        had = pixels.shape[:2]
        side = min(had)
        if self.least and self.most:
            side = self.least + int(drawn[0] * (self.most - self.least + 1))
        sides = [extent * side / min(had) for extent in had]
        if self.ratio[0] >= 1 and self.ratio[1] > 1:
            ratio = _within(self.ratio, drawn[1])
            longer = int(drawn[2] < 0.5) if had[0] == had[1] else int(had[1] > had[0])
            sides[longer] = sides[1 - longer] * ratio
        sides[0] *= _within(self.tall, drawn[3])
        sides[1] *= _within(self.wide, drawn[4])
        height, width = (min(LARGEST_IMAGE, max(crop, int(extent + 0.5))) for extent in sides)
        if not self.enlarges:
            height, width = min(height, had[0]), min(width, had[1])
        if (height, width) == had:
            return pixels
        smaller = height <= had[0] and width <= had[1]
        return sized(pixels, height, width, self.interpolations[0 if smaller else -1])


@dataclass(frozen=True)
class Resized:
    """Resizes as ``resizing`` says, by one of its interpolations, at random."""

    resizing: Resizing

    takes = 1
    """How many random numbers an image takes."""

    @property
    def interpolations(self) -> tuple[str, ...]:
        return self.resizing.interpolations

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width that all images get; None if they differ."""
        return self.resizing.size

    def __call__(self, pixels: np.ndarray, crop: int, drawn: np.ndarray) -> np.ndarray:
        """Resize an image by a number in [0, 1)."""
        count = max(1, len(self.interpolations))
        return self.resizing.image(pixels, min(int(drawn[0] * count), count - 1))


Scaling = ShorterSide | PartOfArea | Stretched | Resized


def scaling(given: dict[str, Any]) -> Scaling:
    """Return the scaling that plain values describe: ``Resized`` if there is ``mode``, ``PartOfArea`` if
    there is ``change``, ``Stretched`` if there is ``enlarges``, otherwise ``ShorterSide``. Raises
    ValueError or TypeError."""
    if "mode" in given:
        resizing = Resizing(**given)
        resizing.check()
        return Resized(resizing)
    kind = PartOfArea if "change" in given else Stretched if "enlarges" in given else ShorterSide
    made: ShorterSide | PartOfArea | Stretched = kind(**given)
    if max(made.least, made.most) > LARGEST_IMAGE:
        raise ValueError(f"images are resized to at most {LARGEST_IMAGE:,} pixels")
    if unknown := set(made.interpolations) - set(INTERPOLATIONS):
        raise ValueError(f"interpolations {sorted(unknown)} (valid: {', '.join(INTERPOLATIONS)})")
    return made


def _within(bounds: tuple[float, float], drawn: float) -> float:
    return bounds[0] + drawn * (bounds[1] - bounds[0])


def _one_of(names: tuple[str, ...], drawn: float) -> str:
    return names[min(int(drawn * len(names)), len(names) - 1)]
