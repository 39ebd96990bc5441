"""Samples from image files that a text lists, a path and a label a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError, Field, file_text, is_there, open_plain
from demitasse_datasets import images
from demitasse_datasets.crops import Crop, fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.samples import naming

_LABEL = re.compile(r"[+-]?[0-9]{1,11}")


@dataclass(frozen=True)
class Listed:
    """A line of a list: its number (from 1), the image's path and its label."""

    line: int
    path: str
    label: int


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, numbered from 1. Raises DataError."""
    for number, line in enumerate(file_text(path).split("\n"), 1):
        if stripped := line.strip():
            yield number, stripped


def read_list(path: Path) -> list[Listed]:
    """An image list: a path, which may have blanks in it, a blank, a label. Raises DataError with the
    line."""
    listed = []
    for number, line in lines(path):
        name, _, label = line.replace("\t", " ").rpartition(" ")
        name = line[: len(name)].rstrip()
        if not name or not _LABEL.fullmatch(label):
            file_text(path, strict=True)  # an image or a database given for a list
            raise DataError(
                f"{path}:{number}: {line[:200]!r} is not a path, a blank and a label (a whole number)"
            )
        if not -(1 << 31) <= int(label) < 1 << 31:
            raise DataError(f"{path}:{number}: the label {label} does not fit 32 bits")
        listed.append(Listed(number, name, int(label)))
    if not listed:
        raise DataError(f"{path}: lists no images")
    return listed


def _whole(name: str | Path) -> bytes:
    # By as few calls of the system as can be: in each, threads that decode pass the interpreter's lock
    # on.
    file, about = open_plain(name)
    try:
        data = os.read(file, about.st_size + 1)
        while len(data) < about.st_size and (more := os.read(file, about.st_size - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def read_bytes(name: str | Path, listed_in: Path | None = None) -> bytes:
    """A file's bytes: as the working directory has it, else as the folder of the list has it. Raises
    DataError without the file's name."""
    try:
        try:
            return _whole(name)
        except (FileNotFoundError, NotADirectoryError):
            if listed_in is None or not is_there(other := listed_in.parent / name):
                raise
            return _whole(other)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}") from error


def read_image(
    name: str | Path, mode: str, resized: tuple[int, int] | None, listed_in: Path | None = None
) -> np.ndarray:
    """An image file's pixels (height, width, channels), looked for as ``read_bytes`` does. Raises
    DataError without the file's name."""
    pixels = images.decode(read_bytes(name, listed_in), mode)
    return images.resize(pixels, *resized) if resized else pixels


def beside(name: str, listed_in: Path) -> Path:
    """A file as the working directory has it, else as the folder of the list has it."""
    path = Path(name)
    other = listed_in.parent / path
    return other if not is_there(path) and is_there(other) else path


class ImageSamples:
    """The images of a list: ``data`` (channels, height, width) uint8, blue first, and ``label``.

    ``resized`` is (height, width); without it, and without a ``crop``, all images must be as large as
    the first, but in runs of one. ``root`` is put before each path as Caffe does, as text: it ends with
    a slash.
    """

    def __init__(
        self, path: Path, root: str, mode: str, resized: tuple[int, int] | None, crop: Crop
    ) -> None:
        self.name, self._path, self._listed = str(path), path, read_list(path)
        self.size = len(self._listed)
        self._root, self._mode, self._resized, self._crop = root, mode, resized, crop
        self._pool = decoders()
        self.varies = resized is None and crop.whole
        with naming(self.where(0)):
            shape = crop.shape(self._pixels(0).shape)
        self._quick = images.are_quick(
            lambda number: read_bytes(root + self._listed[number].path, path), self.size
        )
        self.fields: Mapping[str, Field] = {"data": Field(shape, "uint8"), "label": Field((), "int32")}

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        drawn = self._crop.draws(first, len(numbers))

        def one(i: int) -> None:
            number = int(numbers[i])
            with naming(self.where(number)):
                fit(self._crop.cut(self._pixels(number), drawn[i], first + i), out["data"][i])
            out["label"][i] = self._listed[number].label

        for_each(self._pool, len(numbers), one, quick=self._quick)

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        with naming(self.where(number)):
            pixels = self._crop.cut(self._pixels(number), self._crop.draws(place, 1)[0], place)
        return {"data": pixels, "label": np.array(self._listed[number].label, np.int32)}

    def where(self, number: int) -> str:
        listed = self._listed[number]
        return f"{self.name}:{listed.line}: {self._root}{listed.path}"

    def _pixels(self, number: int) -> np.ndarray:
        name = self._root + self._listed[number].path
        return images.planes(read_image(name, self._mode, self._resized, self._path))
