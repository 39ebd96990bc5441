"""Streams that may take no more: a pipe whose reader has gone, a file on a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any


class Outlet:
    """A stream whose reader may go away, or whose disk may be full: what cannot be written any more is
    dropped, and ``lost`` is why, instead of an error in the middle of what is being reported."""

    def __init__(self, stream: IO[str]) -> None:
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
