"""Findings about memory domains for ``demitasse doctor``; with ``--numa``, measurements too."""

from __future__ import annotations

import os
from collections.abc import Iterator

from demitasse import Finding
from demitasse_numa import hwloc, pages
from demitasse_numa.machine import this_machine
from demitasse_numa.topology import Topology

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that make an OpenMP library bind its threads itself, wherever its caller is bound."""

BALANCING = "proc/sys/kernel/numa_balancing"


def findings(measure: bool = False, machine: Topology | None = None) -> Iterator[Finding]:
    """Yield findings about the domains, whether memory can be placed in them, and what would move
    threads or pages away; with ``measure`` also where this process's pages are, and the bandwidth
    between domains."""
    found = machine or this_machine()
    several = len(found.domains) > 1
    note = hwloc.why_not()
    yield Finding("ok", "memory domains", f"{len(found.domains)} with processors, by {found.source}")
    if measure:
        for line in str(found).splitlines():
            yield Finding("ok", "memory domain", line)
        if note:
            yield Finding("note", "hwloc", f"{note}; the system's files are used instead")
    reason = pages.why_not()
    if reason is not None:
        level = "problem" if several else "note"
        yield Finding(
            level, "memory placement", reason, "allow mbind and move_pages (docker: --cap-add SYS_NICE)"
        )
        return
    if several:
        yield from _far_memory(found)
        yield from _moving()
    if measure:
        yield from _measured(found)


def _far_memory(machine: Topology) -> Iterator[Finding]:
    for domain in machine.domains:
        if domain.memory[:1] != (domain.node,):
            yield Finding(
                "note",
                "memory domains",
                f"{domain} has no memory that this process may use, so it uses node "
                f"{domain.memory[0]}'s",
                "let the cpuset use its memory (cpuset.mems; Slurm: --mem-bind=local)",
            )


def _moving() -> Iterator[Finding]:
    """Yield findings about what would move threads or pages to other domains."""
    from demitasse import KernelFiles

    for name in BINDING:
        if name in os.environ:
            message = f"is set to {os.environ[name]!r}: OpenMP places its threads itself, in any domain"
            yield Finding("note", name, message, f"unset {name} for solvers in memory domains")
    if KernelFiles().number(BALANCING):
        message = "the system moves pages and threads between domains by itself, except bound ones"
        yield Finding("ok", "numa balancing", message)


def _measured(machine: Topology) -> Iterator[Finding]:
    from demitasse_numa.bandwidth import matrix
    from demitasse_numa.counters import counters
    from demitasse_numa.report import process_pages

    counts = process_pages()
    whole = sum(counts.values())
    where = ", ".join(f"node {n} {100 * c / whole:.0f}%" for n, c in sorted(counts.items()) if whole)
    yield Finding("ok", "pages", f"{whole:,} anonymous pages of this process: {where}")
    there = counters()
    if there.reason:
        message = f"{there.reason}; bandwidth is measured by a triad instead"
        yield Finding("note", "memory counters", message, there.remedy)
    else:
        yield Finding(
            "ok", "memory counters", f"counters of the memory controllers: {len(there.events)}"
        )
    for (here, other), rate in matrix(machine).items():
        kind = "local" if here == other else "remote"
        message = f"processors of numa:{here}, memory of numa:{other}: {rate / 1e9:.1f} GB/s (measured)"
        yield Finding("ok", f"{kind} triad", message)
