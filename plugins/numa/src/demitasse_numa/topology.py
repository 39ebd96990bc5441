"""The memory domains that this process may use: their processors, their memory, and the distances
between them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from demitasse import CompositionError, KernelFiles, listed_numbers

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
GROUPS = "sys/fs/cgroup"

LOCAL, REMOTE = 10, 20
"""The distances of a node to itself and to another one, if the firmware gives none."""

KNIGHTS_LANDING = frozenset({(6, 87), (6, 133)})
"""Families and models of Intel processors whose nodes without processors are MCDRAM. Their firmware has
no table of bandwidths (Knights Landing, Knights Mill)."""


@dataclass(frozen=True)
class Node:
    """A node of the system: its number, bytes of memory (None: unknown), the processors in it that this
    process may use, ``distances`` to other nodes, ``bandwidth`` in MB/s from the nearest processors, if
    the firmware tells it, and the ``kind`` of memory, if hwloc tells it."""

    number: int
    memory: int | None
    cpus: frozenset[int]
    distances: Mapping[int, int]
    bandwidth: int | None = None
    kind: str = ""

    def distance(self, other: int) -> int:
        """Return the distance to another node, in the firmware's unit (10 is local)."""
        return self.distances.get(other, LOCAL if other == self.number else REMOTE)


@dataclass(frozen=True)
class Domain:
    """One memory domain, with its processors and nodes.

    ``index`` is its number here, N of ``numa:N``: domains with processors come first, in the order of
    the system's ``node`` numbers. ``cores`` has the processors of each physical core. ``memory`` has
    the nodes that its memory comes from: its own or, if that has no memory or is not allowed, the
    nearest one that has. ``fast`` has the nodes of high-bandwidth memory that are nearest to it.
    """

    index: int
    node: int
    cpus: frozenset[int]
    cores: frozenset[frozenset[int]]
    memory: tuple[int, ...]
    fast: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"numa:{self.index} (node {self.node} of the system)"


@dataclass(frozen=True)
class Topology:
    """The ``domains`` with processors, the ``others`` (nodes of memory only, as domains that are
    numbered after these), and all ``nodes`` that may be used, by number."""

    domains: tuple[Domain, ...]
    others: tuple[Domain, ...]
    nodes: Mapping[int, Node]
    source: str = "the system's files"

    def domain(self, index: int) -> Domain:
        """Return the domain with this index, which may be one of memory only. If there is none, raises
        CompositionError, which lists the domains."""
        every = (*self.domains, *self.others)
        if not 0 <= index < len(every):
            valid = ", ".join(f"numa:{each.index}" for each in every)
            raise CompositionError(
                f"space 'numa:{index}': this process may use {len(every)} memory "
                f"domain{'s' if len(every) != 1 else ''} (valid: {valid}); a description with more "
                f"belongs to another machine: without a fingerprint it is simulated"
            )
        return every[index]

    def of_cpu(self, cpu: int) -> Domain | None:
        """Return the domain that a processor belongs to, or None."""
        return next((each for each in self.domains if cpu in each.cpus), None)

    def near(self, domain: Domain, nodes: Set[int]) -> list[int]:
        """Return ``nodes`` sorted by distance to a domain, the nearest first."""
        here = self.nodes.get(domain.node)
        return sorted(nodes, key=lambda n: (here.distance(n) if here else REMOTE, n))

    def __str__(self) -> str:
        lines = []
        for each in (*self.domains, *self.others):
            cpus = f"processors {shortened(each.cpus)}" if each.cpus else "no processors"
            sizes = [self.nodes[n].memory for n in each.memory[:1] if n in self.nodes]
            size = f"{sizes[0] / 2**30:.4g} GiB" if sizes and sizes[0] else "memory unknown"
            own = "" if each.memory[:1] == (each.node,) else f" of node {each.memory[0]}"
            fast = (
                f", high-bandwidth memory: node {shortened(frozenset(each.fast))}" if each.fast else ""
            )
            lines.append(f"{each}: {cpus}, {size}{own}{fast}")
        return "\n".join(lines)


def topology(root: Path = Path("/"), affinity: Set[int] | None = None) -> Topology:
    """Return the topology that the files below ``root`` describe, limited to what this process may use.

    ``affinity`` has the processors that the process is bound to (default: those of this process, on its
    own machine). Cpusets of control groups, offline processors and nodes, and nodes without memory or
    without processors are taken into account. A system that tells nothing has one domain with all
    processors. Raises nothing.
    """
    files = KernelFiles(root)
    cpus = processors(files, affinity)
    cores = _cores(files, cpus)
    nodes = _nodes(files, cpus)
    return arranged(nodes, cores, files)


def arranged(
    nodes: Mapping[int, Node],
    cores: frozenset[frozenset[int]],
    files: KernelFiles,
    source: str = "the system's files",
) -> Topology:
    """Arrange nodes into domains: domains with processors, each with the nearest memory that is allowed,
    and domains of memory only."""
    cpus = frozenset(cpu for core in cores for cpu in core)
    allowed = allowed_nodes(files, frozenset(nodes))
    # A node of unknown size is assumed to have memory: this is better than no memory at all.
    with_memory = {n for n in nodes if nodes[n].memory != 0 and n in allowed} or set(nodes)
    working = [node for node in nodes.values() if node.cpus]
    missed = cpus.difference(*(node.cpus for node in working))
    if not working:
        only = Node(0, files.size("proc/meminfo", "MemTotal"), cpus, {})
        return Topology((Domain(0, 0, cpus, cores, (0,)),), (), {0: only}, source)
    if missed:  # processors that, as far as the system tells, belong to no node
        first = working[0]
        working[0] = Node(
            first.number, first.memory, first.cpus | missed, first.distances, first.bandwidth
        )
        nodes = {**nodes, first.number: working[0]}
    spare = sorted(with_memory - {node.number for node in working})
    nearest = {n: min(working, key=lambda w: (w.distance(n), w.number)).number for n in spare}
    quick = {n for n in spare if _fast(nodes[n], nodes[nearest[n]], files)}
    domains = []
    for index, node in enumerate(sorted(working, key=lambda each: each.number)):
        ordinary = (with_memory - quick) or with_memory
        near = sorted(ordinary, key=lambda n, node=node: (node.distance(n), n))  # type: ignore[misc]
        mine = tuple(near[:1]) if near else (node.number,)
        fast = tuple(n for n in spare if n in quick and nearest[n] == node.number)
        own = frozenset(core & node.cpus for core in cores if core & node.cpus)
        domains.append(Domain(index, node.number, node.cpus, own, mine, fast))
    count = len(domains)
    others = (Domain(count + i, n, frozenset(), frozenset(), (n,)) for i, n in enumerate(spare))
    usable = {n: node for n, node in nodes.items() if node.cpus or n in with_memory}
    return Topology(tuple(domains), tuple(others), usable, source)


def processors(files: KernelFiles, affinity: Set[int] | None = None) -> frozenset[int]:
    """Return the processors that are online and that affinity and cpusets allow; at least one."""
    cpus = files.numbers(f"{CPUS}/online") or frozenset(
        int(number) for number in re.findall(r"(?m)^processor\s*:\s*(\d+)", files.text("proc/cpuinfo"))
    )
    if not cpus and files.own:
        cpus = frozenset(range(os.cpu_count() or 1))
    if affinity is None and files.own and hasattr(os, "sched_getaffinity"):
        affinity = os.sched_getaffinity(0)
    status = re.search(r"Cpus_allowed_list:\s*(\S+)", files.text("proc/self/status"))
    listings = [affinity or frozenset()]
    if affinity is None and status:
        listings.append(listed_numbers(status[1]))
    listings += [files.numbers(f"{group}/cpuset.cpus.effective") for group in _groups(files)]
    for listing in listings:
        # A limit that leaves nothing was misread, or belongs to another machine.
        cpus = cpus & listing if cpus & listing else cpus
    return cpus or frozenset([0])


def allowed_nodes(files: KernelFiles, nodes: frozenset[int]) -> frozenset[int]:
    """Return those of the nodes that this process may take memory from."""
    status = re.search(r"Mems_allowed_list:\s*(\S+)", files.text("proc/self/status"))
    listings = [listed_numbers(status[1])] if status else []
    listings += [files.numbers(f"{group}/cpuset.mems.effective") for group in _groups(files)]
    for listing in listings:
        nodes = nodes & listing if nodes & listing else nodes
    return nodes


def _groups(files: KernelFiles) -> Iterator[str]:
    """Yield the folders of this process's control groups with cpusets, of versions 2 and 1. In a
    container the path may be the host's, while the files are at the mount point."""
    for line in files.text("proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        bases = {"": (GROUPS, f"{GROUPS}/unified"), "cpuset": (f"{GROUPS}/cpuset",)}
        for base in bases.get(controllers, ()):
            group = PurePosixPath("/", path)
            yield f"{base}{str(group).rstrip('/')}"


def _cores(files: KernelFiles, cpus: frozenset[int]) -> frozenset[frozenset[int]]:
    cores = set()
    for cpu in cpus:
        folder = f"{CPUS}/cpu{cpu}/topology"
        siblings = files.numbers(f"{folder}/core_cpus_list")
        siblings = siblings or files.numbers(f"{folder}/thread_siblings_list")
        cores.add((siblings & cpus) | {cpu})
    return frozenset(cores)


def _nodes(files: KernelFiles, cpus: frozenset[int]) -> dict[int, Node]:
    suffixes = [name.rpartition("node")[2] for name in files.names(NODES, "node*")]
    there = [int(suffix) for suffix in suffixes if suffix.isdecimal()]
    online = files.numbers(f"{NODES}/online") or frozenset(there)
    numbers = [n for n in sorted(online) if n in there]
    nodes = {}
    for n in numbers:
        folder = f"{NODES}/node{n}"
        values = [int(word) for word in files.text(f"{folder}/distance").split() if word.isdigit()]
        distances = dict(zip(sorted(online), values, strict=False))
        bandwidth = files.number(f"{folder}/access0/initiators/read_bandwidth")
        size = files.size(f"{folder}/meminfo", "MemTotal")
        nodes[n] = Node(n, size, files.numbers(f"{folder}/cpulist") & cpus, distances, bandwidth)
    return nodes


def _fast(node: Node, near: Node, files: KernelFiles) -> bool:
    """Return whether a node without processors is high-bandwidth memory (it may also be slower memory
    on a bus), according to hwloc, the firmware, or the model of the processor."""
    if node.kind:
        return node.kind in ("HBM", "MCDRAM")
    if node.bandwidth and near.bandwidth:
        return node.bandwidth > near.bandwidth
    text = files.text("proc/cpuinfo")
    facts = [re.search(rf"(?m)^{key}\s*:\s*(\d+)", text) for key in ("cpu family", "model")]
    family, model = (int(match[1]) if match else 0 for match in facts)
    return "GenuineIntel" in text and (family, model) in KNIGHTS_LANDING


def shortened(numbers: frozenset[int]) -> str:
    """Return numbers as a list in the kernel's format: 0, 1, 2, 3, 8 is ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs) or "none"
