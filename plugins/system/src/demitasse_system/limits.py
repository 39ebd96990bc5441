"""What the control groups of this process allow it, in version 1 and 2 of their file system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from demitasse import KernelFiles

MOUNT = "sys/fs/cgroup"


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
