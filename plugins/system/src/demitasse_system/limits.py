"""Limits of this process: by its control groups, in version 1 and 2 of their file system, and the number
of threads that its environment requests."""

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
    """Processor time, in CPUs, and bytes of memory; None if there is no limit."""

    cpus: float | None = None
    memory: int | None = None


def limits(files: KernelFiles) -> Limits:
    """Return the tightest limits of this process's groups and of all groups that contain them."""
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
    """Return the number of threads that ``OMP_NUM_THREADS`` (OpenMP 5.2, section 21.1.2) allows this
    process or, if a launcher started several processes on this host, all of them. None if it is not set,
    or if the number of these processes is unknown. Users who run many processes set it, and expect every
    program to respect it."""
    found = os.environ if environment is None else environment
    outermost = found.get(THREADS, "").partition(",")[0].strip()
    if not (outermost.isascii() and outermost.isdigit()):
        return None
    launch = launched(found)
    return int(outermost) * (1 if launch is None else launch.local or 0) or None


def _groups(base: str, path: str) -> list[str]:
    """Return the folders of a group and of those that contain it. A container may see the host's path of
    its group, although its files are at the mount point, which is always among the results."""
    group = PurePosixPath("/", path)
    return [f"{base}{str(part).rstrip('/')}" for part in (group, *group.parents)]


def _quota(text: str) -> list[float]:
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(quota) * int(period) == 0:
        return []
    return [int(quota) / int(period)]


def _bytes(limit: int | None) -> list[int]:
    # Version 1 writes "no limit" as the largest multiple of the page size.
    return [] if limit is None or not 0 < limit < 1 << 60 else [limit]
