"""Samples of optical flow from files: a text file with two images and their flow on each line, as for
FlyingChairs. Dosovitskiy et al. 2015, *FlowNet*, section 4.2, *Flying Chairs*.

The ``data`` of a sample are the channels of both images (6 x rows x columns, uint8, blue first); its
``label`` is the flow (2 x rows x columns, float32), NaN where it is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, DataSpec, Field, check_image, is_file, nearest_path, permutation
from demitasse_optical_flow.flow_files import read_flow

ENDING = ".flo"
_BEGINNING = 4096


def lists_flows(source: Any) -> bool:
    """Return whether a source is a text file whose first line names three files, the
    last of them a flow."""
    if not isinstance(source, str) or not is_file(Path(source)):
        return False
    try:
        with Path(source).open("rb") as file:
            first = file.read(_BEGINNING).partition(b"\n")[0].split()
    except OSError:  # an unreadable file; the plugin for its kind reports it
        return False
    return len(first) == 3 and first[2].endswith(ENDING.encode())


class Pairs:
    """The pairs that a file lists, in its order or shuffled anew for each epoch."""

    def __init__(self, spec: DataSpec) -> None:
        self.path, self._shuffle, self._seed = Path(spec.source), spec.shuffle, spec.seed
        if spec.options.get("crop"):
            raise DataError(
                f"{self.path}: crop_size would crop images but not their flows; leave it out, or crop "
                f"the files"
            )
        lines = self.path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        self._names: list[tuple[str, str, str]] = []
        for number, line in enumerate(lines, 1):
            names = line.split()
            if names and (len(names) != 3 or not names[2].endswith(ENDING)):
                raise DataError(
                    f"{self.path}:{number}: {line[:80]!r} does not name two images and a flow"
                )
            if names:
                self._names.append((names[0], names[1], names[2]))
        self.size = len(self._names)
        self._epoch: tuple[int, Any] = (-1, None)
        data, label = self.sample(0)
        self.fields = {"data": Field(data.shape, "uint8"), "label": Field(label.shape, "float32")}

    def number(self, position: int) -> int:
        """Return the line, from 0, of a sample of the global order."""
        epoch, place = divmod(position, self.size)
        if not self._shuffle:
            return place
        kept, order = self._epoch
        if kept != epoch:
            order = permutation(self._seed, epoch, self.size)
            self._epoch = (epoch, order)
        return int(order[place])

    def sample(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return both images and the flow of a line. Raise DataError with the file."""
        first, second, flow = map(self._found, self._names[number])
        images, label = [_decoded(first), _decoded(second)], read_flow(flow)
        for path, image in zip((first, second), images, strict=True):
            if image.shape[1:] != label.shape[1:]:
                sides = " and ".join("{} x {}".format(*each.shape[1:]) for each in (image, label))
                raise DataError(f"{path}: it and its flow {flow} have different sizes, {sides} pixels")
        return np.concatenate(images), label

    def _found(self, name: str) -> Path:
        """Return where a file of the list is: at its name, or relative to the list's folder or one of
        the folders above."""
        path = Path(name)
        beside = (folder / path for folder in self.path.resolve().parents)
        for place in itertools.chain([path], () if path.is_absolute() else beside):
            if is_file(place):
                return place
        raise DataError(f"{self.path}: no such file: {name!r}{nearest_path(self.path.parent / name)}")

    def stream(self, first: int, count: int, step: int) -> PairStream:
        """Return a stream of every ``step``-th run of ``count`` samples from ``first`` on."""
        return PairStream(self, first, count, step)

    def close(self) -> None:
        """Do nothing: no file is open."""


class PairStream:
    """Runs of pairs; ``cursor`` is the number of the next run's first sample."""

    def __init__(self, source: Pairs, first: int, count: int, step: int) -> None:
        self._source, self.cursor, self._count, self._step = source, first, count, step

    def read(self, out: Mapping[str, Any]) -> None:
        """Write the next run of samples into ``out``. Raise DataError with a file."""
        for place in range(self._count):
            number = self._source.number(self.cursor + place)
            for name, array in zip(("data", "label"), self._source.sample(number), strict=True):
                if array.shape != self._source.fields[name].shape:
                    raise DataError(
                        f"{self._source.path}:{number + 1}: its {name} is {array.shape}, not "
                        f"{self._source.fields[name].shape} like the first line's"
                    )
                if name in out:
                    out[name][place] = array
        self.cursor += self._step

    def close(self) -> None:
        """Do nothing: nothing is read ahead."""


def _decoded(path: Path) -> np.ndarray:
    """Return an image, 3 x rows x columns, blue first."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"{path}: images need OpenCV, which cannot be imported ({error}); pip install "
            f'"opencv-python-headless<5"'
        ) from error
    try:
        data = path.read_bytes()
        check_image(data)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise DataError(f"{path}: is not an image that OpenCV can decode")
    return np.moveaxis(np.asarray(image), 2, 0)
