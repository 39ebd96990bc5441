"""How long threads wait for a busy core; measurements taken meanwhile say little."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")


def waits_for_cores() -> dict[str, float]:
    """Return the seconds that each thread of this process has so far been ready to run and waited for a
    core, by thread number. Empty if the system does not tell (Linux does, in schedstat); threads that
    end meanwhile are missing."""
    found = dict[str, float]()
    untold = OSError, ValueError, IndexError
    with suppress(*untold):
        for thread in THREADS.iterdir():
            with suppress(*untold):
                found[thread.name] = int((thread / "schedstat").read_text("ascii").split()[1]) * 1e-9
    return found
