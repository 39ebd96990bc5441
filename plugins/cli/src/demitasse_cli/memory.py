"""Messages for errors caused by a lack of memory: how much there is, and what to change."""

from __future__ import annotations

import errno
import re

from demitasse import KernelFiles, address_space, available_bytes
from demitasse_cli.report import human_bytes

SAID = re.compile(
    r"failed to map segment|cannot allocate memory|out of memory|bad_alloc|can't start new thread", re.I
)
"""What loaders and libraries call it in errors of other types."""


def told(error: BaseException) -> str:
    """Return the message of an error; if it is caused by a lack of memory, with a remedy."""
    words = str(error).rstrip(": ")
    if not _lacking(error):
        return str(error)
    lack = isinstance(error, MemoryError)
    if lack:
        words = f"not enough memory: {words}" if words else "not enough memory"
    limit = address_space()
    if limit is not None:
        peak = KernelFiles().size("proc/self/status", "VmPeak") or limit[1]
        may = f"a limit (ulimit -v) allows this process {human_bytes(limit[0])}"
        return f"{words}; {may}, and it had {human_bytes(peak)}: raise the limit"
    available = available_bytes()
    if not lack or "available" in words or available is None:
        return words
    return f"{words}; available: {human_bytes(available)}; use a smaller batch or fewer workers"


def _lacking(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, reports a lack of memory."""
    met = set[int]()
    while error is not None and id(error) not in met:
        met.add(id(error))
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if SAID.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
