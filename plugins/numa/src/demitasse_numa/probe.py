"""The level of memory domains for ``--hw auto``: a solver in each, synchronised by this plugin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from demitasse import Level, MemorySpace, Quantity, SyncSpec
from demitasse_numa.topology import Topology


def refined(levels: Iterable[Level], machine: Topology) -> tuple[Level, ...]:
    """Return the levels that other probes found, with a worker thread in each of several memory domains.
    Returns no levels on a machine with one domain, or if no level was found before.

    Every domain is described with the cores and the memory of the smallest one. What the process may not
    use does not count."""
    given = tuple(levels)
    count = len(machine.domains)
    if not given or count < 2:
        return ()
    outer = given[0]
    sizes = [
        size
        for each in machine.domains
        if (size := machine.nodes[each.memory[0]].memory if each.memory[0] in machine.nodes else None)
    ]
    fast = [
        size
        for each in machine.domains
        for node in each.fast[:1]
        if (size := machine.nodes[node].memory if node in machine.nodes else None)
    ]
    memory = [MemorySpace("host", _bytes(min(sizes, default=None)), at="numa:*")]
    if len(fast) == count:
        memory.append(MemorySpace("hbm", _bytes(min(fast))))
    cores = min(len(each.cores) for each in machine.domains)
    if outer.cores:  # a quota of processor time may leave fewer
        cores = max(1, min(cores, outer.cores // count))
    found = next((each for each in given if each.name == "numa"), None)
    level = Level(
        name="numa",
        parent=outer.name,
        count=count,
        workers="threads",
        cores=cores,
        memory=tuple(memory),
        sync=SyncSpec("numa"),
    )
    if found is not None:
        level = replace(found, count=count, workers="threads", cores=cores, memory=tuple(memory),
                        sync=SyncSpec("numa"))  # fmt: skip
    return (*(each for each in given if each.name != "numa"), level)


def _bytes(size: int | None) -> Quantity | None:
    # Large sizes are rounded down to whole MiB, as people know them.
    return (
        Quantity(float(size >> 20 << 20 if size >= 1 << 30 else size), "B", "measured") if size else None
    )
