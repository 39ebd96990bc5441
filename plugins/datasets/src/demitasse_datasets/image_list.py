"""Samples from a list of image files: a path and a label per line."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse import DataError, Field, file_text, is_there, open_plain
from demitasse_datasets import images
from demitasse_datasets.crops import Crop, fit
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.samples import naming

log = logging.getLogger("demitasse.datasets")

_LABEL = re.compile(r"([+-]?[0-9]{1,11})(?:\.0*)?")
_IMAGE = r"\.(?:bmp|dib|gif|jpe?g|jpe|jp2|p[abgnp]m|png|ras|sr|tiff?|webp)"
_ENDING = re.compile(rf"{_IMAGE}(?=\s|$)", re.IGNORECASE)
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_NUMBERS = re.compile(rf"{_IMAGE}((?:\s+{_NUMBER})+)$", re.IGNORECASE)
_ABOUT = re.compile(rf"{_IMAGE}\s.*\.(?:xml|json|txt)$", re.IGNORECASE)
_OTHER_SIGN = re.compile(rf"{_IMAGE}\s*([,;|:])", re.IGNORECASE)
_HDF5 = (".h5", ".hdf5")


class Listed(NamedTuple):
    """A line of a list: its number (from 1), the image's path, its label, and any labels after the
    first."""

    line: int
    path: str
    label: int
    more: tuple[int, ...] = ()

    @property
    def labels(self) -> int | tuple[int, ...]:
        """All labels as a tuple, or the only one as a number."""
        return (self.label, *self.more) if self.more else self.label


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file that are not blank, numbered from 1. Raises DataError."""
    text = file_text(path)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        if stripped := line.strip():
            yield number, stripped


def read_list(path: Path, labels: bool = True) -> list[Listed]:
    """Read an image list. Each line has a path, which may contain blanks, a blank, and a label, or
    several labels separated by blanks, the same number in each line, as in forks with CTC. If no line
    has a label, all are 0, as in Caffe, with a warning if ``labels`` are needed. Raises DataError with
    the line."""
    listed, bare = list[Listed](), list[Listed]()
    for number, line in lines(path):
        name, _, label = (line.replace("\t", " ") if "\t" in line else line).rpartition(" ")
        name, found = line[: len(name)].rstrip(), _LABEL.fullmatch(label)
        before = _NUMBERS.search(name) if name[-1:].isdecimal() or name[-1:] == "." else None
        words = [*before[1].split(), label] if before else [label]
        if name and found and all(map(_LABEL.fullmatch, words)):
            name = name[: before.start(1)] if before else name
            value, *more = (_label(word, path, number) for word in words)
            listed.append(Listed(number, name, value, tuple(more)))
            if len(more) != len(listed[0].more):
                raise DataError(
                    f"{path}:{number}: {line[:200]!r} has {len(words)} labels, but the first line "
                    f"{1 + len(listed[0].more)}; fill rows up, with the net's blank, for example"
                )
        elif [ending.end() for ending in _ENDING.finditer(line)] == [len(line)]:
            bare.append(Listed(number, line, 0))
        else:
            raise _unlike(path, number, line)
        if listed and bare:
            raise _unlike(path, bare[0].line, bare[0].path, "others have a label")
    if not listed and not bare:
        raise DataError(f"{path}: lists no images")
    if bare and labels:
        log.warning("%s: no line has a label: all %s are 0, as in Caffe", path, f"{len(bare):,}")
    return listed or bare


def _label(word: str, path: Path, number: int) -> int:
    value = int(word.partition(".")[0])
    if not -(1 << 31) <= value < 1 << 31:
        raise DataError(f"{path}:{number}: the label {word} does not fit 32 bits")
    return value


def _unlike(path: Path, number: int, line: str, why: str = "") -> DataError:
    """Return the error for a line that does not belong in a list. Raises DataError for a file that is
    not text, such as an image or a database."""
    file_text(path, strict=True)
    if line.startswith("#"):
        why = "lists have no comments"
    elif len(_ENDING.findall(line)) > 1:
        why = "pairs of images are for the layers DenseImageData and ImageSegData, kind image_pairs"
    elif _ABOUT.search(line):
        why = "images with a file about each are for demitasse convert_annoset"
    elif _NUMBERS.search(line):
        why = "put labels that are not whole numbers into an HDF5 file, for an HDF5Data layer"
    elif sign := _OTHER_SIGN.search(line):
        why = f"it has {sign[1]!r} instead of the blank"
    elif line.endswith(_HDF5):
        why = "a list of HDF5 files is for the layer HDF5Data, kind hdf5"
    said = f"{path}:{number}: {line[:200]!r} is not a path, a blank and a label (a whole number)"
    return DataError(f"{said}; {why}" if why else said)


def _whole(name: str | Path) -> bytes:
    # As few system calls as possible: in each, threads that decode pass the interpreter's lock on.
    file, about = open_plain(name)
    try:
        data = os.read(file, about.st_size + 1)
        while len(data) < about.st_size and (more := os.read(file, about.st_size - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def read_bytes(name: str | Path, listed_in: Path | None = None) -> bytes:
    """Return a file's bytes; the path is relative to the working directory or, failing that, to the
    list's folder. Raises DataError without the file's name."""
    try:
        try:
            return _whole(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            if listed_in is None:
                raise
            try:
                return _whole(beside(str(name), listed_in))
            except (FileNotFoundError, NotADirectoryError):
                raise error from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}{_absent_folder(Path(name))}") from error


def _absent_folder(path: Path) -> str:
    """Say which folder of a path is the first that does not exist, as the end of a sentence."""
    with contextlib.suppress(OSError):
        above = [folder for folder in path.parents if not is_there(folder)]
        return f"; there is no folder {str(above[-1])!r}" if above else ""
    return ""


def read_image(
    name: str | Path, mode: str, resized: tuple[int, int] | None, listed_in: Path | None = None
) -> np.ndarray:
    """Return an image file's pixels (height, width, channels). The file is searched for as in
    ``read_bytes``. Raises DataError without the file's name."""
    pixels = images.decode(read_bytes(name, listed_in), mode)
    return images.resize(pixels, *resized) if resized else pixels


def beside(name: str, listed_in: Path) -> Path:
    """Return the path of a file relative to the working directory or, if it is not there, to the list's
    folder. If it is in neither, separators of Windows in the list are converted to this system's."""
    names = [name, name.replace("\\", "/")] if "\\" in name else [name]
    paths = [place for each in names for place in (Path(each), listed_in.parent / each)]
    return next((path for path in paths if is_there(path)), paths[0])


class ImageSamples:
    """The images of a list: ``data`` (channels, height, width) uint8, blue first, and ``label``.

    ``resized`` is (height, width). Without it, and without a ``crop``, all images must be as large as
    the first, unless batches have one sample. ``root`` is put in front of each path as text, as in
    Caffe, so it ends with a slash. Without ``labels``, there is only ``data``.
    """

    def __init__(
        self,
        path: Path,
        root: str,
        mode: str,
        resized: tuple[int, int] | None,
        crop: Crop,
        labels: bool = True,
    ) -> None:
        self.name, self._path, self._listed = str(path), path, read_list(path, labels)
        self.size = len(self._listed)
        self._root, self._mode, self._resized, self._crop = root, mode, resized, crop
        self._pool = decoders()
        self.varies = resized is None and crop.whole
        with naming(self.where(0)):
            shape = crop.shape(self._pixels(0).shape)
        self._quick = images.are_quick(
            lambda number: read_bytes(root + self._listed[number].path, path), self.size
        )
        self.fields: Mapping[str, Field] = {"data": Field(shape, "uint8")}
        if labels:
            self.fields = {**self.fields, "label": Field(np.shape(self._listed[0].labels), "int32")}

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        drawn = self._crop.draws(first, len(numbers))

        def one(i: int) -> None:
            number = int(numbers[i])
            with naming(self.where(number)):
                fit(self._crop.cut(self._pixels(number), drawn[i], first + i), out["data"][i])
            if "label" in out:
                out["label"][i] = self._listed[number].labels

        for_each(self._pool, len(numbers), one, quick=self._quick)

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        with naming(self.where(number)):
            pixels = self._crop.cut(self._pixels(number), self._crop.draws(place, 1)[0], place)
        made = {"data": pixels, "label": np.array(self._listed[number].labels, np.int32)}
        return {name: made[name] for name in self.fields}

    def where(self, number: int) -> str:
        listed = self._listed[number]
        return f"{self.name}:{listed.line}: {self._root}{listed.path}"

    def _pixels(self, number: int) -> np.ndarray:
        name = self._root + self._listed[number].path
        return images.planes(read_image(name, self._mode, self._resized, self._path))
