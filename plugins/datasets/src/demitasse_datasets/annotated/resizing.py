"""Resizing images, and the positions of boxes in the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse import unknown
from demitasse_datasets.annotated.boxes import Reals
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.images import INTERPOLATIONS, LARGEST_IMAGE, opencv

MODES = ("WARP", "FIT_SMALL_SIZE", "FIT_LARGE_SIZE_AND_PAD")
PADS = {"CONSTANT": "BORDER_CONSTANT", "MIRRORED": "BORDER_REFLECT_101"}
PADS |= {"REPEAT_NEAREST": "BORDER_REPLICATE"}


@dataclass(frozen=True)
class Resizing:
    """Resizes to ``height`` x ``width``, by any of ``interpolations``. The ``mode`` WARP changes
    proportions. FIT_LARGE_SIZE_AND_PAD keeps them and pads both sides as ``pad`` says, with ``values``
    for the channels. FIT_SMALL_SIZE keeps them and leaves one side longer."""

    height: int
    width: int
    mode: str = "WARP"
    interpolations: tuple[str, ...] = ()
    pad: str = "CONSTANT"
    values: tuple[float, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width that all images get; None if they differ."""
        return None if self.mode == "FIT_SMALL_SIZE" else (self.height, self.width)

    def __call__(self, pixels: np.ndarray, boxes: Reals, draws: Draws) -> tuple[np.ndarray, Reals]:
        """Resize an image (height, width, channels), uint8, and the boxes (objects, 4) in it."""
        made = self.image(pixels, draws.below(max(1, len(self.interpolations))))
        if self.mode == "FIT_LARGE_SIZE_AND_PAD":
            height, width = self._inner(*pixels.shape[:2])
            left, top = (self.width - width) // 2, (self.height - height) // 2
            inner, outer = np.array([width, height] * 2), np.array([self.width, self.height] * 2)
            boxes = (boxes * inner + np.array([left, top] * 2)) / outer
        return made, boxes

    def image(self, pixels: np.ndarray, chosen: int = 0) -> np.ndarray:
        """Resize an image by the interpolation of this number."""
        cv2 = opencv()
        how = getattr(cv2, f"INTER_{(self.interpolations or ('LINEAR',))[chosen]}")
        height, width = self._inner(*pixels.shape[:2])
        made = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=how)
        if self.mode == "FIT_LARGE_SIZE_AND_PAD":
            down, across = self.height - height, self.width - width
            top, left = down // 2, across // 2
            made = cv2.copyMakeBorder(
                *(made, top, down - top, left, across - left, getattr(cv2, PADS[self.pad])),
                value=(*self.values, 0, 0, 0, 0)[:4] if len(self.values) != 1 else self.values * 4,
            )
        return np.asarray(made).reshape(*made.shape[:2], -1)

    def check(self) -> None:
        """Raise ValueError for an invalid size or an unknown name."""
        for what, side in (("height", self.height), ("width", self.width)):
            if not 1 <= side <= LARGEST_IMAGE:
                raise ValueError(f"{what} {side:,} of images (valid: 1 to {LARGEST_IMAGE:,})")
        for what, name, valid in (
            ("mode of resizing", self.mode, MODES),
            ("kind of padding", self.pad, tuple(PADS)),
            *(("interpolation", each, INTERPOLATIONS) for each in self.interpolations),
        ):
            if name not in valid:
                raise ValueError(unknown(what, name, valid))

    def _inner(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which an image is resized before padding."""
        if self.mode == "WARP":
            return self.height, self.width
        wide = width / height > self.width / self.height
        if wide == (self.mode == "FIT_LARGE_SIZE_AND_PAD"):
            return max(1, int(self.width * height / width)), self.width
        return self.height, max(1, int(width / height * self.height))
