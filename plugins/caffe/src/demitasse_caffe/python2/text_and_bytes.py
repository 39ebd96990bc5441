"""Where Python 2 made no difference between text and bytes: files, files in memory, keys and values of
databases, and messages that are parsed.

Bytes that are read as text and are not UTF-8 become surrogates (PEP 383), so that ``bytes_in`` returns
the same bytes again.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from types import BuiltinMethodType
from typing import Any


def bytes_in(text: str) -> bytes:
    """Return the bytes that a text was read from."""
    return text.encode("utf-8", "surrogateescape")


def opened(name: Any, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
    """Return ``open(name, mode)``. A file opened without a ``b`` is text that takes bytes as well, and
    line ends stay as they are in the file. With a ``buffering`` of 0 or 1 each
    line is in the file at once. A file that is opened to write bytes takes text too."""
    if mode in ("wb", "ab") and buffering and not options:
        return _BytesFile(io.FileIO(name, mode.replace("b", "")))
    if options or "b" in mode or "U" in mode:
        return open(name, mode.replace("U", "") or "r", buffering, **options)  # noqa: PTH123
    file = open(name, mode.replace("t", "") + "b")  # noqa: PTH123, SIM115
    return _TextFile(file, "utf-8", "surrogateescape", "\n", line_buffering=buffering in (0, 1))


class _TextFile(io.TextIOWrapper):
    def write(self, data: Any) -> int:
        """Write text or bytes; return how much was written."""
        if not isinstance(data, bytes):
            return super().write(data)
        self.flush()
        buffer: Any = self.buffer
        count = int(buffer.write(data))
        if self.line_buffering:
            self.flush()
        return count


class _BytesFile(io.BufferedWriter):
    def write(self, data: Any) -> int:
        """Write text or bytes; return how much was written."""
        return super().write(bytes_in(data) if isinstance(data, str) else data)


class StringIO:
    """A file in memory. It holds bytes if it is made of bytes (or of text that was read from bytes) or
    if the first thing written to it is bytes, as PIL writes an image, and text otherwise."""

    def __init__(self, initial: str | bytes = "") -> None:
        self._undecided = not initial
        if (
            isinstance(initial, str)
            and initial
            and not any("\udc80" <= each <= "\udcff" for each in initial)
        ):
            self._file: Any = io.StringIO(initial, "\n")
        else:
            self._file = io.BytesIO(bytes_in(initial) if isinstance(initial, str) else initial)

    def write(self, data: Any) -> int:
        """Write text or bytes; return how much was written. Raise TypeError if the file holds the
        other kind."""
        if self._undecided and isinstance(data, str):
            self._file = io.StringIO(newline="\n")
        self._undecided = False
        return int(self._file.write(data))

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write each of some lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if self._undecided and name in ("getvalue", "read", "readline"):
            return lambda *_: ""
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def called(owner: Any, method: str, *given: Any, **options: Any) -> Any:
    """Return ``owner.method(...)``. If the method belongs to a compiled class, as those of databases and
    messages do, and takes no text, it gets the bytes of the text."""
    call = getattr(owner, method)
    if not isinstance(call, BuiltinMethodType) or not any(isinstance(each, str) for each in given):
        return call(*given, **options)
    try:
        return call(*given, **options)
    except TypeError:
        return call(*(bytes_in(each) if isinstance(each, str) else each for each in given), **options)
