"""How many examples of a property a run draws."""

from __future__ import annotations

import os

DRAWN = int(os.environ.get("DEMITASSE_EXAMPLES", "10"))
"""Where a test says nothing itself. Each run draws others, so few will do every time; with
DEMITASSE_EXAMPLES=1000 there are more."""

_WHOLE = 60


def examples(count: int) -> int:
    """A test's own number of examples, ``count`` where DEMITASSE_EXAMPLES is 60, and more or fewer in
    proportion."""
    return max(min(count, 3), count * DRAWN // _WHOLE)
