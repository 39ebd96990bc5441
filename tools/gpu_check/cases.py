"""What the parts share: the tables that they yield, and cases that fail."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ours

Table = dict[str, Any]
Cases = frozenset[str]
"""Cases that a part began earlier; in the last of them it ended badly."""
FAILED = "failed: "
"""The beginning of a line about a failed test of pytest."""


def say(table: Table) -> None:
    """Print a part's table as one line, even if other threads print, too."""
    sys.stdout.write(json.dumps(table, default=str) + "\n")
    sys.stdout.flush()


class _Warned(logging.Handler):
    """Passes on what is logged."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def warned(tell: Callable[[str], object]) -> Iterator[None]:
    """Within this, pass on demitasse's warnings: that a library replaced one of our kernels because it
    was wrong, or that there is no graph. Results are then right, but slower."""
    log, handler = logging.getLogger("demitasse"), _Warned(tell)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def failed(what: str, error: Exception, stand_in: bool) -> Table:
    """Return an error as a part's result, so that the next case can run. Raises it if none can, because
    a device that has failed is lost to its process."""
    print(traceback.format_exc(), file=sys.stderr)
    if not ours.is_alive(stand_in):
        raise error
    last = traceback.format_exc()[-3000:]
    return {"wrong": [f"{what}: {type(error).__name__}: {error}"], "tracebacks": [last]}
