"""Files of samples: bytes, plain or compressed, with a limit; and files that belong together."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import sys
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from demitasse import DataError, check_plain, nearest_path

COMPRESSIONS: dict[bytes, tuple[str, Callable[..., IO[Any]]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
    b"BZh": ("bzip2", bz2.open),
}
"""The first bytes of a compressed file, the compression's name, and the function that opens it."""

SUFFIXES = ("", ".gz", ".xz", ".bz2")
CHUNK = 1 << 20


class SampleFile:
    """A file's bytes, decompressed while they are read. The content shows the compression.

    Every failure is a DataError that names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compression: str | None = None
        self._plain: IO[Any] | None = None
        check_plain(path)
        with self._named():
            self._file: IO[Any] = path.open("rb")
        try:
            with self._named():
                self.stored = os.fstat(self._file.fileno()).st_size
                start = self._file.read(6)
                self._file.seek(0)
                for magic, (name, opener) in COMPRESSIONS.items():
                    if start.startswith(magic):
                        self._plain, self.compression = self._file, name
                        self._file = opener(self._file, "rb")
        except BaseException:
            self.close()
            raise
        if self.stored == 0:
            self.close()
            raise DataError(f"{path} is empty (0 bytes)")

    def read(self, count: int, expected: int | None = None) -> bytearray:
        """Read at most ``count`` bytes, fewer at the end of the file. Memory grows with the bytes that
        exist, not with ``count``. If the file is truncated, the error says how many bytes there are and,
        if ``expected`` are to follow from here, how many there should be."""
        data = bytearray()
        if expected is not None:
            expected += self._file.tell()
        with self._named(expected):
            while len(data) < count:
                chunk = self._file.read(min(CHUNK, count - len(data)))
                if not chunk:
                    break
                data += chunk
        return data

    @contextmanager
    def _named(self, expected: int | None = None) -> Iterator[None]:
        try:
            yield
        except EOFError as error:
            raise DataError(self._state("cut off", expected)) from error
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, ValueError) as error:
            raise DataError(f"{self._state('damaged', expected)} ({error})") from error
        except OSError as error:
            if error.strerror is None:  # bz2 reports damaged data this way
                raise DataError(f"{self._state('damaged', expected)} ({error})") from error
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error

    def _state(self, what: str, expected: int | None) -> str:
        wanted = f", but {expected:,} were expected" if expected is not None else ""
        found = self._file.tell()  # includes bytes just before the fault, which no read returns
        return (
            f"{self.path}: its {self.compression} data is {what} after {found:,} unpacked bytes{wanted}"
        )

    def close(self) -> None:
        self._file.close()
        if self._plain is not None:
            self._plain.close()

    def __enter__(self) -> SampleFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class MappedFile:
    """A file that is mapped into memory. Touching a page whose bytes the file no longer has ends the
    process, so a reader calls ``check`` first."""

    def __init__(self, path: Path, length: int) -> None:
        """Raises OSError if the file cannot be opened."""
        self.path, self.length = path, length
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def check(self) -> None:
        """Raise DataError if the file has become shorter than its map's ``length``."""
        if (found := os.fstat(self._descriptor).st_size) < self.length:
            left = f"{found:,} bytes of {self.length:,} are left"
            raise DataError(f"{self.path}: was cut off while it was read: {left}")


def identity(path: Path) -> Hashable:
    """Return a key that changes when the file changes."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return path.resolve(), status.st_size, status.st_mtime_ns, status.st_ino


def bare_name(path: Path) -> str:
    """Return the file's name without the suffix of a compression."""
    return path.stem if path.suffix in SUFFIXES else path.name


def natural(path: Path) -> list[tuple[int, int | str]]:
    """Return a sorting key that puts data_batch_10 after data_batch_9."""
    return [
        (0, int(part)) if part.isdecimal() else (1, part)
        for part in re.split(r"(\d+)", str(path))
        if part
    ]


def physical_memory() -> int:
    """Bytes of physical memory; if the system does not tell (Windows), more than any machine has."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def missing(path: Path, understood: str) -> DataError:
    """Return the error for a path that does not exist: the part that is missing and the nearest name."""
    return DataError(f"no such file or folder: {str(path)!r}{nearest_path(path)} ({understood})")
