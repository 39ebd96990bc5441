"""LMDB databases, read with the package lmdb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demitasse import DataError, is_folder, looks_like_at
from demitasse_datasets.files import MappedFile
from demitasse_datasets.keys import Get, Keys, shown

FILE = "data.mdb"


class LmdbReader:
    """The main database of an LMDB environment, opened read-only and without a lock, so that it can be
    on a read-only file system. Nobody may write to it meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises DataError for anything but an LMDB environment, and for one that is truncated or
        empty."""
        try:
            import lmdb
        except ImportError as error:
            raise DataError(
                f"{path}: the package lmdb is needed to read it ({error}); pip install lmdb"
            ) from error
        self.path, self._error = str(path), lmdb.Error
        folder = is_folder(path)
        file = path / FILE if folder else path
        try:
            self._environment: Any = lmdb.open(
                self.path, readonly=True, lock=False, subdir=folder, create=False
            )
        except (lmdb.Error, OSError) as error:
            remedy = "; close() the one that is open" if "already open" in str(error) else ""
            told = looks_like_at(file)
            if not remedy and told and "LMDB" not in told:
                remedy = f"; {file.name} {told}"
            raise DataError(f"{path}: cannot be opened as an LMDB database: {error}{remedy}") from error
        # LMDB maps the file: touching a missing page ends the process with a bus error.
        promised = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        if file.stat().st_size < promised:
            found = file.stat().st_size
            self._environment.close()
            raise DataError(
                f"{file}: is cut off: it promises {promised:,} bytes, but {found:,} are there"
            )
        self._file = MappedFile(file, promised)
        try:
            with self._environment.begin() as transaction:
                self._keys = Keys(transaction.cursor().iternext(keys=True, values=False))
        except lmdb.Error as error:
            raise DataError(f"{file}: is damaged: {error}") from error
        self.size = len(self._keys)
        if not self.size:
            raise DataError(f"{path}: there are no samples in it")

    def key(self, number: int) -> bytes:
        return self._keys[number]

    @contextmanager
    def session(self) -> Iterator[Get]:
        self._file.check()
        with self._environment.begin(buffers=True) as transaction:

            def get(number: int) -> memoryview:
                self._file.check()
                try:
                    value = transaction.get(self._keys[number])
                except self._error as error:
                    raise DataError(f"cannot be read: {error}") from error
                if value is None:
                    raise DataError(f"key {shown(self._keys[number])} no longer exists")
                return memoryview(value)

            yield get
