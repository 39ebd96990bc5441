"""Samples from a list of videos: some frames of each, from one file per frame or one per video.

Source: the lists of C3D (Tran et al. 2015, section 3) and of TSN (Wang et al. 2016, *Temporal Segment
Networks*, sections 3.1 and 3.2, including its cropping).
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
"""Where frames are taken: from the frame given in the list on; from anywhere; or as a snippet from each
of several equal parts. For the last two, the list gives the number of frames."""

SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of a cut, by default, as fractions of an image's shorter side."""

_PATTERN = re.compile(r"(?:[^%/\\]|%%|%c|%0?\d?\dd|%d)+")


@dataclass(frozen=True)
class Listed:
    """A line of a list: its number (from 1), a video's path, a frame or the number of frames, the
    label."""

    line: int
    path: str
    frame: int
    label: int


@dataclass(frozen=True)
class Frames:
    """The frames of a sample: ``length`` of them, every ``every``-th, from where ``start`` says; with
    "parts", so many from each of ``parts``. Without ``random``, "anywhere" takes the first frames, and
    "parts" the middle frames of each part."""

    length: int = 1
    every: int = 1
    start: str = "listed"
    parts: int = 1
    random: bool = False

    def numbers(self, listed: int, draws: Draws) -> list[int]:
        """Return the frames' numbers, counted from 1 if ``listed`` is the number of frames in the list.
        Raises DataError if there are too few."""
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
        """Where a snippet begins in a part that has ``spare`` frames more."""
        return draws.below(max(0, spare) + 1) if self.random else (spare + 1) // 2


@dataclass(frozen=True)
class Cut:
    """A square of ``size`` pixels (0: the whole image), the same in all frames of a sample: from the
    middle or, with ``random``, from anywhere or from one of 5 or 13 ``places``. With ``scales``, a part
    is cut whose sides are such fractions of the shorter side, at most ``distortion`` steps apart in that
    list, and is resized to the square. With ``mirror``, half of the samples are mirrored, at random;
    with ``flow``, the first channel is then inverted.
    """

    size: int = 0
    random: bool = False
    mirror: bool = False
    places: int = 0
    scales: tuple[float, ...] = ()
    distortion: int = 1
    flow: bool = False

    def __call__(self, frames: np.ndarray, draws: Draws) -> np.ndarray:
        """Cut frames (frames, rows, columns, channels). Raises DataError if they are too small."""
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
        """Draw the rows and columns of a part. Lengths within 2 pixels of ``size`` become ``size``."""
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
"""Positions of fixed cuts, in quarters of the margin: corners and middle; sides; between them."""


def read_clips(path: Path, counted: bool = True) -> list[Listed]:
    """Read a list of videos: a path, a number of frames or of the first one (unless not ``counted``),
    and a label, separated by blanks. Raises DataError with the line."""
    clips = []
    for number, line in lines(path):
        name, *numbers = line.rsplit(None, 2 if counted else 1)
        if len(numbers) != 1 + counted or not all(map(_is_number, numbers)):
            file_text(path, strict=True)  # raises for an image or a database in place of a list
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
    """Raise DataError unless a pattern has one place for a number and, for ``flow``, one for x or y."""
    wanted = "one %d, or %06d, and one %c" if flow else "one %d, or %06d"
    places = re.findall(r"%%|%c|%[^c]*?d", pattern)
    numbers = [each for each in places if each.endswith("d")]
    if not _PATTERN.fullmatch(pattern) or len(numbers) != 1 or places.count("%c") != flow:
        raise DataError(
            f"{pattern!r} is not a name of frames' files: it needs {wanted}, without a folder"
        )


class ClipSamples:
    """The videos of a list: ``data`` uint8, blue first, (channels, frames, rows, columns) or, if
    ``stacked``, (frames * channels, rows, columns), and ``label`` (int32).

    A video is a folder that has a file for each frame, named by ``pattern`` (if it has a ``%c``, two
    files, x and y, the channels of optical flow). Without a pattern, it is a file that OpenCV can play.
    ``resized`` is (rows, columns). ``root`` is put in front of each path as text, as in Caffe.
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
        """Read a video for the sample of this number in the global order."""
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
        """Read a frame (rows, columns, channels) from its file, or from two."""
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
        """Read frames from a file that contains all of them; OpenCV numbers them from 0."""
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
        """Return the next frame (rows, columns, channels) of a video in OpenCV."""
        cv2 = images.opencv()
        if int(video.get(cv2.CAP_PROP_POS_FRAMES)) != number:
            video.set(cv2.CAP_PROP_POS_FRAMES, number)
        done, pixels = video.read()
        if not done:
            raise DataError(f"it has no frame {number}; its header says that it has {max(0, count)}")
        if self._mode == "gray":
            pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)[:, :, None]
        return images.resize(np.asarray(pixels), *self._resized) if self._resized else np.asarray(pixels)
