"""Select the scheme that a description's ``sync`` asks for, and check that it can serve the level."""

from __future__ import annotations

import os

from demitasse import CompositionError, GradientSync, Group, sync_place
from demitasse_cgdp.options import Options


def sync_of(group: Group) -> GradientSync:
    """Return one replica's part of the chosen scheme. Raises DescriptionError for an unknown or invalid
    option, and CompositionError for siblings that have no streams or are in other processes."""
    where = sync_place(group)
    options = Options.read(group.options, where)
    if group.remote or group.team is None:
        raise CompositionError(
            f"{where}: plugin 'cgdp' synchronises the accelerators of one process, but levels "
            f"{', '.join(group.levels)} have siblings in other processes; give the level of processes "
            f'its own sync, like {{ plugin = "allreduce" }}'
        )
    if group.engine is None and _streams(group):
        # Workers that train always have the streams that they ask for, so this is a simulation.
        from demitasse_cgdp.model.prediction import Predicted

        return Predicted(group, options, f"{where}: sync")
    if group.engine is None:
        raise CompositionError(
            f"{where}: plugin 'cgdp' moves gradients in streams, but workers of this level have "
            f'none; set workers = "streams" there, and compose a plugin that has streams (host_streams, '
            f"gpu)"
        )
    if options.scheme == "typical":
        from demitasse_cgdp.typical import TypicalSync

        return TypicalSync(group, group.team, group.engine)
    from demitasse_cgdp.replica import CpuGpuSync

    return CpuGpuSync(group, group.team, group.engine, options)


def host_threads(group: Group, options: Options) -> int:
    """Return the number of host threads that add gradients: the option's, otherwise this process's share
    of the node's processors."""
    if options.threads is not None:
        return options.threads
    some = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, some // group.processes.sharing)


def _streams(group: Group) -> bool:
    """Return whether the description has the group's workers compute in streams."""
    levels = group.machine.levels if group.machine is not None else ()
    return any(level.name in group.levels and level.workers == "streams" for level in levels)
