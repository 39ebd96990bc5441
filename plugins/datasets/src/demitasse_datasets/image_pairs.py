"""Samples from a list of image files with the classes of their pixels: given as an image of classes, as
one class for all pixels, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError, Field, file_text
from demitasse_datasets import images
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.crops import below, draws, fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.image_list import lines, read_image
from demitasse_datasets.samples import naming

CLASSES = ("pixels", "image", "none")
"""What follows the image on a line: an image of classes, one number for all pixels, or nothing."""

_HALF = 127
"""The largest value that is not above half of white."""

Size = tuple[int, int]
"""Rows and columns."""

Two = tuple[np.ndarray, np.ndarray]
"""An image (rows, columns, channels) and its classes (rows, columns, 1)."""


@dataclass(frozen=True)
class Listed:
    """A line of a list: its number (from 1), the image's path, and the source of its classes."""

    line: int
    image: str
    classes: str


@dataclass(frozen=True)
class Cut:
    """The same changes to an image and its classes, drawn by the sample's number in the global order.
    They are resized by one of ``scales``. If they are smaller than ``size``, and the class ``filled`` is
    given, they are padded below and on the right. A part of that size is cut from anywhere, or from the
    middle. With ``mirror``, half of the samples are mirrored, at random."""

    size: Size | None = None
    anywhere: bool = True
    mirror: bool = False
    scales: tuple[float, ...] = ()
    filled: int | None = None
    seed: int = 0
    stream: int = 0

    def resized(self, two: Two, sample: int) -> Two:
        """Resize both for a sample: the image by bilinear interpolation, its classes to the nearest."""
        if not self.scales:
            return two
        factor = self.scales[Draws(self.seed, self.stream, sample).below(len(self.scales))]
        rows, columns = (max(1, int(side * factor)) for side in two[0].shape[:2])
        return images.resize(two[0], rows, columns), images.resize_nearest(two[1], rows, columns)

    def __call__(self, two: Two, draw: np.ndarray) -> Two:
        """Cut and mirror both by the draw of ``crops.draws``. Raises DataError if they are too small."""
        if self.size is not None:
            two = self._part(self._filled(two), draw)
        return (two[0][:, ::-1], two[1][:, ::-1]) if self.mirror and draw[2] else two

    def _filled(self, two: Two) -> Two:
        assert self.size is not None
        more = [max(0, side - has) for side, has in zip(self.size, two[0].shape[:2], strict=True)]
        if self.filled is None or not any(more):
            return two
        widths = [(0, more[0]), (0, more[1]), (0, 0)]
        return np.pad(two[0], widths), np.pad(two[1], widths, constant_values=self.filled)

    def _part(self, two: Two, draw: np.ndarray) -> Two:
        assert self.size is not None
        (rows, columns), (height, width) = self.size, two[0].shape[:2]
        spare = height - rows, width - columns
        if min(spare) < 0:
            raise DataError(
                f"its image has {width} x {height} pixels, too small for a part of {columns} x {rows}"
            )
        top, left = spare[0] // 2, spare[1] // 2
        if self.anywhere:
            top, left = below(draw[0], spare[0] + 1), below(draw[1], spare[1] + 1)
        within = slice(top, top + rows), slice(left, left + columns)
        return two[0][within], two[1][within]


def read_pairs(path: Path, kind: str = "pixels") -> list[Listed]:
    """Read a list of images and, depending on ``kind``, the sources of their classes, separated by a
    blank. Raises DataError with the line."""
    wanted = {"pixels": "an image, and the image of its classes", "image": "an image, and its class"}
    pairs = []
    for number, line in lines(path):
        names = line.split()
        if (kind != "none" and len(names) != 2) or (kind == "image" and not _is_class(names[-1])):
            file_text(path, strict=True)  # raises for an image or a database in place of a list
            what = "two paths" if kind == "pixels" else "a path and a class from 0 to 255"
            raise DataError(
                f"{path}:{number}: {line[:200]!r} is not {what} with a blank between: {wanted[kind]}"
            )
        pairs.append(Listed(number, *(*names, "")[:2]))
    if not pairs:
        raise DataError(f"{path}: lists no images")
    return pairs


def _is_class(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 4 and int(text) < 256


class PairSamples:
    """The images of a list: ``data`` (channels, rows, columns), blue first, uint8, or float32 if the
    ``mean`` of each channel (or of all) is subtracted; ``label`` (1, rows, columns) uint8, a class for
    each pixel, or for each square of ``divide`` x ``divide``; and ``data_dim`` (1, 1, 2), the rows and
    columns of the image, at most those of ``data``.

    ``resized`` is (rows, columns); classes are never interpolated, but taken from the nearest pixel.
    ``classes`` is one of ``CLASSES``; if it is "none", all pixels have the class used for padding. With
    ``edges``, an image of classes tells how certain an edge is: it is resized by bilinear interpolation,
    and becomes 1 above half of white, otherwise 0. ``root`` is put in front of each path as text, as in
    Caffe.
    """

    def __init__(
        self,
        path: Path,
        root: str,
        mode: str,
        resized: Size | None,
        cut: Cut,
        divide: int = 1,
        mean: np.ndarray | None = None,
        classes: str = "pixels",
        edges: bool = False,
    ) -> None:
        self.name, self._pairs, self._classes = str(path), read_pairs(path, classes), classes
        self.size = len(self._pairs)
        self._root, self._mode, self._resized, self._cut = root, mode, resized, cut
        self._divide, self._mean, self._edges, self._pool = divide, mean, edges, decoders()
        self.varies = resized is None and cut.size is None
        with naming(self.where(0)):
            pixels, marks = self._sample(0, np.zeros(3, np.int64), 0)[:2]
        self.fields: Mapping[str, Field] = {
            "data": Field(pixels.shape, pixels.dtype.name),
            "label": Field(marks.shape, "uint8"),
            "data_dim": Field((1, 1, 2), "float32"),
        }

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        drawn = draws(self._cut.seed, self._cut.stream, first, len(numbers))

        def one(i: int) -> None:
            number = int(numbers[i])
            with naming(self.where(number)):
                made = self._sample(number, drawn[i], first + i)
                for name, array in zip(("data", "label", "data_dim"), made, strict=True):
                    if name in out:
                        fit(array, out[name][i])

        for_each(self._pool, len(numbers), one)

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        (drawn,) = draws(self._cut.seed, self._cut.stream, place, 1)
        with naming(self.where(number)):
            made = self._sample(number, drawn, place)
        return dict(zip(("data", "label", "data_dim"), made, strict=True))

    def where(self, number: int) -> str:
        pair = self._pairs[number]
        return f"{self.name}:{pair.line}: {self._root}{pair.image}"

    def _sample(self, number: int, draw: np.ndarray, sample: int) -> tuple[np.ndarray, ...]:
        """Read an image and its classes, and cut them by a draw."""
        two = self._read_both(self._pairs[number])
        had = two[0].shape[:2]
        pixels, marks = self._cut.resized(two, sample)
        if self._mean is not None:
            if self._mean.size not in (1, pixels.shape[2]):
                raise DataError(f"has {pixels.shape[2]} channels, but {self._mean.size} means are given")
            pixels = pixels.astype(np.float32) - self._mean.astype(np.float32)
        pixels, marks = self._cut((pixels, marks), draw)
        dim = np.minimum(had, pixels.shape[:2]).astype(np.float32).reshape(1, 1, 2)
        return images.planes(pixels), images.planes(marks), dim

    def _read_both(self, pair: Listed) -> Two:
        pixels = self._read(pair.image, self._mode)
        if self._classes == "pixels":
            marks = self._read(pair.classes, "gray", f"its classes, {self._root}{pair.classes}")
        else:
            mark = int(pair.classes) if self._classes == "image" else self._cut.filled or 0
            marks = np.full((*pixels.shape[:2], 1), mark, np.uint8)
        size = self._resized or marks.shape[:2]
        pixels = images.resize(pixels, *self._resized) if self._resized else pixels
        rows, columns = (extent // self._divide for extent in size)
        if min(rows, columns) < 1:
            raise DataError(f"nothing is left of {size} pixels divided by {self._divide}")
        marks = (images.resize if self._edges else images.resize_nearest)(marks, rows, columns)
        marks = (marks > _HALF).astype(np.uint8) if self._edges else marks
        if pixels.shape[0] // self._divide != rows or pixels.shape[1] // self._divide != columns:
            raise DataError(
                f"its image has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its classes have "
                f"{size[1]} x {size[0]}; resize both, by new_height and new_width"
            )
        return pixels, marks

    def _read(self, name: str, mode: str, what: str = "") -> np.ndarray:
        try:
            return read_image(self._root + name, mode, None, Path(self.name))
        except DataError as error:
            if not what:
                raise
            raise DataError(f"{what}: {error}") from error
