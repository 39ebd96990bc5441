"""Where a description asks for a synchronisation, and that its options are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from demitasse import DescriptionError, unknown

if TYPE_CHECKING:
    from demitasse import Group


def sync_place(group: Group) -> str:
    """Where the description asks for a group's synchronisation, for messages: file, line and level."""
    name = group.levels[-1] if group.levels else "?"
    for level in group.machine.levels if group.machine is not None else ():
        if level.name == name and group.machine is not None:
            at = (level.sync.location if level.sync else None) or level.location
            return f"{at or group.machine.origin}: level {name!r}"
    return f"level {name!r}"


def check_sync_options(group: Group, valid: Iterable[str] = ()) -> None:
    """Raise DescriptionError for an option of a group's ``sync`` that is none of ``valid``."""
    known = tuple(valid)
    for key in group.options:
        if key not in known:
            raise DescriptionError(unknown("option", key, known, f"{sync_place(group)}: sync"))
