"""Whether others had this machine's cores while kernels were timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

THREADS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")
STOLEN = 8
"""The column of what a virtual machine's host took, in hundredths of seconds of all its cores."""

DISTURBED = 0.05
"""A part of the time: a trial in which a thread could have run for so long, and waited for a core, tells
little. An idle machine's threads wait for less than a hundredth; beside a process that computes on all
cores, for half."""

Waits = Callable[[], Mapping[str, float]]


def waited() -> dict[str, float]:
    """Seconds that each thread of this process could have run and waited for a core, so far, and those
    that the host of a virtual machine took of a core; nothing where the system does not tell (Linux
    does)."""
    found = {}
    try:
        for thread in THREADS.iterdir():
            found[thread.name] = int((thread / "schedstat").read_text("ascii").split()[1]) * 1e-9
        ticks = int(STATISTICS.read_text("ascii").split(maxsplit=STOLEN + 1)[STOLEN])
        found["host"] = ticks * 1e-2 / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return {}  # not Linux, or a thread that just ended
    return found


def disturbed(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> bool:
    """Whether a thread waited for too much of so many seconds."""
    longest = max((spent - before.get(thread, 0.0) for thread, spent in after.items()), default=0.0)
    return longest > DISTURBED * seconds
