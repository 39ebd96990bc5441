"""Changes of an image and its boxes before a net sees them: recoloured, placed in a larger image, cut,
resized, cropped and mirrored, in the order of SSD's fork. Liu et al. 2016, *SSD*, sections 2.2, 3.6."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse import DataError
from demitasse_datasets.annotated.boxes import (
    WHOLE,
    Reals,
    areas,
    common,
    mirrored,
    shares,
    within,
)
from demitasse_datasets.annotated.colours import Distorted, Distortion
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.annotated.resizing import Resizing
from demitasse_datasets.annotated.sampling import Sampling
from demitasse_datasets.images import opencv


@dataclass(frozen=True)
class Augmentation:
    """All changes; None and the defaults change nothing.

    ``expansion`` is a probability, and how many times as long as the image's own the sides of the larger
    image are at most. It is filled with ``fill`` (one number, or one per channel). ``crop`` is a height
    and a width, at a random place if ``random``, otherwise in the middle. ``emit`` says which objects
    are kept in a part: with "CENTER", those whose centre is in it; with a number, those of which more
    than this fraction is in it; otherwise all that overlap it.
    """

    distortion: Distortion | None = None
    expansion: tuple[float, float] | None = None
    fill: tuple[float, ...] = (0.0,)
    sampling: Sampling = field(default_factory=Sampling)
    resizing: Resizing | None = None
    crop: tuple[int, int] | None = None
    random: bool = False
    mirror: bool = False
    emit: Any = None
    seed: int = 0
    stream: int = 0

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width that all images get; None if they differ."""
        return self.crop or (self.resizing.size if self.resizing else None)

    def __call__(self, pixels: np.ndarray, rows: Reals, number: int) -> tuple[np.ndarray, Reals]:
        """Apply the changes to sample ``number``: its image (height, width, channels), uint8, and its
        objects (objects, 7): class, number, corners, and whether it is difficult. Raises DataError for
        an image that is smaller than the crop."""
        draws = Draws(self.seed, self.stream, number, self.sampling.draws)
        distorted = self.distortion.drawn(draws) if self.distortion else Distorted()
        height, width = pixels.shape[:2]
        left, top, across, down = self._larger(height, width, draws)
        if (left, top, across, down) != (0, 0, width, height):
            outer = np.array([left, top, left + across, top + down]) / ([width, height] * 2)
            rows = self._seen(rows, outer)
        part = self.sampling.part(rows[:, 2:6], draws)
        if part is not None:
            x, y = int(part[0] * across), int(part[1] * down)
            wide, high = (max(1, int(side)) for side in (part[2:] - part[:2]) * (across, down))
            rows = self._seen(rows, np.array([x, y, x + wide, y + high]) / ([across, down] * 2))
            left, top, across, down = left + x, top + y, wide, high
        pixels = self._cut(pixels, distorted, left, top, across, down)
        boxes = rows[:, 2:6]
        if self.resizing:
            pixels, boxes = self.resizing(pixels, boxes, draws)
        rows = np.concatenate([rows[:, :2], boxes, rows[:, 6:]], 1)
        pixels, window = self._cropped(pixels, draws)
        rows = self._seen(rows, window)
        if draws.happens(0.5) and self.mirror:
            pixels = pixels[:, ::-1]
            rows = np.concatenate([rows[:, :2], mirrored(rows[:, 2:6]), rows[:, 6:]], 1)
        return pixels, rows

    def _larger(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return left, top, width and height of the larger image, in pixels relative to this image."""
        probability, most = self.expansion or (0.0, 1.0)
        happens, ratio = draws.happens(probability), draws.uniform(1, most)
        down, across = draws.block(2)
        if not happens or abs(most - 1) < 1e-2:
            return 0, 0, width, height
        outer_height, outer_width = int(height * ratio), int(width * ratio)
        top, left = int(down * (outer_height - height)), int(across * (outer_width - width))
        return -left, -top, outer_width, outer_height

    def _seen(self, rows: Reals, part: Reals) -> Reals:
        """Return the objects that are visible in a part of the image, in that part's coordinates."""
        boxes = rows[:, 2:6]
        if self.emit == "CENTER":
            centre = (boxes[:, :2] + boxes[:, 2:]) / 2
            stays = ((centre >= part[:2]) & (centre <= part[2:])).all(1)
        elif self.emit is not None:
            stays = shares(common(boxes, part), areas(boxes)) > self.emit
        else:
            stays = np.ones(len(rows), bool)
        there = within(part, boxes)
        stays &= areas(there) > 0
        return np.concatenate([rows[:, :2], there, rows[:, 6:]], 1)[stays]

    def _cut(
        self, pixels: np.ndarray, distorted: Distorted, left: int, top: int, across: int, down: int
    ) -> np.ndarray:
        """Cut a rectangle of the recoloured image, filled where it extends beyond the image. Only
        visible pixels are recoloured, because recolouring treats each pixel separately."""
        height, width, channels = pixels.shape
        rows = np.clip((top, top + down), 0, height)
        columns = np.clip((left, left + across), 0, width)
        inside = pixels[slice(*rows), slice(*columns)]
        if inside.size:
            inside = distorted(inside)
        if inside.shape[:2] == (down, across):
            return inside
        fill = np.broadcast_to(np.rint(self.fill).clip(0, 255).astype(np.uint8), channels)
        if not inside.size:
            return np.broadcast_to(fill, (down, across, channels))
        around = rows[0] - top, top + down - rows[1], columns[0] - left, left + across - columns[1]
        cv2 = opencv()
        made = cv2.copyMakeBorder(inside, *map(int, around), cv2.BORDER_CONSTANT, value=fill.tolist())
        return np.asarray(made).reshape(down, across, channels)

    def _cropped(self, pixels: np.ndarray, draws: Draws) -> tuple[np.ndarray, Reals]:
        """Return the crop, and which part of the image it is."""
        down, across = draws.block(2)
        if self.crop is None:
            return pixels, WHOLE
        (height, width), (rows, columns) = pixels.shape[:2], self.crop
        if rows > height or columns > width:
            raise DataError(
                f"its image is {width} x {height} pixels, too small for a crop of {columns} x {rows}"
            )
        top, left = (height - rows) // 2, (width - columns) // 2
        if self.random:
            top, left = int(down * (height - rows + 1)), int(across * (width - columns + 1))
        window = np.array([left, top, left + columns, top + rows]) / ([width, height] * 2)
        return pixels[top : top + rows, left : left + columns], window
