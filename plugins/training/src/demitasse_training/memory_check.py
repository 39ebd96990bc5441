"""Whether all that a plan needs fits at once."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse import Allocator, PlanError


def check_room(allocator: Allocator, needed: Mapping[str, int], where: object) -> None:
    """Raise PlanError with the bytes of each part unless memory for all of them is there now. Blocks are
    used some time after they are given, so that one after the other might be given and not be there."""
    try:
        allocator.allocate(max(1, sum(needed.values()))).close()
    except MemoryError as error:
        parts = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in needed.items() if size)
        raise PlanError(f"{where}: the net does not fit ({parts}): {error}") from error
