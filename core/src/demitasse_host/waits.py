"""How long threads wait for a core that others have: what is timed meanwhile tells little."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")


def waits_for_cores() -> dict[str, float]:
    """Seconds that each thread of this process could have run and waited for a core, so far, by its
    number. Nothing where the system does not tell (Linux does, in schedstat), or of threads that end
    meanwhile."""
    found = dict[str, float]()
    untold = OSError, ValueError, IndexError
    with suppress(*untold):
        for thread in THREADS.iterdir():
            with suppress(*untold):
                found[thread.name] = int((thread / "schedstat").read_text("ascii").split()[1]) * 1e-9
    return found
