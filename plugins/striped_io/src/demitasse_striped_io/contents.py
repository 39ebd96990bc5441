"""Reading the bytes of image files, members of tar shards, and compressed shards."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from demitasse import DataError, open_plain

OPENERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
"""The function that opens a compressed file, by the file's first bytes."""
BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""What is raised if a compressed file is truncated or damaged."""


@dataclass(frozen=True)
class Item:
    """The location, name and label of an image file's bytes. If the file is ``compressed``, the location
    is in its decompressed contents."""

    file: Path
    where: str
    label: int
    offset: int = 0
    length: int = -1
    compressed: bool = False

    def bytes(self) -> int:
        """The number of bytes; 0 if the file is missing, which is reported when it is read."""
        with suppress(OSError):
            return self.length if self.length >= 0 else self.file.stat().st_size
        return 0


def opener(file: Path) -> Callable[[Path], Any] | None:
    """Return the function that decompresses a file; None if it is not compressed. Raises OSError."""
    with _opened(file) as opened:
        start = opened.read(max(map(len, OPENERS)))
    return next((each for begin, each in OPENERS.items() if start.startswith(begin)), None)


def _opened(path: Path) -> IO[bytes]:
    """Open a file. Raises OSError, ValueError."""
    return os.fdopen(open_plain(path)[0], "rb")


class Contents:
    """Reads items, for one thread. A compressed file is decompressed from its beginning, only once if
    its items are read in order."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._stream: IO[bytes] | None = None

    def read(self, item: Item) -> np.ndarray:
        """Return the bytes of an item, uint8. Raises DataError."""
        try:
            if item.compressed:
                data = np.frombuffer(self._unpacked(item), np.uint8)
            else:
                with _opened(item.file) as file:
                    data = np.fromfile(file, np.uint8, count=item.length, offset=item.offset)
        except BROKEN as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{item.where}: cannot be read: {reason}") from error
        if not len(data) or len(data) < item.length:
            raise DataError(f"{item.where}: has {len(data):,} bytes, but an image was expected")
        return data

    def _unpacked(self, item: Item) -> bytes:
        if self._stream is None or self._file != item.file:
            self.close()
            unpack = opener(item.file)
            if unpack is None:
                raise ValueError("it was compressed before, but is not any more")
            self._file, self._stream = item.file, unpack(item.file)
        stream: Any = self._stream
        stream.seek(item.offset)
        return bytes(stream.read(item.length))

    def close(self) -> None:
        """Close the compressed file that was last read."""
        if self._stream is not None:
            self._stream.close()
        self._file = self._stream = None
