"""Workers: who computes where in this process, who synchronises with whom, and their threads."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from demitasse.errors import CompositionError
from demitasse.machine import Machine
from demitasse.operations.kernel import Place
from demitasse.synchronisation import Group, Team

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerPlace:
    """One worker of this process: its number here, where it computes, the plugin whose kernels its
    level prefers (None for no preference), and its groups with their plugins, innermost first."""

    index: int
    place: Place
    kernels: str | None
    groups: tuple[tuple[str, Group], ...]


def arrange(machine: Machine, dtype: str) -> tuple[WorkerPlace, ...]:
    """The workers that a machine's levels make in this process, one at least.

    Raises CompositionError for a level with several workers that nobody synchronises.
    """
    threads = [level for level in machine.levels if level.workers == "threads"]
    counts = [level.count for level in threads]
    names = [level.name for level in threads]
    groups = machine.sync_groups()
    synchronised = {level.name for _, levels in groups for level in levels}
    for level in threads:
        if level.count > 1 and level.name not in synchronised:
            raise CompositionError(
                f"{level.location or machine.origin}: level {level.name!r} has {level.count} "
                f'workers and no plugin to synchronise them; add sync = {{ plugin = "..." }}'
            )
    working = [level for level in machine.levels if level.workers in ("threads", "mpi")]
    deepest = machine.levels.index(working[-1]) if working else 0
    outer, inner = machine.levels[: deepest + 1], machine.levels[deepest:]
    spaces = [memory.space for level in reversed(outer) for memory in level.memory]
    cores = next((level.cores for level in reversed(outer) if level.cores), 1)
    kernels = next((level.kernels for level in inner if level.kernels), None)
    place = Place(
        level=outer[-1].name if outer else machine.name,
        space=spaces[0] if spaces else "host",
        threads=max(1, cores // math.prod(counts)),
        simulated=machine.simulated,
    )
    teams: dict[tuple[int, tuple[int, ...]], Team] = {}
    workers = []
    for index, position in enumerate(itertools.product(*map(range, counts))):
        mine = []
        for number, (sync, levels) in enumerate(groups):
            members = [i for i, name in enumerate(names) if name in {level.name for level in levels}]
            others = tuple(p for i, p in enumerate(position) if i not in members)
            size = math.prod(counts[i] for i in members)
            rank = 0
            for i in members:
                rank = rank * counts[i] + position[i]
            remote = any(level.workers == "mpi" for level in levels)
            team = None
            if not remote or size > 1:
                team = teams.setdefault((number, others), Team(size))
            covered = tuple(level.name for level in levels)
            group = Group(covered, rank, team, remote, dtype, sync.options)
            mine.append((sync.plugin, group))
        workers.append(WorkerPlace(index, place, kernels, tuple(mine)))
    return tuple(workers)


class Workers:
    """Threads that run one task each, in step; a single worker runs in the caller's thread."""

    def __init__(self, places: tuple[WorkerPlace, ...]) -> None:
        self._teams = list({id(g.team): g.team for p in places for _, g in p.groups if g.team}.values())
        self._inboxes: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._threads: list[threading.Thread] = []
        for place in places if len(places) > 1 else ():
            inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(inbox,), name=f"demitasse-worker-{place.index}", daemon=True
            )
            thread.start()
            self._inboxes.append(inbox)
            self._threads.append(thread)

    def run(self, task: Callable[[int], T]) -> list[T]:
        """``task(worker)`` on every worker, and their results in order. When one fails its siblings
        are woken from their barriers, and its error is raised once all have stopped."""
        if not self._inboxes:
            return [task(0)]
        count = len(self._inboxes)
        results: list[T | None] = [None] * count
        errors: list[BaseException] = []
        done = threading.Semaphore(0)

        def call(worker: int) -> None:
            try:
                results[worker] = task(worker)
            except BaseException as error:  # noqa: BLE001  raised again below, in the caller
                errors.append(error)
                for team in self._teams:
                    team.barrier.abort()
            finally:
                done.release()

        for worker, inbox in enumerate(self._inboxes):
            inbox.put(lambda worker=worker: call(worker))  # type: ignore[misc]
        for _ in range(count):
            done.acquire()
        if errors:
            for team in self._teams:
                team.barrier.reset()
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return results  # type: ignore[return-value]

    def close(self) -> None:
        """End the threads."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes, self._threads = [], []


def _serve(inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := inbox.get()) is not None:
        task()
