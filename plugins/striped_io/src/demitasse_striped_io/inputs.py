"""Inputs of a striped set: any source that a composed plugin reads (LMDB, IDX, CIFAR, HDF5, lists of
images), folders and lists of image files stored as they are, and WebDataset's tar shards."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from demitasse import DataError, DataSpec, Field, check_image, is_file, is_folder, shortened
from demitasse_striped_io import loops
from demitasse_striped_io.contents import Contents, Item
from demitasse_striped_io.decoding import decode
from demitasse_striped_io.index import record_bytes
from demitasse_striped_io.lists import in_folder, listed

LOOKED_AT = 64
"""About how many files are examined for their length."""
DATABASES = ("lmdb", "leveldb")
SMALL = 256
"""A field of at most this many bytes goes to the table rather than the records."""


@dataclass
class Chunk:
    """Some samples to write: their records one after the other (uint8), the length of each, and the rows
    of the small fields."""

    data: np.ndarray
    lengths: np.ndarray
    rows: Mapping[str, np.ndarray]


class Lane(Protocol):
    """Reads every n-th chunk, one after the other."""

    def read(self, count: int) -> Chunk:
        """Return the next chunk, which has ``count`` samples. Raises DataError."""

    def close(self) -> None:
        """End reading."""


class Input(Protocol):
    """Samples to be written, in order."""

    name: str
    size: int
    form: str
    identity: str
    """Text that distinguishes its samples from the same number of other ones, if there is any."""
    typical: int
    """The approximate number of bytes of a record."""
    damaged: dict[str, str]
    """By position, what is wrong with image files that were read and are stored as they are."""
    main: Mapping[str, Field]
    small: Mapping[str, Field]

    def lane(self, first: int, count: int, step: int) -> Lane:
        """Return a reader of chunks of ``count`` samples, from ``first`` on, ``step`` apart."""

    def close(self) -> None:
        """End reading."""


class SourceInput:
    """The samples of an open source, in file order. Small fields go to the table."""

    form, identity = "raw", ""

    def __init__(self, source: Any, name: str) -> None:
        """Raises DataError if there is nothing to put in records."""
        self.name, self.size, self._source = name, int(source.size), source
        self.damaged: dict[str, str] = {}
        self.main: Mapping[str, Field]
        self.small: Mapping[str, Field] = {k: f for k, f in source.fields.items() if _nbytes(f) <= SMALL}
        self.main = {k: f for k, f in source.fields.items() if k not in self.small}
        if not self.main:  # all fields are as small as labels: the largest becomes the record
            largest = max(self.small, key=lambda k: _nbytes(self.small[k]))
            self.main = {largest: self.small[largest]}
            self.small = {k: f for k, f in self.small.items() if k != largest}
        self.typical = record_bytes(self.main)

    def lane(self, first: int, count: int, step: int) -> Lane:
        return _SourceLane(self, self._source, first, count, step)

    def close(self) -> None:
        self._source.close()


class _SourceLane:
    def __init__(self, about: SourceInput, source: Any, first: int, count: int, step: int) -> None:
        self._about, self._source = about, source
        self._first, self._count, self._step = first, count, step
        self._stream: Any = None

    def read(self, count: int) -> Chunk:
        if self._stream is None or count != self._count:
            self.close()
            self._count = count
            self._stream = self._source.stream(self._first, count, self._step)
        fields = self._source.fields
        out = {k: np.empty((count, *f.shape), f.dtype) for k, f in fields.items()}
        self._stream.read(out)
        self._first += self._step
        main = [out[k].reshape(count, -1).view(np.uint8) for k in self._about.main]
        data = main[0] if len(main) == 1 else np.concatenate(main, axis=1)
        size = record_bytes(self._about.main)
        return Chunk(data.reshape(-1), np.full(count, size), {k: out[k] for k in self._about.small})

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _nbytes(field: Field) -> int:
    return int(np.dtype(field.dtype).itemsize * math.prod(field.shape))


def _identity(items: Sequence[Item]) -> str:
    """Return text that changes if other files are listed, or in another order, or with other labels."""
    made = hashlib.sha256()
    for start in range(0, len(items), 1 << 14):
        some = items[start : start + (1 << 14)]
        told = (f"{item.file}\0{item.label}\0{item.offset}\0{item.length}\n" for item in some)
        made.update("".join(told).encode("utf-8", "surrogateescape"))
    return made.hexdigest()[:16]


def _mean_length(items: Sequence[Item]) -> int:
    """Return the mean length of some files spread over all; it determines how many are read at a
    time."""
    some = [items[i] for i in range(0, len(items), max(1, len(items) // LOOKED_AT))]
    return 1 + sum(item.bytes() for item in some) // len(some)


@dataclass(frozen=True)
class Form:
    """How image files are stored: as they are (``encoded``), or as raw pixels of size ``resized``."""

    encoded: bool = True
    gray: bool = False
    resized: tuple[int, int] | None = None


class FilesInput:
    """Image files, or members of tar shards, with a label each."""

    def __init__(self, name: str, items: Sequence[Item], form: Form) -> None:
        """Raises DataError if there are none, the first is not an image, or a label is not an int32."""
        if not items:
            raise DataError(f"{name}: there are no images in it")
        for item in items:
            if not -(1 << 31) <= item.label < 1 << 31:
                raise DataError(f"{item.where}: its label does not fit 32 bits: {shortened(item.label)}")
        self.name, self.size, self._items, self._form = name, len(items), items, form
        self.identity, self.damaged = _identity(items), dict[str, str]()
        self.form = "encoded" if form.encoded else "raw"
        self.small: Mapping[str, Field] = {"label": Field((), "int32")}
        with closing(Contents()) as contents:
            pixels = self._pixels(0, contents)
        height, width, channels = pixels.shape
        self.main: Mapping[str, Field] = {"data": Field((channels, height, width), "uint8")}
        self.typical = _mean_length(items) if form.encoded else record_bytes(self.main)

    def _pixels(self, number: int, contents: Contents) -> np.ndarray:
        item = self._items[number]
        data = contents.read(item)
        try:
            return decode(data, self._form.gray, self._form.resized)
        except DataError as error:
            raise DataError(f"{item.where}: {error}") from error

    def lane(self, first: int, count: int, step: int) -> Lane:
        return _FilesLane(self, first, step)

    def chunk(self, first: int, count: int, contents: Contents) -> Chunk:
        """Return samples in the form in which they are written."""
        labels = np.array([item.label for item in self._items[first : first + count]], np.int32)
        if self._form.encoded:
            parts = [self._kept(item, contents) for item in self._items[first : first + count]]
            lengths = np.array([len(part) for part in parts], np.int64)
            return Chunk(np.concatenate(parts), lengths, {"label": labels})
        shape = self.main["data"].shape
        planes = np.empty((count, *shape), np.uint8)
        for i in range(count):
            pixels = self._pixels(first + i, contents)
            if pixels.transpose(2, 0, 1).shape != shape:
                raise DataError(
                    f"{self._items[first + i].where}: its image has shape {pixels.shape} (height, "
                    f"width, channels), but the first one's is {(*shape[1:], shape[0])}; "
                    f"give a height and a width"
                )
            loops.planes(pixels, planes[i])
        size = record_bytes(self.main)
        return Chunk(planes.reshape(-1), np.full(count, size), {"label": labels})

    def _kept(self, item: Item, contents: Contents) -> np.ndarray:
        data = contents.read(item)
        try:
            check_image(data.data)
        except DataError as error:
            self.damaged[item.where] = str(error)
        return data

    def close(self) -> None:
        """Do nothing: files are opened one by one."""


class _FilesLane:
    def __init__(self, files: FilesInput, first: int, step: int) -> None:
        self._files, self._first, self._step = files, first, step
        self._contents = Contents()

    def read(self, count: int) -> Chunk:
        made = self._files.chunk(self._first, count, self._contents)
        self._first += self._step
        return made

    def close(self) -> None:
        self._contents.close()


def open_input(runtime: Any, source: str, *, root: str, kind: str | None, form: Form) -> Input:
    """Open what is to be written: tar shards, a folder of images (its sub-folders, by name, are the
    classes), a list (``.txt``: a path and a label per line), or anything that a composed plugin reads.
    Raises DataError."""
    try:
        return _opened(runtime, source, root, kind, form)
    except PermissionError as error:  # a folder that the user may not read
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _opened(runtime: Any, source: str, root: str, kind: str | None, form: Form) -> Input:
    from demitasse_striped_io.shards import is_shards, shard_items

    path = Path(source)
    if kind in (None, "webdataset") and is_shards(source):
        return FilesInput(source, shard_items(source), form)
    if kind in (None, "images") and is_folder(path) and (found := in_folder(path)):
        return FilesInput(source, found, form)
    if kind == "images" or (kind is None and path.suffix.lower() == ".txt"):
        return FilesInput(source, listed(path, root), form)
    if not form.resized and not form.gray:
        return SourceInput(runtime.open_source(DataSpec(source, kind)), source)
    if kind not in DATABASES and not (kind is None and _is_database(path)):
        raise DataError(
            f"{source}: only image files and databases can be resized or made gray, but these are "
            f"samples already"
        )
    options: dict[str, Any] = {"mode": "gray" if form.gray else "color"}
    if form.resized:
        height, width = form.resized
        options["scaling"] = {"mode": "WARP", "height": height, "width": width}
    opened = runtime.open_source(DataSpec(source, kind, options=options))
    if form.gray and opened.fields["data"].shape[0] != 1:
        opened.close()
        raise DataError(f"{source}: its records are pixels already; only image files can be made gray")
    return SourceInput(opened, source)


def _is_database(path: Path) -> bool:
    return path.name == "data.mdb" or any(is_file(path / name) for name in ("data.mdb", "CURRENT"))
