"""Workers: where each worker of this process computes, and with whom it synchronises."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import demitasse
from demitasse.machine import OWN, Level, Machine, MemorySpace
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
    """Return the workers of this process, which is one of ``processes``: at least one, and one for each
    sibling of the machine's levels of threads and streams. Raises CompositionError if there are several
    workers that no plugin synchronises."""
    demitasse.check_synchronised(machine, processes)
    threads = [level for level in machine.levels if level.workers in OWN]
    working = [i for i, level in enumerate(machine.levels) if level.workers in (*OWN, "mpi")]
    deepest = working[-1] if working else 0
    around = _outwards(machine, machine.levels[deepest])
    near = [*around, *machine.levels[deepest + 1 :]]  # a worker owns the levels below it
    memories = ((level, memory) for level in near for memory in level.memory)
    home, memory = next(memories, (around[0], MemorySpace("host")))
    owners = {level.name for level in _outwards(machine, home)}
    kernels = next((level.kernels for level in machine.levels[deepest:] if level.kernels), None)
    cores = _cores(near, processes.sharing)
    place = Place(around[0].name, memory.space, cores, machine.simulated)
    streams = machine.levels[deepest].workers == "streams"
    positions = list(itertools.product(*(range(level.count) for level in threads)))
    workers = []
    for index, groups in enumerate(_groups(machine, dtype, processes, threads, positions)):
        number = 0  # of the sibling that has the memory, among all in this process
        for i, level in zip(positions[index], threads, strict=True):
            number = number * level.count + i if level.name in owners else number
        at = memory.space if machine.simulated else (memory.at or memory.space).replace("*", str(number))
        workers.append(WorkerPlace(index, place, kernels, groups, at, streams))
    return tuple(workers)


def _outwards(machine: Machine, level: Level) -> list[Level]:
    """Return a level and those around it, innermost first."""
    around = [level]
    while (parent := around[-1].parent) is not None:
        around.append(machine.level(parent))
    return around


def _cores(near: Iterable[Level], sharing: int) -> int:
    """Return a worker's part of the cores that the nearest level states, which ``sharing`` share."""
    for level in near:
        if level.cores:
            return max(1, level.cores // sharing)
        sharing *= level.count if level.workers in OWN else 1
    return 1


def _groups(
    machine: Machine,
    dtype: str,
    processes: Processes,
    threads: Sequence[Level],
    positions: Iterable[tuple[int, ...]],
) -> Iterator[tuple[tuple[str, Group], ...]]:
    """Yield each worker's groups, innermost first, by its position in the levels of ``threads``."""
    teams, joined = dict[tuple[int, ...], Team](), Counter[tuple[int, ...]]()
    for position in positions:
        mine = []
        for number, (sync, levels) in enumerate(machine.sync_groups()):
            size = math.prod(level.count for level in threads if level in levels)
            others = [i for i, level in zip(position, threads, strict=True) if level not in levels]
            siblings = (number, *others)
            remote = any(level.workers == "mpi" for level in levels)
            team = None if remote and size == 1 else teams.setdefault(siblings, Team(size))
            names = tuple(level.name for level in levels)
            about = dtype, sync.options, remote, machine, processes if remote else ALONE
            mine.append((sync.plugin, Group(names, joined[siblings], team, *about)))
            joined[siblings] += 1
        yield tuple(mine)
