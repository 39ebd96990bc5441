"""What the control groups of this process allow it, in version 1 and 2 of their file system, and how
many threads its environment asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from demitasse import KernelFiles, launched

MOUNT = "sys/fs/cgroup"
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Limits:
    """CPUs' worth of time, and bytes of memory; None where there is no limit."""

    cpus: float | None = None
    memory: int | None = None


def limits(files: KernelFiles) -> Limits:
    """The tightest limits of this process's groups and of all those around them."""
    cpus: list[float] = []
    memory: list[int] = []
    for line in files.text("proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for base in (MOUNT, f"{MOUNT}/unified"):
                for group in _groups(base, path):
                    cpus += _quota(files.text(f"{group}/cpu.max"))
                    memory += _bytes(files.number(f"{group}/memory.max"))
        if "cpu" in controllers.split(","):
            for base in (f"{MOUNT}/{controllers}", f"{MOUNT}/cpu"):
                for group in _groups(base, path):
                    quota = files.text(f"{group}/cpu.cfs_quota_us")
                    cpus += _quota(f"{quota} {files.text(f'{group}/cpu.cfs_period_us')}")
        if "memory" in controllers.split(","):
            for group in _groups(f"{MOUNT}/memory", path):
                memory += _bytes(files.number(f"{group}/memory.limit_in_bytes"))
    return Limits(min(cpus, default=None), min(memory, default=None))


def threads_asked(environment: Mapping[str, str] | None = None) -> int | None:
    """The threads that ``OMP_NUM_THREADS`` (OpenMP 5.2, section 21.1.2) leaves to this process, or to
    all that a launcher has started on this host; None where it does not say, or nobody how many these
    are. Who runs many processes sets it, and expects of any program that it is kept to."""
    found = os.environ if environment is None else environment
    outermost = found.get(THREADS, "").partition(",")[0].strip()
    if not (outermost.isascii() and outermost.isdigit()):
        return None
    launch = launched(found)
    return int(outermost) * (1 if launch is None else launch.local or 0) or None


def _groups(base: str, path: str) -> list[str]:
    """The folders of a group and of those around it. A container may see the host's path of its
    group though its files are those at the mount point, which is always among these."""
    group = PurePosixPath("/", path)
    return [f"{base}{str(part).rstrip('/')}" for part in (group, *group.parents)]


def _quota(text: str) -> list[float]:
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(quota) * int(period) == 0:
        return []
    return [int(quota) / int(period)]


def _bytes(limit: int | None) -> list[int]:
    # Version 1 writes "no limit" as the largest whole number of pages.
    return [] if limit is None or not 0 < limit < 1 << 60 else [limit]
