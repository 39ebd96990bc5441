"""Where a description asks for a synchronisation, and checks of its options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from demitasse import CompositionError, DescriptionError, unknown

if TYPE_CHECKING:
    from demitasse import FlatMemory, Group


def sync_place(group: Group) -> str:
    """Return where the description asks for a group's synchronisation: file, line and level."""
    name = group.levels[-1] if group.levels else "?"
    for level in group.machine.levels if group.machine is not None else ():
        if level.name == name and group.machine is not None:
            at = (level.sync.location if level.sync else None) or level.location
            return f"{at or group.machine.origin}: level {name!r}"
    return f"level {name!r}"


def check_sync_options(group: Group, valid: Iterable[str] = ()) -> None:
    """Raise DescriptionError if an option of a group's ``sync`` is not in ``valid``."""
    known = tuple(valid)
    for key in group.options:
        if key not in known:
            raise DescriptionError(unknown("option", key, known, f"{sync_place(group)}: sync"))


def check_host_memory(group: Group, memory: FlatMemory, plugin: str) -> None:
    """Raise CompositionError if a host cannot address the flat memory, which ``plugin`` reads and writes
    as host memory."""
    import numpy as np

    if not isinstance(memory.gradients, np.ndarray):
        there = repr(group.engine.place) if group.engine is not None else "a device"
        other = "allreduce" if group.remote else "cgdp"
        raise CompositionError(
            f"{sync_place(group)}: plugin {plugin!r} sums gradients in host memory, but these are in "
            f"{there}; name a plugin that takes them from there, like {other!r}"
        )
