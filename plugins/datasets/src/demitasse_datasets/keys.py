"""Keys and values of a database, as all kinds of readers provide them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

Get = Callable[[int], "memoryview | bytes"]
"""Returns the value of an entry by its number in key order; a view may be valid only in the session."""


class Reader(Protocol):
    """A database that is open for reading: entries are numbered in the order of their keys."""

    path: str
    size: int

    def key(self, number: int) -> bytes:
        """Return the key of an entry."""

    def session(self) -> AbstractContextManager[Get]:
        """Open a session of one thread; it yields a function that reads values. Raises DataError for an
        entry that cannot be read."""


class Keys:
    """Byte strings by number, in one block of memory: 1.3 million file names take 50 MB, not 120."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        listed = list(keys)
        self._text = b"".join(listed)
        self._ends = np.cumsum([len(key) for key in listed], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        start = int(self._ends[number - 1]) if number else 0
        return self._text[start : int(self._ends[number])]


def shown(key: bytes) -> str:
    """Return a key as shown in messages."""
    return repr(key.decode()) if key.isascii() and key.decode().isprintable() else f"0x{key.hex()}"
