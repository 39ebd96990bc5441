"""Whether other programs used this machine's cores while kernels were timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from demitasse import waits_for_cores

STATISTICS = Path("/proc/stat")
STOLEN = 8
"""The column of time that a virtual machine's host took, in hundredths of seconds of all cores."""

DISTURBED = 0.05
"""A share of a trial's time. If a thread was ready to run but waited for a core for longer than this,
the trial says little. On an idle machine, threads wait for less than a hundredth of the time; next to a
process that computes on all cores, for half."""

Waits = Callable[[], Mapping[str, float]]


def waited() -> dict[str, float]:
    """Return the seconds that each thread of this process has so far been ready to run and waited for a
    core, and those that the host of a virtual machine took from a core. What the system does not tell
    (Linux does) is missing, and so are threads that end meanwhile."""
    found = waits_for_cores()
    with suppress(OSError, ValueError, IndexError):
        ticks = int(STATISTICS.read_text("ascii").split(maxsplit=STOLEN + 1)[STOLEN])
        found["host"] = ticks * 1e-2 / (os.cpu_count() or 1)
    return found


def disturbed(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> bool:
    """Return whether a thread waited for too much of ``seconds``; False without any ``before``."""
    if not before:
        return False
    longest = max((spent - before.get(thread, 0.0) for thread, spent in after.items()), default=0.0)
    return longest > DISTURBED * seconds
