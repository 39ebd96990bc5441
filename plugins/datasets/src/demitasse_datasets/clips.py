"""Samples from videos that a text lists: some frames of each, from files of frames or from one of all.

Source: the lists of C3D (Tran et al. 2015, section 3) and of TSN (Wang et al. 2016, *Temporal Segment
Networks*, sections 3.1 and 3.2, with its ways to cut).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, Field, file_text
from demitasse_datasets import images
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.crops import fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.image_list import beside, lines, read_image
from demitasse_datasets.samples import naming

STARTS = ("listed", "anywhere", "parts")
"""Where frames are taken from: from the one that the list says on; from anywhere; or a snippet from each
of so many equal parts. For the last two the list says how many frames there are."""

SCALES = (1.0, 0.875, 0.75, 0.66)
"""Shares of an image's shorter side that a cut has, unless others are given."""

_PATTERN = re.compile(r"(?:[^%/\\]|%%|%c|%0?\d?\dd|%d)+")


@dataclass(frozen=True)
class Listed:
    """A line of a list: its number (from 1), a video's path, its frame or how many it has, its label."""

    line: int
    path: str
    frame: int
    label: int


@dataclass(frozen=True)
class Frames:
    """Which frames a sample has: ``length`` of them, each ``every``-th, from where ``start`` says; with
    "parts" that many from each of so many ``parts``. Without ``random`` those of "anywhere" are the
    first, and those of a part its middle ones."""

    length: int = 1
    every: int = 1
    start: str = "listed"
    parts: int = 1
    random: bool = False

    def numbers(self, listed: int, draws: Draws) -> list[int]:
        """The frames' numbers, counted from 1 where the list says how many (``listed``) there are.
        Raises DataError where these are too few."""
        span = self.length * self.every
        if self.start == "parts":
            each = listed // self.parts
            if listed < span:
                raise DataError(f"it has {listed} frames, but a snippet has {span}")
            begins = [self._begin(each - span, draws) + i * each for i in range(self.parts)]
            if each < span:
                begins = [0] * self.parts
            return [1 + begin + i * self.every for begin in begins for i in range(self.length)]
        begin = listed
        if self.start == "anywhere":
            if listed < span:
                raise DataError(f"it has {listed} frames, but a sample spans {span}")
            begin = 1 + (draws.below(listed - span + 1) if self.random else 0)
        return [begin + i * self.every for i in range(self.length)]

    def _begin(self, spare: int, draws: Draws) -> int:
        """Where in a part with so many frames to spare a snippet begins."""
        return draws.below(max(0, spare) + 1) if self.random else (spare + 1) // 2


@dataclass(frozen=True)
class Cut:
    """A square of ``size`` pixels (0: the whole image), the same of all frames of a sample: from the
    middle, or with ``random`` from anywhere, or from one of 5 or 13 ``places``; with ``scales`` a part
    whose sides are such shares of the shorter one, at most ``distortion`` of them apart, made that
    square. With ``mirror`` each second one is mirrored; of ``flow`` the first channel then points the
    other way.
    """

    size: int = 0
    random: bool = False
    mirror: bool = False
    places: int = 0
    scales: tuple[float, ...] = ()
    distortion: int = 1
    flow: bool = False

    def __call__(self, frames: np.ndarray, draws: Draws) -> np.ndarray:
        """(frames, rows, columns, channels) cut. Raises DataError for images that are too small."""
        if self.size:
            frames = self._part(frames, draws)
        if not self.mirror or not draws.happens(0.5):
            return frames
        mirrored = frames[:, :, ::-1]
        if self.flow:
            mirrored = mirrored.copy()
            mirrored[..., 0] = 255 - mirrored[..., 0]
        return mirrored

    def _part(self, frames: np.ndarray, draws: Draws) -> np.ndarray:
        had = frames.shape[1:3]
        if min(had) < self.size:
            raise DataError(
                f"its frames have {had[1]} x {had[0]} pixels, too small for a crop of {self.size}"
            )
        rows = columns = self.size
        if self.random and self.scales:
            rows, columns = self._sides(had, draws)
        spare = had[0] - rows, had[1] - columns
        top, left = spare[0] // 2, spare[1] // 2
        if self.random and self.places:
            steps = _PLACES[draws.below(self.places)]
            top, left = (step * (extra // 4) for step, extra in zip(steps, spare, strict=True))
        elif self.random:
            top, left = draws.below(spare[0] + 1), draws.below(spare[1] + 1)
        part = frames[:, top : top + rows, left : left + columns]
        if (rows, columns) == (self.size, self.size):
            return part
        return np.stack([images.resize(each, self.size, self.size) for each in part])

    def _sides(self, had: tuple[int, ...], draws: Draws) -> tuple[int, int]:
        """The rows and columns of a part. Those near the size are of the size."""
        lengths = [int(min(had) * scale) for scale in self.scales]
        lengths = [self.size if abs(each - self.size) < 3 else max(1, each) for each in lengths]
        pairs = [
            (rows, columns)
            for i, rows in enumerate(lengths)
            for j, columns in enumerate(lengths)
            if abs(i - j) <= self.distortion
        ]
        return pairs[draws.below(len(pairs))]


_PLACES = (
    *((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)),
    *((0, 2), (4, 2), (2, 0), (2, 4)),
    *((1, 1), (1, 3), (3, 1), (3, 3)),
)
"""Where fixed cuts lie, in quarters of what is left over: corners and middle; sides; between them."""


def read_clips(path: Path, counted: bool = True) -> list[Listed]:
    """A list of videos: a path, a number of frames or of the first one (unless not ``counted``), and a
    label, with blanks between. Raises DataError with the line."""
    clips = []
    for number, line in lines(path):
        name, *numbers = line.rsplit(None, 2 if counted else 1)
        if len(numbers) != 1 + counted or not all(map(_is_number, numbers)):
            file_text(path, strict=True)  # an image or a database given for a list
            what = (
                "a path, a frame or how many there are, and a label" if counted else "a path and a label"
            )
            raise DataError(f"{path}:{number}: {line[:200]!r} is not {what} (in whole numbers)")
        clips.append(Listed(number, name, int(numbers[0]) if counted else 0, int(numbers[-1])))
    if not clips:
        raise DataError(f"{path}: lists no videos")
    return clips


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def check_pattern(pattern: str, flow: bool) -> None:
    """Raise DataError unless a pattern has one place for a number, and one for x or y if of ``flow``."""
    wanted = "one %d, or %06d, and one %c" if flow else "one %d, or %06d"
    places = re.findall(r"%%|%c|%[^c]*?d", pattern)
    numbers = [each for each in places if each.endswith("d")]
    if not _PATTERN.fullmatch(pattern) or len(numbers) != 1 or places.count("%c") != flow:
        raise DataError(
            f"{pattern!r} is not a name of frames' files: it needs {wanted}, without a folder"
        )


class ClipSamples:
    """Videos of a list: ``data`` uint8, blue first, (channels, frames, rows, columns) or, ``stacked``,
    (frames * channels, rows, columns), and ``label`` (int32).

    A video is a folder with a file for each frame by ``pattern`` (with a ``%c`` two, x and y, the
    channels of optical flow) or, without one, a file that OpenCV plays. ``resized`` is (rows, columns).
    ``root`` is put before each path as Caffe does, as text.
    """

    def __init__(
        self,
        path: Path,
        root: str,
        mode: str,
        resized: tuple[int, int] | None,
        frames: Frames,
        cut: Cut,
        pattern: str = "",
        stacked: bool = False,
        seed: int = 0,
        stream: int = 0,
    ) -> None:
        if pattern:
            check_pattern(pattern, "%c" in pattern.replace("%%", ""))
        self._counts = bool(pattern) or frames.start != "anywhere"
        self.name, self._listed = str(path), read_clips(path, self._counts)
        self.size = len(self._listed)
        self._root, self._mode, self._resized = root, mode, resized
        self._frames, self._cut, self._pattern, self._stacked = frames, cut, pattern, stacked
        self._seed, self._stream, self._pool = seed, stream, decoders()
        with naming(self._where(0)):
            shape = self._sample(0, 0).shape
        self.fields: Mapping[str, Field] = {"data": Field(shape, "uint8"), "label": Field((), "int32")}

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        def one(i: int) -> None:
            number = int(numbers[i])
            if "data" in out:
                with naming(self._where(number)):
                    fit(self._sample(number, first + i), out["data"][i])
            if "label" in out:
                out["label"][i] = self._listed[number].label

        for_each(self._pool, len(numbers), one)

    def _where(self, number: int) -> str:
        listed = self._listed[number]
        return f"{self.name}:{listed.line}: {self._root}{listed.path}"

    def _sample(self, number: int, sample: int) -> np.ndarray:
        """What is read of a video for the sample of that number in the global order."""
        draws = Draws(self._seed, self._stream, sample, self._frames.parts)
        listed = self._listed[number]
        video = beside(self._root + listed.path, Path(self.name))
        if self._pattern:
            frames = [self._frame(video, each) for each in self._frames.numbers(listed.frame, draws)]
        else:
            frames = self._played(video, listed.frame, draws)
        if unlike := [each.shape for each in frames if each.shape != frames[0].shape]:
            raise DataError(f"its frames have different sizes: {frames[0].shape[:2]}, {unlike[0][:2]}")
        cut = self._cut(np.stack(frames), draws)
        if not self._stacked:
            return cut.transpose(3, 0, 1, 2)
        planes = cut.transpose(0, 3, 1, 2)
        return planes.reshape(-1, *planes.shape[2:])

    def _frame(self, folder: Path, number: int) -> np.ndarray:
        """A frame (rows, columns, channels) from its file, or from two."""
        flow = "%c" in self._pattern.replace("%%", "")
        names = [
            self._pattern % ((axis, number) if flow else number) for axis in ("xy" if flow else "x")
        ]
        made = []
        for name in names:
            with naming(f"frame {name}"):
                made.append(read_image(folder / name, "gray" if flow else self._mode, self._resized))
        if made[0].shape != made[-1].shape:
            raise DataError(f"{' and '.join(names)} have different sizes")
        return made[0] if len(made) == 1 else np.concatenate(made, 2)

    def _played(self, file: Path, listed: int, draws: Draws) -> list[np.ndarray]:
        """The frames of a file with all of them, whose own numbers count from 0."""
        cv2 = images.opencv()
        if not file.is_file():
            raise DataError("no such file")
        video = cv2.VideoCapture(str(file))
        try:
            if not video.isOpened():
                raise DataError("it is not a video that OpenCV can play")
            count = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
            shift = self._frames.start != "listed"
            numbers = self._frames.numbers(listed if self._counts else count, draws)
            return [self._next(video, each - shift, count) for each in numbers]
        finally:
            video.release()

    def _next(self, video: Any, number: int, count: int) -> np.ndarray:
        """A frame (rows, columns, channels) of what OpenCV plays."""
        cv2 = images.opencv()
        if int(video.get(cv2.CAP_PROP_POS_FRAMES)) != number:
            video.set(cv2.CAP_PROP_POS_FRAMES, number)
        done, pixels = video.read()
        if not done:
            raise DataError(f"it has no frame {number}; its header says that it has {max(0, count)}")
        if self._mode == "gray":
            pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)[:, :, None]
        return images.resize(np.asarray(pixels), *self._resized) if self._resized else np.asarray(pixels)
