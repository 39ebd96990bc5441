"""Random changes of brightness and colours. A. Howard 2013, *Some Improvements on Deep Convolutional
Neural Network Based Image Classification*, as implemented in SSD's fork."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.images import opencv

_LEAST = 1e-3
"""A factor closer to 1 than this changes nothing."""


@dataclass(frozen=True)
class Distortion:
    """Random changes, each with its probability: up to ``brightness`` is added to or subtracted from all
    pixels; they are multiplied by a factor within ``contrast``, and their saturation by one within
    ``saturation``; an angle of up to ``hue`` (half degrees) is added to or subtracted from their hue;
    and channels are reordered. Contrast follows either brightness or hue, with equal probability."""

    brightness_probability: float = 0.0
    brightness: float = 0.0
    contrast_probability: float = 0.0
    contrast: tuple[float, float] = (0.0, 0.0)
    saturation_probability: float = 0.0
    saturation: tuple[float, float] = (0.0, 0.0)
    hue_probability: float = 0.0
    hue: float = 0.0
    order_probability: float = 0.0

    def drawn(self, draws: Draws) -> Distorted:
        """Draw the changes for one image."""
        contrast_first = draws.happens(0.5)
        brightness = self._amount(draws, self.brightness_probability, -self.brightness, self.brightness)
        contrast = self._amount(draws, self.contrast_probability, *self.contrast, idle=1.0)
        saturation = self._amount(draws, self.saturation_probability, *self.saturation, idle=1.0)
        hue = self._amount(draws, self.hue_probability, -self.hue, self.hue)
        orders = draws.block(3)
        order = np.argsort(orders) if draws.happens(self.order_probability) else None
        return Distorted(brightness, contrast, saturation, hue, contrast_first, order)

    def _amount(
        self, draws: Draws, probability: float, low: float, high: float, idle: float = 0.0
    ) -> float:
        amount = draws.uniform(low, high)
        return amount if draws.happens(probability) else idle


@dataclass(frozen=True)
class Distorted:
    """The changes for one image: amounts to add and factors to multiply by. Each result is rounded."""

    brightness: float = 0.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    contrast_first: bool = True
    order: np.ndarray | None = None

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Change an image (height, width, channels), uint8; without three channels, only its brightness
        and contrast change."""
        coloured = pixels.shape[2] == 3
        contrast = _line(self.contrast, 0.0) if abs(self.contrast - 1) > _LEAST else None
        made = _looked_up(pixels, _line(1.0, self.brightness) if self.brightness else None)
        if self.contrast_first or not coloured:
            made = _looked_up(made, contrast)
        if coloured:
            made = self._in_other_colours(made)
            if not self.contrast_first:
                made = _looked_up(made, contrast)
            if self.order is not None:
                made = np.ascontiguousarray(made[:, :, self.order])
        return made

    def _in_other_colours(self, pixels: np.ndarray) -> np.ndarray:
        factor = self.saturation if abs(self.saturation - 1) > _LEAST else 1.0
        if factor == 1 and not self.hue:
            return pixels
        cv2 = opencv()
        table = np.stack([_line(1.0, self.hue), _line(factor, 0.0), _line(1.0, 0.0)], -1)[None]
        changed = cv2.LUT(cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV), table)
        return np.asarray(cv2.cvtColor(changed, cv2.COLOR_HSV2BGR))


def _line(factor: float, amount: float) -> np.ndarray:
    """Return a table that multiplies each byte by a factor and adds an amount, rounded to a byte."""
    line: np.ndarray = np.rint(np.arange(256) * factor + amount).clip(0, 255)
    return line.astype(np.uint8)


def _looked_up(pixels: np.ndarray, table: Any) -> np.ndarray:
    if table is None:
        return pixels
    made = np.asarray(opencv().LUT(np.ascontiguousarray(pixels), table))
    return made.reshape(pixels.shape)
