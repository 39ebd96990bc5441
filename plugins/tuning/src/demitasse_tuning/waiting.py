"""Whether others had this machine's cores while kernels were timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from demitasse import waits_for_cores

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
    that the host of a virtual machine took of a core; nothing of what the system does not tell (Linux
    does), or of threads that end meanwhile."""
    found = waits_for_cores()
    with suppress(OSError, ValueError, IndexError):
        ticks = int(STATISTICS.read_text("ascii").split(maxsplit=STOLEN + 1)[STOLEN])
        found["host"] = ticks * 1e-2 / (os.cpu_count() or 1)
    return found


def disturbed(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> bool:
    """Whether a thread waited for too much of so many seconds; not where nothing was told ``before``."""
    if not before:
        return False
    longest = max((spent - before.get(thread, 0.0) for thread, spent in after.items()), default=0.0)
    return longest > DISTURBED * seconds
