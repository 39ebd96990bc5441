"""What parts have in common: the tables that they give, and cases that fail."""

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
"""Cases that a part was begun with before: in the last of them it ended badly."""
FAILED = "failed: "
"""What a line about a test of pytest's that failed begins with."""


def say(table: Table) -> None:
    """Print a part's table, whole, whichever thread another one comes from."""
    sys.stdout.write(json.dumps(table, default=str) + "\n")
    sys.stdout.flush()


class _Warned(logging.Handler):
    """Tells what is logged."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def warned(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell what demitasse warns of meanwhile: that a library has taken the place of a kernel of our own
    that was wrong, or that there is no graph. What is computed is right then, and slower."""
    log, handler = logging.getLogger("demitasse"), _Warned(tell)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def failed(what: str, error: Exception, stand_in: bool) -> Table:
    """An error as a part's result, for the next case may do. Raises it where none can: a device that has
    failed is lost to its process."""
    print(traceback.format_exc(), file=sys.stderr)
    if not ours.is_alive(stand_in):
        raise error
    last = traceback.format_exc()[-3000:]
    return {"wrong": [f"{what}: {type(error).__name__}: {error}"], "tracebacks": [last]}
