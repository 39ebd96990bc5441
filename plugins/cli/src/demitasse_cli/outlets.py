"""Streams that may stop accepting output (a pipe whose reader has gone, a file on a full disk), and
output from which terminal control sequences are removed, because they may come from a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from demitasse import printable

_DRAWING = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)")
"""Matches what colours a line, moves in it, or returns to its beginning."""


class Drawn(str):
    """Text in which a terminal should obey the control sequences that draw."""

    __slots__ = ()


class Shown:
    """A stream that makes control sequences, and characters that its encoding lacks, visible as
    escapes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # with an ASCII encoding, click would use it to bypass this class
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; control sequences of text that is ``Drawn`` are kept."""
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
    """A stream for code that draws on a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text whose control sequences are kept."""
        self._stream.write(Drawn(text))
        return len(text)


class Outlet:
    """A stream whose reader may go away, or whose disk may be full. What can no longer be written is
    dropped, and ``lost`` has the reason, rather than raising an error in the middle of a report."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop. Empty text is not passed on: click writes it to find out the kind of stream,
        and would swallow the error of a device that is full."""
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
            # Otherwise, what the stream still buffers would fail again at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return None


class Named(Outlet):
    """Standard output, whose errors are raised, with its name."""

    NAME = "standard output"

    def _try(self, action: Callable[[], Any]) -> Any:
        """Raise OSError with ``NAME`` as the file's name; later output is dropped."""
        done = super()._try(action)
        error, self.lost = self.lost, None
        if error is not None:
            error.filename = self.NAME
            raise error
        return done
