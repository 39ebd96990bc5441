"""Workers: who computes where in this process, and who synchronises with whom."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass

from demitasse.errors import CompositionError
from demitasse.machine import OWN, Machine, MemorySpace
from demitasse.operations.kernel import Place
from demitasse.synchronisation import ALONE, Group, Processes, Team


@dataclass(frozen=True)
class WorkerPlace:
    """One worker of this process: its number, where it computes, the plugin whose kernels its level
    prefers (None: no preference), its groups with the plugin that synchronises each, innermost first,
    the memory space of its tensors, and whether it computes in streams."""

    index: int
    place: Place
    kernels: str | None
    groups: tuple[tuple[str, Group], ...]
    space: str = "host"
    streams: bool = False


def arrange(machine: Machine, dtype: str, processes: Processes = ALONE) -> tuple[WorkerPlace, ...]:
    """The workers of this process, which is one of ``processes``: at least one, and one for each sibling
    of the machine's levels of threads and streams. Raises CompositionError for several workers that no
    plugin synchronises."""
    threads = [level for level in machine.levels if level.workers in OWN]
    groups = machine.sync_groups()
    for level in machine.levels:
        several = level.count if level in threads else processes.size * (level.workers == "mpi")
        if several > 1 and not any(level in levels for _, levels in groups):
            where = f"{level.location or machine.origin}: level {level.name!r}"
            remedy = 'no plugin to synchronise them; add sync = { plugin = "..." }'
            raise CompositionError(f"{where} has {several} workers and {remedy}")
    working = [i for i, level in enumerate(machine.levels) if level.workers in (*OWN, "mpi")]
    deepest = working[-1] if working else 0
    around = [machine.levels[deepest]]
    while around[-1].parent is not None:
        around.append(machine.level(around[-1].parent))
    near = [*around, *machine.levels[deepest + 1 :]]  # what is below a worker is its own
    homes = ((level, memory) for level in near for memory in level.memory)
    home, memory = next(homes, (around[0], MemorySpace("host")))
    owners = {home.name}
    while home.parent is not None:
        home = machine.level(home.parent)
        owners.add(home.name)
    cores, sharing = 1, processes.sharing
    for level in near:
        if level.cores:
            cores = max(1, level.cores // sharing)
            break
        sharing *= level.count if level.workers in OWN else 1
    kernels = next((level.kernels for level in machine.levels[deepest:] if level.kernels), None)
    place = Place(around[0].name, memory.space, cores, machine.simulated)
    teams: dict[tuple[int, ...], Team] = {}
    joined = Counter[tuple[int, ...]]()
    workers = []
    for index, position in enumerate(itertools.product(*(range(level.count) for level in threads))):
        mine = []
        for number, (sync, levels) in enumerate(groups):
            size = math.prod(level.count for level in threads if level in levels)
            others = [i for i, level in zip(position, threads, strict=True) if level not in levels]
            siblings = (number, *others)
            remote = any(level.workers == "mpi" for level in levels)
            team = None if remote and size == 1 else teams.setdefault(siblings, Team(size))
            names = tuple(level.name for level in levels)
            about = dtype, sync.options, remote, machine, processes if remote else ALONE
            group = Group(names, joined[siblings], team, *about)
            joined[siblings] += 1
            mine.append((sync.plugin, group))
        number = 0  # of the sibling that has the memory, among all in this process
        for i, level in zip(position, threads, strict=True):
            number = number * level.count + i if level.name in owners else number
        at = memory.space if machine.simulated else (memory.at or memory.space).replace("*", str(number))
        streams = machine.levels[deepest].workers == "streams"
        workers.append(WorkerPlace(index, place, kernels, tuple(mine), at, streams))
    return tuple(workers)
