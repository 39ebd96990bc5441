"""Products of parameters, of which most combinations prove what others have proved."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import pytest


def in_pairs(*parameters: Collection[Any]) -> list[Any]:
    """For ``pytest.mark.parametrize``: all combinations of one value of each. In the fast tests any two
    values of two parameters meet at least once; the others are slow, and add what three or more might do
    together that no two of them do."""
    numbered = list(itertools.product(*(range(len(values)) for values in parameters)))
    pairs = {places: set(itertools.combinations(enumerate(places), 2)) for places in numbered}
    to_come = set().union(*pairs.values())
    fast = set()
    while to_come:
        best = max(numbered, key=lambda places: len(pairs[places] & to_come))
        fast.add(best)
        to_come -= pairs[best]
    slow = pytest.mark.slow
    return [
        pytest.param(*values, marks=() if places in fast else slow)
        for places, values in zip(numbered, itertools.product(*parameters), strict=True)
    ]
