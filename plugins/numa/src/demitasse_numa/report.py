"""Reporting where the pages of a training are, blob by blob, and how many are far from their solver."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse_numa import pages
from demitasse_numa.topology import Domain, Topology

WORKER = re.compile(r"demitasse-worker-(\d+)(?:_\d+)?")


@dataclass(frozen=True)
class Blob:
    """One array of a worker: how many of its pages are in each node (-1: in none yet), and how many are
    in nodes of its solver's domain (``near``)."""

    worker: int
    name: str
    nodes: Mapping[int, int]
    near: int

    @property
    def pages(self) -> int:
        """The number of pages that exist in some node."""
        return sum(count for node, count in self.nodes.items() if node >= 0)

    @property
    def remote(self) -> float:
        """The share of its pages that are in another domain than its solver."""
        return 1 - self.near / self.pages if self.pages else 0.0


@dataclass(frozen=True)
class Placement:
    """The blobs of all workers. ``domains`` has the domain of each worker's thread; ``workers`` has the
    pages of each worker as (near, all), where every page counts once although blobs share memory."""

    domains: Mapping[int, Domain]
    blobs: tuple[Blob, ...]
    workers: Mapping[int, tuple[int, int]]

    @property
    def pages(self) -> int:
        """The number of all pages."""
        return sum(whole for _, whole in self.workers.values())

    @property
    def remote(self) -> float:
        """The share of all pages that are in another domain than their solver."""
        near = sum(near for near, _ in self.workers.values())
        return 1 - near / self.pages if self.pages else 0.0

    def line(self) -> str:
        """Return one line for a run's report."""
        size = pages.PAGE * self.pages / 2**20
        each = ", ".join(
            f"{self.domains[w].index}: {100 * near / max(1, whole):.0f}%"
            for w, (near, whole) in sorted(self.workers.items())
        )
        return (
            f"memory domains: {100 * (1 - self.remote):.1f}% of {self.pages:,} pages ({size:,.0f} MiB) "
            f"lie in the domain of their solver (numa:{each})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "pages": self.pages,
            "remote": self.remote,
            "workers": {
                str(w): {"domain": self.domains[w].index, "near": near, "pages": whole}
                for w, (near, whole) in self.workers.items()
            },
            "blobs": [
                {
                    "worker": blob.worker,
                    "name": blob.name,
                    "nodes": {str(node): count for node, count in sorted(blob.nodes.items())},
                    "remote": blob.remote,
                }
                for blob in self.blobs
            ],
        }


def placement(
    arrays: Iterable[tuple[int, str, Any]],
    machine: Topology,
    domains: Mapping[int, Domain] | None = None,
) -> Placement:
    """Ask the system for the node of each page of the given (worker, name, array). ``domains`` is where
    the workers compute, by default where their threads are now. Raises OSError if the system
    refuses."""
    where = domains if domains is not None else worker_domains(machine)
    nodes: dict[int, dict[int, int]] = {}
    blobs = []
    for worker, name, array in arrays:
        domain = where.get(worker, machine.domains[0])
        mine = {*domain.memory, *domain.fast}
        found = _pages_of(array, nodes.setdefault(worker, {}))
        counts = Counter(found)
        near = sum(count for node, count in counts.items() if node in mine)
        blobs.append(Blob(worker, name, dict(counts), near))
    workers = {}
    for worker, known in nodes.items():
        domain = where.get(worker, machine.domains[0])
        mine = {*domain.memory, *domain.fast}
        there = [node for node in known.values() if node >= 0]
        workers[worker] = sum(node in mine for node in there), len(there)
    used = {w: where.get(w, machine.domains[0]) for w in workers}
    return Placement(used, tuple(blobs), workers)


def _pages_of(array: Any, known: dict[int, int]) -> list[int]:
    """Return the nodes of an array's pages. ``known`` keeps the nodes of all pages asked for so far."""
    if not array.nbytes:
        return []
    first = array.ctypes.data // pages.PAGE * pages.PAGE
    asked = range(first, array.ctypes.data + array.nbytes, pages.PAGE)
    fresh = [page for page in asked if page not in known]
    known.update(zip(fresh, (max(-1, node) for node in pages.where(fresh)), strict=True))
    return [known[page] for page in asked]


def worker_domains(machine: Topology) -> dict[int, Domain]:
    """Return the domain of each worker thread of this process: the one that it is bound to or, if it is
    not bound, the one that it ran in last."""
    found = {}
    for thread in threading.enumerate():
        match = WORKER.fullmatch(thread.name)
        if match and thread.native_id is not None:
            domain = _domain_of(thread.native_id, machine)
            if domain is not None:
                found[int(match[1])] = domain
    return found


def _domain_of(thread: int, machine: Topology) -> Domain | None:
    try:
        allowed = os.sched_getaffinity(thread)
        told = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None  # it ended meanwhile
    bound = [each for each in machine.domains if allowed <= each.cpus]
    if bound:
        return bound[0]
    # The name, in parentheses, may contain spaces. The processor is the 39th field of the whole line.
    fields = told.rpartition(")")[2].split()
    return machine.of_cpu(int(fields[36])) if len(fields) > 36 else None


def process_pages(root: Path = Path("/proc/self")) -> Counter[int]:
    """Return the number of a process's anonymous pages in each node, in units of 4 KiB (from its
    ``numa_maps``)."""
    counts: Counter[int] = Counter()
    for line in (root / "numa_maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if " anon=" not in line:
            continue
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        unit = int(size[1]) // 4 if size else 1
        for node, count in re.findall(r" N(\d+)=(\d+)", line):
            counts[int(node)] += int(count) * unit
    return counts
