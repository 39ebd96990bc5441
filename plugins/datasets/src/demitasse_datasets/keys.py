"""Keys and values of a database, as its kinds serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

Get = Callable[[int], "memoryview | bytes"]
"""The value of an entry by its number in the order of keys; a view may be valid in a session only."""


class Reader(Protocol):
    """A database that is open for reading: entries by number, in the order of their keys."""

    path: str
    size: int

    def key(self, number: int) -> bytes:
        """The key of an entry."""

    def session(self) -> AbstractContextManager[Get]:
        """For one thread: what reads values. Raises DataError for an entry that cannot be read."""


class Keys:
    """Byte strings by number, in one piece of memory: 1.3 million file names take 50 MB, not 120."""

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
    """A key for messages."""
    return repr(key.decode()) if key.isascii() and key.decode().isprintable() else f"0x{key.hex()}"
