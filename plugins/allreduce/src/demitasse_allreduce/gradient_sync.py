"""Creating the synchronisation of workers in several processes: its stage, node and network, as the
options say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import CompositionError, GradientSync, Group, Machine, Processes, WorkerError, sync_place
from demitasse_allreduce.algorithms import given
from demitasse_allreduce.hierarchy import homes as _homes
from demitasse_allreduce.stages.options import OVERLAP, PACKED, ROOTED, SC_B, STAGES, Options

if TYPE_CHECKING:
    from demitasse_allreduce.node import Node


class AloneSync(GradientSync):
    """The synchronisation of a single process: it does nothing. Its notes state what the processes of a
    description would do. In a simulation, ``described`` represents the first of them."""

    def __init__(self, group: Group, options: Options) -> None:
        self._group, self._options = group, options

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        from demitasse_allreduce.stages.forecast import foretold

        item = np.dtype(self._group.dtype).itemsize
        others = foretold(self._group.machine, self._options, item)
        return ["one process: nothing is synchronised here", *others]

    def described(self) -> GradientSync:
        """Return a synchronisation that states what the first of several processes would send, and when.
        Raises CompositionError for what a stage cannot do."""
        from demitasse_allreduce.stages.foreseen import ForeseenSync

        inner = _inner(self._group.machine, self._group.levels)
        if self._options.stage in ROOTED:
            _check_inner(str(self._options.stage), inner, sync_place(self._group))
        return ForeseenSync(self._group, self._options, bool(inner))


def gradient_sync(group: Group) -> GradientSync:
    """Return the synchronisation that the options of a group's ``sync`` request. The call is collective:
    all processes make it, in the same order. Raises CompositionError for unknown options, for siblings
    that are threads, and for what a stage cannot do."""
    where = sync_place(group)
    options = Options.read(group.options, where, given(group.collectives))
    _check_team(group, where)
    processes = group.processes
    if processes.size == 1:
        return AloneSync(group, options)
    inner = _inner(group.machine, group.levels)
    if options.stage in ROOTED:
        return _rooted(group, options, inner, where)
    return _everyone(group, options, bool(inner), where)


def _rooted(group: Group, options: Options, inner: list[str], where: str) -> GradientSync:
    from demitasse_allreduce.stages.network import Network
    from demitasse_allreduce.stages.rooted import RootedSync

    assert options.stage is not None
    _check_inner(options.stage, inner, where)
    comm = _line(group.processes, where)
    homes, item = _homes(comm), np.dtype(group.dtype).itemsize
    beside = options.stage != SC_B
    network = Network(
        comm, options, group.machine, group.processes.check, homes, item, group.engine, beside
    )
    network.notes.insert(0, f"stage {options.stage}: {STAGES[options.stage]}")
    return RootedSync(group, options, options.stage, network)


def _check_inner(stage: str, inner: list[str], where: str) -> None:
    if inner:
        raise CompositionError(
            f"{where}: in stage {stage!r} other ranks have new parameters only when the next "
            f"iteration begins, too late for level {inner[0]!r} inside it, which synchronises too; use "
            f"one of the stages {', '.join(name for name in STAGES if name not in ROOTED)}"
        )


def _everyone(group: Group, options: Options, at_once: bool, where: str) -> GradientSync:
    from demitasse_allreduce.stages.everyone import EveryoneSync
    from demitasse_allreduce.stages.network import Network

    comm, machine, check = _line(group.processes, where), group.machine, group.processes.check
    homes, item = _homes(comm), np.dtype(group.dtype).itemsize
    counts = {home: homes.count(home) for home in homes}
    node, network, leaders, apart = None, None, False, ""
    between, ours = comm, comm.Get_rank()
    # Gradients that are computed in streams may lie in memory that a node's ranks cannot share.
    if options.shared and max(counts.values()) > 1 and group.engine is None:
        node, apart = _sharing(comm)
    if node is not None:
        leaders = options.between == "leaders" or len(set(counts.values())) > 1
        # Ranks that lead no node are in a communicator of their own, and send nothing.
        between = comm.Split(min(node.rank, 1) if leaders else node.rank, ours)
    idle = leaders and node is not None and node.rank > 0
    stage = options.stage or (PACKED if len(counts) == 1 and node is not None else OVERLAP)
    if between.Get_size() > 1 and not idle:
        among = homes if node is None else list(range(between.Get_size()))
        beside = stage == OVERLAP and not at_once
        network = Network(between, options, machine, check, among, item, group.engine, beside)
    notes = [f"stage {stage}: {STAGES[stage]}"]
    if at_once:
        notes.append("levels inside synchronise too: each bucket is summed when it is final")
    if node is not None:
        nodes = f"; {len(counts)} nodes by {'leaders' if leaders else 'slices'}" * (len(counts) > 1)
        near = counts[homes[ours]]
        notes.append(f"{near} ranks of this node add slices in shared memory, without a message{nodes}")
    if apart:
        notes.append(f"ranks of a node cannot share memory, so they send messages: {apart}")
    made = EveryoneSync(group, options, stage, at_once, node, network, leaders)
    made.told[:0] = notes
    return made


def _sharing(comm: Any) -> tuple[Node | None, str]:
    """Return the ranks of this node, which share memory, and "". If any rank cannot share memory,
    returns None on all ranks of ``comm``, and the first reason. Sharing needs Linux, and a container
    may hide the processes of siblings."""
    from demitasse_allreduce.stages.near import this_node

    node, problem = None, ""
    try:
        node = this_node()
    except WorkerError as error:
        problem = str(error)
    problems = [*filter(None, comm.allgather(problem))]
    return (None, problems[0]) if problems else (node, "")


def _line(processes: Processes, where: str) -> Any:
    """Return a communicator of all processes for the use of one synchronisation only."""
    from demitasse_allreduce.processes import MpiProcesses

    if not isinstance(processes, MpiProcesses):
        raise CompositionError(
            f"{where}: plugin 'allreduce' synchronises processes that MPI connects, not those of "
            f"{type(processes).__name__}"
        )
    processes.meet()
    return processes.communicator.Dup()


def _check_team(group: Group, where: str) -> None:
    if group.team is not None and group.remote:
        raise CompositionError(
            f"{where}: plugin 'allreduce' synchronises processes, but levels {', '.join(group.levels)} "
            f"include threads; give the level of processes its own sync, and that of threads another "
            f'one, like sync = {{ plugin = "reference" }}'
        )
    if group.team is not None and group.team.size > 1:
        raise CompositionError(
            f"{where}: plugin 'allreduce' synchronises processes, but the {group.team.size} siblings "
            f"here "
            f"are threads of one; name a plugin that synchronises threads, like 'reference', or set "
            f'workers = "mpi"'
        )
    machine = group.machine
    several = [
        levels[-1].name
        for _, levels in (machine.sync_groups() if machine is not None else ())
        if any(level.workers == "mpi" for level in levels)
    ]
    if len(several) > 1:
        raise CompositionError(
            f"{where}: levels {' and '.join(several)} both synchronise processes; keep only the sync of "
            f"the innermost, which then covers all of them"
        )


def _inner(machine: Machine | None, names: tuple[str, ...]) -> list[str]:
    """Return the names of the levels inside the named ones that synchronise several siblings."""
    found = []
    for _, levels in machine.sync_groups() if machine is not None else ():
        if levels and levels[-1].name in names:
            break
        if math.prod(level.count for level in levels if level.workers in ("threads", "streams")) > 1:
            found.append(levels[-1].name)
    return found
