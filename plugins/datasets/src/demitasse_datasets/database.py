"""Samples from databases of Datum records, which hold pixels or encoded images."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from demitasse import DataError, Field, is_file, looks_like_at, process_lock
from demitasse_datasets import images
from demitasse_datasets.crops import Crop, fit
from demitasse_datasets.datum import Datum, parse
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.keys import Get, Reader, shown
from demitasse_datasets.leveldb_reader import FILE as LEVELDB_FILE
from demitasse_datasets.leveldb_reader import LevelDbReader
from demitasse_datasets.lmdb_reader import FILE as LMDB_FILE
from demitasse_datasets.lmdb_reader import LmdbReader
from demitasse_datasets.samples import naming

READERS: Mapping[str, tuple[str, Callable[[Path], Reader]]] = MappingProxyType(
    {"lmdb": (LMDB_FILE, LmdbReader), "leveldb": (LEVELDB_FILE, LevelDbReader)}
)
"""Kinds of database: the file by which one is recognised, and the reader that opens it."""

_open: weakref.WeakValueDictionary[Hashable, Reader] = weakref.WeakValueDictionary()
_opening = process_lock()


def kind_of(path: Path) -> str | None:
    """Return the kind of database in a folder (or file, for LMDB); None if there is none."""
    if is_file(path):
        return "lmdb" if path.suffix == ".mdb" or "LMDB" in looks_like_at(path) else None
    return next((kind for kind, (file, _) in READERS.items() if is_file(path / file)), None)


def open_database(path: Path, kind: str) -> Reader:
    """Return the database's reader, shared with other sources of this process that have it open: LMDB
    allows only one. Raises DataError."""
    told, reader = READERS[kind]
    file = path if is_file(path) else path / told
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"{path}: is not an intact {kind} database: {file}: {error.strerror}") from error
    key = kind, file.resolve(), status.st_size, status.st_mtime_ns
    with _opening:
        found = _open.get(key)
        if found is None:
            found = _open[key] = reader(path)
        return found


class DatumSamples:
    """The records of a database in the order of their keys: ``data`` and ``label``, or as many labels as
    the first record has.

    The first record determines shape and element type. All others must have the same, unless batches
    have one sample. With a ``crop``, images may differ in size: a square is cut from each. ``mode`` says
    how images are decoded (see ``images.decode``); as in Caffe, it has no effect on records that are not
    encoded.
    """

    def __init__(self, reader: Reader, crop: Crop, mode: str) -> None:
        self.name, self.size = reader.path, reader.size
        self._reader, self._crop, self._mode = reader, crop, mode
        self._pool = decoders()
        self.varies = crop.whole
        with reader.session() as get, naming(f"{self.name}: {self._key(0)}"):
            record = parse(get(0))
            pixels = self._pixels(record)
            shape = crop.shape(pixels.shape)
            quick = record.encoded and images.are_quick(lambda i: parse(get(i)).data, self.size)
            self._apart = record.encoded and not quick  # decode in threads
        self.fields: Mapping[str, Field] = {
            "data": Field(shape, pixels.dtype.name),
            "label": Field(np.shape(record.labels), "int32"),
        }
        self._labels = 1 + len(record.more)

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        drawn = self._crop.draws(first, len(numbers))

        def one(i: int, get: Get) -> None:
            number = int(numbers[i])
            with naming(self._key(number)):
                record = parse(get(number))
                pixels = self._crop.cut(self._pixels(record), drawn[i], first + i)
                fit(pixels, out["data"][i])
                out["label"][i] = self._labels_of(record)

        def alone(i: int) -> None:
            with self._reader.session() as get:
                one(i, get)

        if self._apart:
            for_each(self._pool, len(numbers), alone)
        else:
            with self._reader.session() as get:
                for i in range(len(numbers)):
                    one(i, get)

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        with self._reader.session() as get, naming(self._key(number)):
            record = parse(get(number))
            drawn = self._crop.draws(place, 1)[0]
            pixels = np.array(self._crop.cut(self._pixels(record), drawn, place))
            labels = np.array(self._labels_of(record), np.int32)
        return {"data": pixels, "label": labels}

    def where(self, number: int) -> str:
        return f"{self.name}: {self._key(number)}"

    def _labels_of(self, record: Datum) -> int | tuple[int, ...]:
        if 1 + len(record.more) != self._labels:
            raise DataError(
                f"its Datum has {1 + len(record.more)} labels, but the first record's {self._labels}; "
                f"fill rows up, with the net's blank, for example"
            )
        return record.labels

    def _key(self, number: int) -> str:
        return f"key {shown(self._reader.key(number))}"

    def _pixels(self, record: Datum) -> np.ndarray:
        if record.wraps:
            raise DataError(
                "it is an AnnotatedDatum, an image with boxes, which AnnotatedData layers read"
            )
        if record.encoded:
            return images.planes(images.decode(record.data, self._mode))
        return record.pixels()
