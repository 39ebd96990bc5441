"""Streams that may take no more: a pipe whose reader has gone, a file on a full disk; and what goes to
them, of which a terminal is not to obey what stood in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from demitasse import printable

_DRAWING = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)")
"""What a line is coloured, moved and written over with."""


class Drawn(str):
    """Text of which a terminal is to obey what draws."""

    __slots__ = ()


class Shown:
    """A stream of which a terminal obeys nothing; what its encoding lacks is shown as escapes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # by which click would go round this where the encoding is ASCII
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; what is ``Drawn`` draws."""
        if isinstance(text, Drawn):
            parts = _DRAWING.split(text)
            parts[::2] = map(printable, parts[::2])
            plain = "".join(parts)
        else:
            plain = printable(text)
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(plain.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)


class Drawing:
    """A stream for what draws on a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what is to be drawn."""
        self._stream.write(Drawn(text))
        return len(text)


class Outlet:
    """A stream whose reader may go away, or whose disk may be full: what cannot be written any more is
    dropped, and ``lost`` is why, instead of an error in the middle of what is being reported."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop. No text takes no room: click finds out by it what kind of stream this is, and
        would swallow the error of a device that is full."""
        if text == "":
            return 0
        return self._try(lambda: self._stream.write(text)) or len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            self.lost = error
            # What the stream still holds would fail again at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return None


class Named(Outlet):
    """Standard output, whose errors are raised, and say that they are its own."""

    NAME = "standard output"

    def _try(self, action: Callable[[], Any]) -> Any:
        """Raises OSError that has ``NAME`` for a file's name; what comes after it is dropped."""
        done = super()._try(action)
        error, self.lost = self.lost, None
        if error is not None:
            error.filename = self.NAME
            raise error
        return done
