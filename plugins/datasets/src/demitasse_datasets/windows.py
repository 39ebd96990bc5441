"""Windows of images, foreground and background in a fixed proportion: R. Girshick's window files.

For each image, a file has ``# index``, its path, channels, height and width, the number of windows, and
for each window its class, its overlap with an object, and x1 y1 x2 y2, with both corners included.
Sampling and warping are those of Caffe's WindowData layer (R. Girshick et al., Rich feature hierarchies,
2014, supplement A).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demitasse import DataError, Field, file_text
from demitasse_datasets import images
from demitasse_datasets.crops import below, draws
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.image_list import read_bytes
from demitasse_datasets.samples import naming


@dataclass(frozen=True)
class Sampling:
    """How windows become samples. The last ``fraction`` of each ``batch`` is foreground (an overlap of
    at least ``foreground``), the rest background (less than ``background``). A window is warped to
    ``crop`` pixels, including a margin of ``padding`` pixels on each side taken from around it;
    ``square`` keeps its proportions. ``mean``, (channels, height, width) or (channels, 1, 1), is
    subtracted where there is an image, and the result is multiplied by ``scale``."""

    batch: int
    crop: int
    foreground: float = 0.5
    background: float = 0.5
    fraction: float = 0.25
    padding: int = 0
    square: bool = False
    mirror: bool = False
    scale: float = 1.0
    mean: np.ndarray | None = None
    seed: int = 0
    stream: int = 0

    def is_foreground(self, number: int) -> bool:
        """Whether a sample is foreground, by its number in the global order."""
        count = int(np.float32(self.batch) * np.float32(self.fraction))
        return number % self.batch >= self.batch - count


class Window(NamedTuple):
    """A window: its image, class, and corners."""

    image: int
    label: int
    x1: int
    y1: int
    x2: int
    y2: int


class Warp(NamedTuple):
    """The part to cut from an image, (x1, y1, x2, y2) including both corners, and its position in the
    sample once resized: left, top, width, height."""

    x1: int
    y1: int
    x2: int
    y2: int
    left: int
    top: int
    width: int
    height: int


class WindowSamples:
    """Windows drawn at random, each sample by its number in the global order: ``data`` float32
    (channels, crop, crop), with the mean subtracted, and ``label``, 0 for background."""

    def __init__(self, path: Path, root: str, cached: bool, sampling: Sampling) -> None:
        self.name, self._root, self._sampling = str(path), root, sampling
        self._paths, channels, self._sets = read_windows(path, sampling.foreground, sampling.background)
        needed = {sampling.is_foreground(number) for number in range(sampling.batch)}
        for foreground in needed:
            if not self._sets[foreground]:
                what = (
                    f"of {sampling.foreground} or more" if foreground else f"below {sampling.background}"
                )
                raise DataError(f"{path}: has no window with an overlap {what}")
        if sampling.mean is not None:
            wanted = sampling.mean.shape
            if wanted[0] not in (1, channels) or (
                wanted[1:] != (1, 1) and min(wanted[1:]) < sampling.crop
            ):
                raise DataError(
                    f"{path}: a mean of shape {wanted} does not fit windows of "
                    f"({channels}, {sampling.crop}, {sampling.crop})"
                )
        self.size = sum(map(len, self._sets))
        self.fields: Mapping[str, Field] = {
            "data": Field((channels, sampling.crop, sampling.crop), "float32"),
            "label": Field((), "int32"),
        }
        self._pool = decoders()
        self._cache: list[bytes] | None = None
        if cached:
            self._cache = [self._file(number) for number in range(len(self._paths))]

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        sampling = self._sampling
        drawn = draws(sampling.seed, sampling.stream, first, len(numbers))

        def one(i: int) -> None:
            windows = self._sets[sampling.is_foreground(first + i)]
            window = windows[below(drawn[i, 0], len(windows))]
            with naming(f"image {self._paths[window.image]!r}, window {tuple(window[2:])}"):
                pixels = self._image(window.image)
                paste(pixels, window, bool(drawn[i, 2]) and sampling.mirror, sampling, out["data"][i])
            out["label"][i] = window.label

        for_each(self._pool, len(numbers), one)

    def _file(self, number: int) -> bytes:
        name = self._root + self._paths[number]
        with naming(f"{self.name}: image {name!r}"):
            return read_bytes(name, Path(self.name))

    def _image(self, number: int) -> np.ndarray:
        return images.decode(self._cache[number] if self._cache else self._file(number))


def read_windows(
    path: Path, foreground: float, background: float
) -> tuple[list[str], int, tuple[list[Window], list[Window]]]:
    """Return the images of a window file, their channels, and its background and foreground windows.
    Raises DataError with the line that is wrong."""
    words = _Words(path)
    paths: list[str] = []
    places: dict[int, int] = {}
    sets: tuple[list[Window], list[Window]] = ([], [])
    channels = 0
    while word := words.next():
        if word != "#":
            raise DataError(f"{words.place}: {word[:80]!r} instead of the # before an image")
        index = words.number()
        places[index] = len(paths)
        if not (name := words.next()):
            raise DataError(f"{words.place}: is cut off after image {index}")
        paths.append(name)
        channels, *_ = (words.number() for _ in range(3))
        if channels != 3:
            raise DataError(
                f"{words.place}: image {name!r} has {channels} channels, but images are read with 3"
            )
        for _ in range(words.number()):
            label = words.number()
            overlap = words.number(float)
            corners = [words.number() for _ in range(4)]
            if overlap >= foreground:
                if label < 1:
                    raise DataError(f"{words.place}: a foreground window of {name!r} has class {label}")
                sets[1].append(Window(places[index], label, *corners))
            elif overlap < background:
                sets[0].append(Window(places[index], 0, *corners))
    if not paths:
        raise DataError(f"{path}: is empty; a window file begins with # and a number")
    return paths, channels, sets


class _Words:
    """The words of a file, one after the other; ``place`` is the line of the latest."""

    def __init__(self, path: Path) -> None:
        lines = file_text(path).split("\n")
        self._words = ((number, word) for number, line in enumerate(lines, 1) for word in line.split())
        self._path, self._line = path, 1

    @property
    def place(self) -> str:
        return f"{self._path}:{self._line}"

    def next(self) -> str:
        """Return the next word; "" at the end."""
        self._line, word = next(self._words, (self._line, ""))
        return word

    def number(self, kind: type = int) -> Any:
        word = self.next()
        try:
            value = kind(word)
            if abs(value) < 1 << 31:
                return value
        except ValueError:
            pass  # reported below, as a number that is too large is
        told = repr(word[:80]) if word else "is cut off"
        raise DataError(f"{self.place}: {told}; expected a {'whole ' * (kind is int)}number")


def paste(
    pixels: np.ndarray, window: Window, mirrored: bool, sampling: Sampling, place: np.ndarray
) -> None:
    """Write a window of an image (height, width, channels) to ``place`` (channels, crop, crop), with
    zeros where it extends beyond the image. Raises DataError if it is outside."""
    height, width = pixels.shape[:2]
    warp = warped(window, height, width, sampling, mirrored)
    if not (0 <= warp.x1 <= warp.x2 < width and 0 <= warp.y1 <= warp.y2 < height):
        raise DataError(f"is outside the image of {width} x {height}")
    place[...] = 0
    if warp.width < 1 or warp.height < 1:
        return
    part = np.ascontiguousarray(pixels[warp.y1 : warp.y2 + 1, warp.x1 : warp.x2 + 1])
    part = images.resize(part, warp.height, warp.width)
    if mirrored:
        part = part[:, ::-1]
    rows = slice(warp.top, warp.top + warp.height)
    columns = slice(warp.left, warp.left + warp.width)
    values = images.planes(part).astype(np.float32)
    if sampling.mean is not None:
        mean = sampling.mean
        if mean.shape[1:] != (1, 1):
            # Caffe uses the width's offset for both axes.
            offset = (mean.shape[2] - sampling.crop) // 2
            mean = mean[:, offset:, offset:][:, rows, columns]
        values -= mean
    place[:, rows, columns] = values * np.float32(sampling.scale)


def warped(window: Window, height: int, width: int, sampling: Sampling, mirrored: bool) -> Warp:
    """Return which part of an image a window and its margin cover, and where it goes in the sample."""
    crop, x1, y1, x2, y2 = sampling.crop, *window[2:]
    if not sampling.padding and not sampling.square:
        return Warp(x1, y1, x2, y2, 0, 0, crop, crop)
    grown = crop / (crop - 2 * sampling.padding)
    half_width, half_height = (x2 - x1 + 1) / 2, (y2 - y1 + 1) / 2
    center_x, center_y = x1 + half_width, y1 + half_height
    if sampling.square:
        half_width = half_height = max(half_width, half_height)
    x1, x2 = (_round(center_x + sign * half_width * grown) for sign in (-1, 1))
    y1, y2 = (_round(center_y + sign * half_height * grown) for sign in (-1, 1))
    scale_x, scale_y = crop / (x2 - x1 + 1), crop / (y2 - y1 + 1)
    left, top = max(0, -x1), max(0, -y1)
    right, bottom = max(0, x2 - width + 1), max(0, y2 - height + 1)
    x1, y1, x2, y2 = x1 + left, y1 + top, x2 - right, y2 - bottom
    across = _round((right if mirrored else left) * scale_x)
    down = _round(top * scale_y)
    return Warp(
        x1,
        y1,
        x2,
        y2,
        across,
        down,
        min(_round((x2 - x1 + 1) * scale_x), crop - across),
        min(_round((y2 - y1 + 1) * scale_y), crop - down),
    )


def _round(value: float) -> int:
    """Round to the nearest whole number, halves away from zero, as in C."""
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)
