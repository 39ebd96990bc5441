"""The journal of a set that is being written: which samples are on disk, so that another writer can
continue where a killed one stopped.

A line of JSON says what is written and how. Then follows an entry for each stretch of samples that is
safely on disk: a line of JSON, and the stretch's rows of the table. An incomplete last entry is removed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from demitasse import DataError
from demitasse_striped_io.index import written_whole

Rows = dict[str, np.ndarray]
Columns = list[tuple[str, np.dtype[Any], tuple[int, ...]]]


@dataclass
class Journal:
    """``header`` says what is written. ``done`` samples are on disk, with their rows in ``table``;
    ``end`` is the position after the last one, counted through all blocks."""

    path: Path
    header: dict[str, Any]
    table: Rows
    done: int = 0
    end: int = 0
    _file: IO[bytes] | None = field(default=None, repr=False)

    def add(self, count: int, end: int) -> None:
        """Record that the next ``count`` samples are on disk, and that the last of them ends at ``end``.
        Raises OSError."""
        rows = slice(self.done, self.done + count)
        body = b"".join(column[rows].tobytes() for column in self.table.values())
        entry = {"count": count, "end": end, "bytes": len(body), "crc32": zlib.crc32(body)}
        if self._file is None:
            self._file = self.path.open("ab")
        self._file.write(json.dumps(entry).encode() + b"\n" + body)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done, self.end = self.done + count, end

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def empty_table(columns: Columns) -> Rows:
    """Return a table's columns, filled with zeros."""
    return {name: np.zeros(shape, kind) for name, kind, shape in columns}


def begin(path: Path, header: Mapping[str, Any], columns: Columns) -> Journal:
    """Create an empty journal, whole or not at all. Raises OSError."""
    written_whole(path, json.dumps(dict(header)).encode() + b"\n")
    return Journal(path, dict(header), empty_table(columns))


def header_of(path: Path) -> dict[str, Any]:
    """Return what a journal's writer was writing. Raises DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: the journal of a set that was being written cannot be read ({error}); "
            f"force starts over"
        ) from error
    return header


def resume(path: Path, columns: Columns) -> Journal:
    """Read the journal as far as it is intact. Raises DataError or OSError."""
    journal = Journal(path, header_of(path), empty_table(columns))
    samples = len(next(iter(journal.table.values())))
    with path.open("r+b") as file:
        file.readline()
        good = file.tell()
        while line := file.readline():
            try:
                entry = json.loads(line)
                count, end, size = (int(entry[name]) for name in ("count", "end", "bytes"))
                check = int(entry["crc32"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                break
            rows = slice(journal.done, journal.done + count)
            expected = sum(column[rows].nbytes for column in journal.table.values())
            if count < 1 or size != expected or journal.done + count > samples:
                break
            body = file.read(size)
            if len(body) != size or zlib.crc32(body) != check:
                break
            at = 0
            for column in journal.table.values():
                part = column[rows]
                part[...] = np.frombuffer(body[at : at + part.nbytes], column.dtype).reshape(part.shape)
                at += part.nbytes
            journal.done, journal.end, good = journal.done + count, end, file.tell()
        file.truncate(good)
    return journal
