"""Findings about limits of this machine that slow down training, each with a remedy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Set
from pathlib import Path

from demitasse import Finding, KernelFiles
from demitasse_system.devices import devices
from demitasse_system.limits import THREADS, limits, threads_asked
from demitasse_system.probe import CPUS, domains, memory, processors

GIB = 2**30
PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def findings(
    root: Path = Path("/"), affinity: Set[int] | None = None, directory: Path | None = None
) -> Iterator[Finding]:
    """Check cores, memory, pages, memory domains, devices and storage; arguments are as for
    ``probed``."""
    files = KernelFiles(root)
    yield from _cores(files, affinity)
    yield from _memory(files)
    yield from _pages(files)
    yield from _domains(files, affinity)
    yield from (Finding("ok", "device", name) for name in devices(files))
    yield from _storage(directory or Path.cwd())


def _cores(files: KernelFiles, affinity: Set[int] | None) -> Iterator[Finding]:
    mine = processors(files, affinity)
    online = len(files.numbers(f"{CPUS}/online")) or len(mine.cpus)
    text = f"{len(mine.cores)} cores with {len(mine.cpus)} hardware threads"
    quota = limits(files).cpus
    if len(mine.cpus) < online:
        remedy = "ask for more CPUs (Slurm: --cpus-per-task; MPI: --bind-to none)"
        yield Finding("note", "cores", f"{text}: bound to {len(mine.cpus)} of {online}", remedy)
    elif len(mine.cores) < 2:
        yield Finding("note", "cores", f"{text}: training runs on one core")
    else:
        yield Finding("ok", "cores", text)
    asked = threads_asked() if files.own else None
    if asked is not None and asked < len(mine.cores):
        message = (
            f"{THREADS} makes nets use {asked} of {len(mine.cores)} cores, unless a description says "
            f"otherwise"
        )
        yield Finding("note", "threads", message, f"unset {THREADS}, or give cores in a description")
    if quota is not None and quota < len(mine.cpus):
        message = f"the control group allows the time of {quota:g} of {len(mine.cpus)} CPUs"
        yield Finding("note", "cpu quota", message, "raise it (docker: --cpus; systemd: CPUQuota)")


def _memory(files: KernelFiles) -> Iterator[Finding]:
    total, allowed = memory(files), limits(files).memory
    if total is None:
        return
    if allowed is not None and allowed < total:
        message = f"the control group allows {allowed / GIB:.3g} of {total / GIB:.3g} GiB"
        remedy = "raise it (docker: --memory; Slurm: --mem) if a batch does not fit"
        yield Finding("note", "memory limit", message, remedy)
    free = files.size("proc/meminfo", "MemAvailable")
    text = f"{total / GIB:.3g} GiB"
    if free is not None and free < GIB // 2:
        message = f"{text}, of which only {free / GIB:.2g} GiB are available"
        yield Finding("problem", "memory", message, "end other programs, or use smaller batches")
    else:
        yield Finding("ok", "memory", text)


def _pages(files: KernelFiles) -> Iterator[Finding]:
    setting = files.text(PAGES)
    if "[never]" in setting:
        message = "transparent huge pages are off, so that large arrays miss the TLB more often"
        yield Finding("note", "huge pages", message, f"as root: echo madvise > /{PAGES}")
    elif "[" in setting:
        chosen = setting[setting.index("[") + 1 : setting.index("]")]
        yield Finding("ok", "huge pages", f"transparent huge pages: {chosen}")


def _domains(files: KernelFiles, affinity: Set[int] | None) -> Iterator[Finding]:
    used, spare = domains(files, processors(files, affinity))
    if len(used) > 1:
        text = f"{len(used)} memory domains have cores of this process"
        yield Finding("ok", "memory domains", text)
    if spare:
        names = ", ".join(f"numa:{domain}" for domain in spare)
        yield Finding("note", "memory domains", f"without cores, memory only: {names}")


def _storage(directory: Path) -> Iterator[Finding]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        remedy = "change to a folder that exists and can be read"
        yield Finding("problem", "storage", f"{directory}: {error.strerror}", remedy)
        return
    text = f"{usage.free / GIB:.3g} of {usage.total / GIB:.3g} GiB free in {directory}"
    if usage.free < min(GIB, usage.total // 50):
        yield Finding("problem", "storage", text, "free some space: snapshots may not fit")
    else:
        yield Finding("ok", "storage", text)
