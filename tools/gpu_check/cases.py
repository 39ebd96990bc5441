"""What parts have in common: the tables that they give, and cases that fail."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import ours

Table = dict[str, Any]
Cases = frozenset[str]
"""Cases that a part was begun with before: in the last of them it ended badly."""
FAILED = "failed: "
"""What a line about a test of pytest's that failed begins with."""


def failed(what: str, error: Exception, stand_in: bool) -> Table:
    """An error as a part's result, for the next case may do. Raises it where none can: a device that has
    failed is lost to its process."""
    print(traceback.format_exc(), file=sys.stderr)
    if not ours.is_alive(stand_in):
        raise error
    last = traceback.format_exc()[-3000:]
    return {"wrong": [f"{what}: {type(error).__name__}: {error}"], "tracebacks": [last]}
