"""Processes that end before they have met the others: those with the same error end together, and all
others are told of the error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SCRIPT = """
import json
from demitasse import DemitasseError, Machine
from demitasse_allreduce.plugin import processes
words = json.loads(sys.argv[1])[rank]
options = {"peer_timeout": "30 s", **({"error": words} if words else {})}
try:
    met = processes(machine=Machine("here", ()), options=options)
except DemitasseError as error:
    print(f"[{rank}] {type(error).__name__}: {error}", flush=True)
else:
    print(f"[{rank}] met {sum(met.gather(1))}", flush=True)
    met.close()
"""


def told(output: str) -> list[str]:
    """What each rank said."""
    return sorted(line for line in output.splitlines() if line.startswith("["))


def test_those_with_the_same_words_come_together(mpiexec: Callable[..., str]) -> None:
    output = mpiexec(3, SCRIPT, '["no such file", "no such file", "no such file"]')
    assert told(output) == ["[0] met 3", "[1] met 3", "[2] met 3"]


@pytest.mark.parametrize("words", ['["", "no such file"]', '["no such net", "no such file"]'])
def test_different_ends_are_named_on_all_ranks(mpiexec: Callable[..., str], words: str) -> None:
    lines = told(mpiexec(2, SCRIPT, words))
    first, said = (1, "no such file") if words.startswith('[""') else (0, "no such net")
    assert len(lines) == 2, lines
    for line in lines:
        assert f"WorkerError: rank {first} of 2 (host " in line
        assert line.endswith(f"failed before it met the others: {said}")
