"""Creating the server that a description's ``sync`` requests, and what all servers of threads share."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import (
    CompositionError,
    DescriptionError,
    FlatMemory,
    GradientSync,
    Group,
    Team,
    Work,
    check_host_memory,
    sync_place,
)
from demitasse_parameter_server.board import PATIENCE, SINCE, SPENT, Shared, board_of
from demitasse_parameter_server.options import Options
from demitasse_parameter_server.pace import Pace
from demitasse_parameter_server.placement import bind, processors


def server_of(group: Group) -> GradientSync:
    """Return a worker's part of the server of its group. Raises DescriptionError for an unknown option,
    CompositionError for siblings that it cannot serve."""
    where = sync_place(group)
    options = Options.read(group.options, where)
    if group.remote and group.team is None:
        return _across(group, options, where)
    if group.team is None or group.remote:
        raise CompositionError(
            f"{where}: levels {', '.join(group.levels)} have both processes and threads to synchronise; "
            f"give the level of processes its own sync, and that of threads another"
        )
    if len(options.delay) > group.team.size:
        raise DescriptionError(
            f"{where}: sync: delay has {len(options.delay)} numbers, but the level has "
            f"{group.team.size} workers"
        )
    if "servers" in group.options and group.team.size > 1:
        raise DescriptionError(
            f"{where}: sync: servers is the number of processes that hold a shard, but the workers here "
            f"are threads of one process, and each serves a slice; leave servers out"
        )
    if options.model == "bsp":
        from demitasse_parameter_server.bulk import BulkServer

        return BulkServer(group, group.team, options)
    check_alone(group, options.model, where)
    from demitasse_parameter_server.stale import StaleServer

    return StaleServer(group, group.team, options)


def _across(group: Group, options: Options, where: str) -> GradientSync:
    from demitasse_parameter_server.shards import AloneServer, ShardServer

    bulk, size = options.model == "bsp", group.processes.size
    if bulk and options.delay:
        raise CompositionError(
            f'{where}: sync: delay across processes is for model = "ssp" and "asp"; with "bsp" it '
            f"can delay only the threads of one process"
        )
    if not bulk:
        check_alone(group, options.model, where)
    if len(options.delay) > size > 1:
        raise DescriptionError(
            f"{where}: sync: delay has {len(options.delay)} numbers, but the run has {size} processes"
        )
    if size == 1:
        return AloneServer(group, options)
    if options.servers > group.processes.size:
        raise DescriptionError(
            f"{where}: sync: servers = {options.servers}, but the run has {group.processes.size} "
            f"processes; each server is one of them"
        )
    if bulk:
        return ShardServer(group, options, where)
    from demitasse_parameter_server.apart import ApartServer

    return ApartServer(group, options, where)


class ThreadServer(GradientSync):
    """A worker among the siblings of one process: waiting for siblings, and emulated delays."""

    def __init__(self, group: Group, team: Team, options: Options) -> None:
        self.team, self.index, self.size = team, group.index, team.size
        self.options = options
        self.board = board_of(team)
        self.shared: Shared = self.board.shared(team.failures)
        self.pace = Pace(options.delay_of(self.index), self.board.check)
        available = len(processors())
        self.crowded = self.size > available
        # One more than there are processors if the system places them: one of them may be without.
        self.abreast = available + (self.size % available > 0)
        self.spent: Any = np.zeros((2, SPENT), np.int64)  # before updates, and at the end
        self._machine = group.machine
        self._group = group

    def bind(self, memory: FlatMemory) -> None:
        """Raise CompositionError for memory that the host cannot address."""
        if self.size > 1:
            check_host_memory(self._group, memory, "parameter_server")

    def bind_thread(self) -> None:
        """Bind the worker's thread to processors of its own. Called in that thread, before it starts
        others."""
        if self.options.bind:
            bind(self.index, self.size, self._machine)

    def begun(self) -> None:
        """Begin an iteration: look up what siblings share now, and apply a straggler's delay."""
        self.shared = self.board.shared(self.team.failures)
        self.pace.begun()

    def times(self) -> dict[str, float]:
        """Return the seconds that this worker has spent so far on waiting for the slowest sibling to
        come, on leaving gates afterwards, and on summing; ``ending`` is the part of these after its
        updates."""
        waiting, leaving, summing = (self.spent[:, :SINCE].sum(axis=0) * 1e-9).tolist()
        ending = float(self.spent[1, :SINCE].sum()) * 1e-9
        return {"waiting": waiting, "leaving": leaving, "summing": summing, "ending": ending}

    def meeting(self) -> Work:
        """Return work that waits for all siblings. It raises threading.BrokenBarrierError if one has
        failed."""
        from demitasse_parameter_server.loops import SPIN, come, stay

        size, check, pace, spent = self.size, self.board.check, self.pace, self.spent[1]
        spin = 0 if self.crowded else SPIN

        def meet() -> None:
            start, gate = pace.now(), self.shared.gate
            ended = come(gate, size, spin, PATIENCE, spent)
            while ended >= 0:
                check()
                ended = stay(gate, ended, PATIENCE, spent)
            pace.waited(start)

        return meet


def is_outermost(group: Group) -> bool:
    """Return whether the group includes the machine's outermost level, so that no level outside it
    synchronises."""
    return group.machine is None or group.machine.levels[0].name in group.levels


def check_alone(group: Group, model: str, where: str) -> None:
    """Raise CompositionError unless a group whose workers have iterations of their own is the only
    group. Siblings of another level would wait for each other at each iteration."""
    for _, levels in group.machine.sync_groups() if group.machine is not None else ():
        names = tuple(level.name for level in levels)
        several = any(level.count > 1 or level.workers == "mpi" for level in levels)
        if names != group.levels and several:
            raise CompositionError(
                f"{where}: with model = {model!r} each worker is at its own iteration, but level "
                f'{names[-1]!r} keeps all of its siblings at the same one; set model = "bsp" here'
            )


def compiled_for(gradients: Any) -> None:
    """Compile now the loops that steps call, for gradients of this type."""
    from demitasse_parameter_server import loops

    gate, spent = np.zeros(loops.TURNS + loops.LINE, np.int64), np.zeros(SPENT, np.int64)
    nothing = np.zeros(1, np.int64), 0, 0, np.empty(loops.BLOCK, gradients.dtype)
    loops.come_and_add(gate, 1, 0, 0, spent, *nothing)
    loops.wait_and_add(gate, 0, 0, 0, spent, *nothing)
    loops.come(gate, 1, 0, 0, spent)
    loops.stay(gate, 0, 0, spent)
    loops.give_turn(gate, 0)
    loops.take_turn(gate, 0, 0)
