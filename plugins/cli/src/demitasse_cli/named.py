"""Standard output whose errors name it: a full disk's tells which file it is that has no room."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any


class Named:
    """Standard output, whose errors say that they are its own."""

    NAME = "standard output"

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises OSError that has ``NAME`` for a file's name."""
        written: int = self._try(lambda: self._stream.write(text))
        return written

    def flush(self) -> None:
        """Flush. Raises OSError that has ``NAME`` for a file's name."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            error.filename = self.NAME
            # What the stream still holds would fail again at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            raise
