"""The levels of a machine, from the files in which its kernel describes it."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from demitasse import KernelFiles, Level, MemorySpace, Quantity, listed_numbers
from demitasse_system.devices import devices
from demitasse_system.limits import limits, threads_asked

CPUS = "sys/devices/system/cpu"
DOMAINS = "sys/devices/system/node"

# The vector and matrix extensions that kernels and BLAS libraries distinguish.
EXTENSIONS = re.compile(
    r"\b(sse4_2|avx\w*|fma|f16c|amx_\w+|neon|asimd\w*|i8mm|bf16|sve2?|sme|altivec|vsx)\b"
)


@dataclass(frozen=True)
class Processors:
    """The CPUs that this process may use; ``cores`` has the CPUs of each physical core."""

    cpus: frozenset[int]
    cores: frozenset[frozenset[int]]

    def within(self, cpus: Set[int]) -> int:
        """Return how many of the cores have at least one CPU in ``cpus``."""
        return sum(1 for core in self.cores if core & cpus)


def probed(
    root: Path = Path("/"), affinity: Set[int] | None = None, directory: Path | None = None
) -> tuple[Level, ...]:
    """Return the levels of the machine whose /proc, /sys and /dev are below ``root``, outermost first.

    There is one node with the cores, memory, caches and devices that this process may use and, if
    several memory domains have cores, a level for these domains below it. ``affinity`` limits the CPUs
    (default: this process's, on its own machine, where ``OMP_NUM_THREADS`` also limits the cores).
    Storage is that of ``directory`` (default: the working directory). Facts that the system does not
    report are left out; nothing is raised.
    """
    files = KernelFiles(root)
    cpus = processors(files, affinity)
    allowed = limits(files)
    cores = max(1, len(cpus.cores))
    if allowed.cpus is not None:
        cores = min(cores, max(1, int(allowed.cpus)))
    if files.own:
        cores = min(cores, threads_asked() or cores)
    total = memory(files)
    if total is not None and allowed.memory is not None:
        total = min(total, allowed.memory)
    used, spare = domains(files, cpus)
    host = MemorySpace("host", _bytes(total))
    node = Level(
        name="node",
        memory=(host, *(MemorySpace(f"numa:{i}", _bytes(size)) for i, size in spare.items())),
        cores=cores,
        threads_per_core=max((len(core) for core in cpus.cores), default=1),
        clock=clock(files, cpus),
        caches=caches(files, cpus),
        features=features(files),
        devices=devices(files),
        storage=storage(files, directory),
    )
    if len(used) < 2:
        return (node,)
    smallest = min((size for size in used.values() if size), default=None)
    each = min(cpus.within(files.numbers(f"{DOMAINS}/node{i}/cpulist")) for i in used)
    return node, Level(
        name="numa",
        parent="node",
        count=len(used),
        memory=(MemorySpace("numa", _bytes(smallest)),),
        cores=max(1, min(each, cores // len(used))),
    )


def processors(files: KernelFiles, affinity: Set[int] | None = None) -> Processors:
    """Return the CPUs that are online and allowed by ``affinity``, and the cores that they form."""
    cpus = files.numbers(f"{CPUS}/online") or frozenset(
        int(number) for number in re.findall(r"(?m)^processor\s*:\s*(\d+)", _cpuinfo(files))
    )
    if not cpus and files.own:
        cpus = frozenset(range(os.cpu_count() or 1))
    if affinity is None and files.own and hasattr(os, "sched_getaffinity"):
        affinity = os.sched_getaffinity(0)
    cpus = cpus & affinity if affinity and cpus & affinity else cpus or frozenset([0])
    cores = set()
    for cpu in cpus:
        folder = f"{CPUS}/cpu{cpu}/topology"
        siblings = files.numbers(f"{folder}/core_cpus_list")
        siblings = siblings or files.numbers(f"{folder}/thread_siblings_list")
        cores.add((siblings & cpus) or frozenset([cpu]))
    return Processors(cpus, frozenset(cores))


def memory(files: KernelFiles) -> int | None:
    """Return the machine's memory in bytes."""
    total = files.size("proc/meminfo", "MemTotal")
    if total is None and files.own and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def domains(files: KernelFiles, cpus: Processors) -> tuple[dict[int, int | None], dict[int, int | None]]:
    """Return the memory domains that are online and allowed, each with its bytes: first those with CPUs
    that this process may use, then those with memory only."""
    online = files.numbers(f"{DOMAINS}/online")
    allowed = re.search(r"Mems_allowed_list:\s*(\S+)", files.text("proc/self/status"))
    if allowed:
        online &= listed_numbers(allowed[1]) or online
    used: dict[int, int | None] = {}
    spare: dict[int, int | None] = {}
    for domain in sorted(online):
        members = files.numbers(f"{DOMAINS}/node{domain}/cpulist")
        size = files.size(f"{DOMAINS}/node{domain}/meminfo", "MemTotal")
        if members & cpus.cpus:
            used[domain] = size
        elif not members and size:
            spare[domain] = size
    return used, spare


def caches(files: KernelFiles, cpus: Processors) -> tuple[MemorySpace, ...]:
    """Return the data caches that these CPUs have or share, with their number, smallest level first."""
    found = set()
    for cpu in cpus.cpus:
        for index in files.names(f"{CPUS}/cpu{cpu}/cache", "index*"):
            level, kind = files.number(f"{index}/level"), files.text(f"{index}/type")
            match = re.fullmatch(r"(\d+)([KMG])", files.text(f"{index}/size"))
            if level is None or match is None or kind == "Instruction":
                continue
            size = int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]]
            sharers = files.numbers(f"{index}/shared_cpu_list") or frozenset([cpu])
            found.add((level, "d" if kind == "Data" else "", size, sharers))
    counts = Counter((level, suffix, size) for level, suffix, size, _ in found)
    return tuple(
        MemorySpace(f"l{level}{suffix}", _bytes(size), count=count)
        for (level, suffix, size), count in sorted(counts.items())
    )


def features(files: KernelFiles) -> tuple[str, ...]:
    """Return the vector and matrix extensions of the processor."""
    lines = re.findall(r"(?m)^(?:flags|Features|cpu)\s*:(.*)$", _cpuinfo(files))
    return tuple(sorted(set(EXTENSIONS.findall(lines[0])))) if lines else ()


def clock(files: KernelFiles, cpus: Processors) -> Quantity | None:
    """Return the highest clock rate that the kernel reports, or else the one it last observed."""
    kilohertz = [files.number(f"{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq") for cpu in cpus.cpus]
    if highest := max((rate for rate in kilohertz if rate), default=0):
        return Quantity(highest * 1e3, "Hz", "measured")
    seen = re.search(r"(?m)^(?:cpu MHz|clock)\s*:\s*([\d.]+)", _cpuinfo(files))
    return Quantity(round(float(seen[1])) * 1e6, "Hz", "measured") if seen else None


def storage(files: KernelFiles, directory: Path | None = None) -> tuple[MemorySpace, ...]:
    """Return the file system of a directory, named by its type."""
    try:
        place = (directory or Path.cwd()).resolve()
        total = shutil.disk_usage(place).total
    except OSError:
        return ()
    return (MemorySpace(filesystem(files, place), _bytes(total)),)


def filesystem(files: KernelFiles, place: Path) -> str:
    """Return the type of the file system that contains a path: ext4, nfs4, lustre, ..."""
    best, kind = -1, "storage"
    for line in files.text("proc/self/mountinfo").splitlines():
        mount, _, described = line.partition(" - ")
        parts = mount.split(" ")
        if len(parts) > 4 and described:
            point = Path(parts[4].replace("\\040", " "))
            if place.is_relative_to(point) and len(point.parts) >= best:
                best, kind = len(point.parts), described.split(" ")[0]
    return kind


def _cpuinfo(files: KernelFiles) -> str:
    return files.text("proc/cpuinfo")


def _bytes(size: int | None) -> Quantity | None:
    """Return measured bytes, with large sizes in whole MiB."""
    if not size:
        return None
    return Quantity(float(size if size < 1 << 30 else size >> 20 << 20), "B", "measured")
