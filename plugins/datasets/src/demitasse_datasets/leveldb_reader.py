"""LevelDB databases, read without writing, locking or recovering anything.

A folder has a CURRENT file that names a manifest. The manifest, a log of edits, says which sorted tables
(``.ldb``, ``.sst``) are live, and which logs hold writes that are in no table yet. If several entries
have the same key, the highest sequence number counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from demitasse import DataError
from demitasse_datasets import leveldb_format as form
from demitasse_datasets.keys import Get, Keys
from demitasse_datasets.samples import naming

FILE = "CURRENT"

Place = tuple[int, int, int, int, int]
"""A value's location: its file, its block's position and length (for a log, its record's number and 0),
and where in the decompressed block or in the record it begins and ends."""


class LevelDbReader:
    """A LevelDB database. Its keys are stored among the values, so opening it reads all blocks that hold
    several entries, and the beginnings of the others."""

    def __init__(self, path: Path) -> None:
        """Raises DataError that names the file and what is wrong in it."""
        self.path = str(path)
        self._tables: list[Path] = []
        self._records: list[bytes] = []
        newest: dict[bytes, tuple[int, Place]] = {}
        try:
            tables, log = _alive(path)
            for number in sorted(tables):
                self._read_table(_table_file(path, number), newest)
            for file in sorted(path.glob("*.log"), key=lambda file: (len(file.stem), file.stem)):
                if file.stem.isdecimal() and int(file.stem) >= log:
                    self._read_log(file, newest)
        except OSError as error:
            raise DataError(f"{error.filename or path}: cannot be read: {error.strerror}") from error
        keys = sorted(key for key, (order, _) in newest.items() if order & 255 == form.PUT)
        if not keys:
            raise DataError(f"{path}: there are no samples in it")
        self._keys, self.size = Keys(keys), len(keys)
        self._places = np.array([newest[key][1] for key in keys], np.int64)

    def key(self, number: int) -> bytes:
        return self._keys[number]

    @contextmanager
    def session(self) -> Iterator[Get]:
        held: tuple[int, int] = (-2, -2)
        contents = b""

        def get(number: int) -> memoryview:
            nonlocal held, contents
            table, place, extent, begin, end = map(int, self._places[number])
            if table < 0:
                return memoryview(self._records[place])[begin:end]
            if held != (table, place):
                contents, held = _block(self._tables[table], place, extent), (table, place)
            if end > len(contents):
                raise DataError(f"{self._tables[table]}: has changed since it was opened")
            return memoryview(contents)[begin:end]

        yield get

    def _read_table(self, file: Path, newest: dict[bytes, tuple[int, Place]]) -> None:
        number = len(self._tables)
        self._tables.append(file)
        with naming(str(file)), file.open("rb") as opened:
            for key, order, place, extent, begin, end in form.table(opened):
                if key not in newest or newest[key][0] < order:
                    newest[key] = order, (number, place, extent, begin, end)

    def _read_log(self, file: Path, newest: dict[bytes, tuple[int, Place]]) -> None:
        with naming(str(file)):
            for _, record in form.records(file.read_bytes()):
                number = len(self._records)
                self._records.append(record)
                for key, order, begin, end in form.batch(record):
                    if key not in newest or newest[key][0] < order:
                        newest[key] = order, (-1, number, 0, begin, end)


def _alive(path: Path) -> tuple[set[int], int]:
    """Return the tables of a database and its first log, according to CURRENT's manifest."""
    current = path / FILE
    name = current.read_bytes()[:256].strip().decode("latin-1")
    if not name.startswith("MANIFEST-") or not name[9:].isdecimal():
        raise DataError(f"{current}: names no manifest: {name!r}")
    with naming(str(path / name)):
        return form.manifest((path / name).read_bytes())


def _table_file(path: Path, number: int) -> Path:
    for ending in (".ldb", ".sst"):
        file = path / f"{number:06d}{ending}"
        if file.exists():
            return file
    raise DataError(f"{path}: its table {number:06d}.ldb is missing, though its manifest names it")


def _block(file: Path, place: int, extent: int) -> bytes:
    try:
        with naming(str(file)), file.open("rb") as opened:
            return form.block(opened, place, extent)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
