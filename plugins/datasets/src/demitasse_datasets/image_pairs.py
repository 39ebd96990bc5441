"""Samples from pairs of image files that a text lists: an image, and one whose pixels are classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError, Field
from demitasse_datasets import images
from demitasse_datasets.crops import below, draws, fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.image_list import beside, lines, read_image, text_of
from demitasse_datasets.samples import naming

Size = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class Pair:
    """A line of a list: its number (from 1), the image's path and that of its classes."""

    line: int
    image: str
    classes: str


@dataclass(frozen=True)
class Cut:
    """What becomes of both images of a pair alike: a part of ``size`` from anywhere (None: all), and,
    with ``mirror``, each second one mirrored; drawn by the sample's number in the global order."""

    size: Size | None = None
    mirror: bool = False
    seed: int = 0
    stream: int = 0


def read_pairs(path: Path) -> list[Pair]:
    """A list of pairs: two paths a line, a blank between. Raises DataError with the line."""
    pairs = []
    for number, line in lines(path):
        names = line.split()
        if len(names) != 2:
            text_of(path, strict=True)  # an image or a database given for a list
            raise DataError(
                f"{path}:{number}: {line[:200]!r} is not two paths with a blank between: an image, and "
                f"the image of its classes"
            )
        pairs.append(Pair(number, *names))
    if not pairs:
        raise DataError(f"{path}: lists no images")
    return pairs


class PairSamples:
    """The pairs of a list: ``data`` (channels, rows, columns) uint8, blue first, and ``label`` (1, rows,
    columns) uint8, a class for each pixel, or for each square of ``divide`` x ``divide``.

    ``resized`` is (rows, columns); classes are never mixed, but the nearest taken. ``root`` is put
    before each path as Caffe does, as text.
    """

    def __init__(
        self, path: Path, root: str, mode: str, resized: Size | None, cut: Cut, divide: int = 1
    ) -> None:
        self.name, self._pairs = str(path), read_pairs(path)
        self.size = len(self._pairs)
        self._root, self._mode, self._resized, self._cut = root, mode, resized, cut
        self._divide, self._pool = divide, decoders()
        with naming(self._where(0)):
            pixels, classes = self._pair(0, np.zeros(3, np.int64))
        self.fields: Mapping[str, Field] = {
            "data": Field(pixels.shape, "uint8"),
            "label": Field(classes.shape, "uint8"),
        }

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        drawn = draws(self._cut.seed, self._cut.stream, first, len(numbers))

        def one(i: int) -> None:
            number = int(numbers[i])
            with naming(self._where(number)):
                made = self._pair(number, drawn[i])
                for name, array in zip(("data", "label"), made, strict=True):
                    if name in out:
                        fit(array, out[name][i])

        for_each(self._pool, len(numbers), one)

    def _where(self, number: int) -> str:
        pair = self._pairs[number]
        return f"{self.name}:{pair.line}: {self._root}{pair.image}"

    def _pair(self, number: int, draw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An image and its classes, each (channels, rows, columns), as a draw has them."""
        pair = self._pairs[number]
        pixels = self._read(pair.image, self._mode)
        classes = self._read(pair.classes, "gray", f"its classes, {self._root}{pair.classes}")
        size = self._resized or classes.shape[:2]
        pixels = images.resize(pixels, *self._resized) if self._resized else pixels
        rows, columns = (extent // self._divide for extent in size)
        if min(rows, columns) < 1:
            raise DataError(f"nothing is left of {size} pixels divided by {self._divide}")
        classes = images.resize_nearest(classes, rows, columns)
        if pixels.shape[0] // self._divide != rows or pixels.shape[1] // self._divide != columns:
            raise DataError(
                f"its image has {pixels.shape[1]} x {pixels.shape[0]} pixels and its classes have "
                f"{size[1]} x {size[0]}; resize both, by new_height and new_width"
            )
        pixels, classes = self._cut_alike(images.planes(pixels), images.planes(classes), draw)
        mirrored = self._cut.mirror and draw[2]
        return (pixels[:, :, ::-1], classes[:, :, ::-1]) if mirrored else (pixels, classes)

    def _read(self, name: str, mode: str, what: str = "") -> np.ndarray:
        try:
            return read_image(beside(self._root + name, Path(self.name)), mode, None)
        except DataError as error:
            if not what:
                raise
            raise DataError(f"{what}: {error}") from error

    def _cut_alike(
        self, pixels: np.ndarray, classes: np.ndarray, draw: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._cut.size is None:
            return pixels, classes
        rows, columns = self._cut.size
        spare = pixels.shape[1] - rows, pixels.shape[2] - columns
        if min(spare) < 0:
            raise DataError(
                f"its image has {pixels.shape[2]} x {pixels.shape[1]} pixels, too small for a part of "
                f"{columns} x {rows}"
            )
        top, left = below(draw[0], spare[0] + 1), below(draw[1], spare[1] + 1)
        within = (slice(None), slice(top, top + rows), slice(left, left + columns))
        return pixels[within], classes[within]
