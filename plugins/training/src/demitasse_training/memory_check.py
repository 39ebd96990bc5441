"""Whether all that a plan needs fits at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from demitasse import Allocator, Memory, PlanError, PluginError, blamed, closed, whose


def check_room(allocator: Allocator, needed: Mapping[str, int], where: object) -> None:
    """Raise PlanError with the bytes of each part unless memory for all of them is there now. Blocks are
    used some time after they are given, so that one after the other might be given and not be there: it
    is one block, or one for each part where an allocator gives none so large. Raises PluginError for an
    allocator that gives no such block."""
    wanted = max(1, sum(needed.values()))
    largest: int = getattr(allocator, "largest", wanted)
    try:
        with contextlib.ExitStack() as blocks:
            for size in [wanted] if wanted <= largest else filter(None, needed.values()):
                blocks.callback(closed, _block(allocator, size, where))
    except MemoryError as error:
        parts = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in needed.items() if size)
        raise PlanError(f"{where}: the net does not fit ({parts}): {error}") from error


def _block(allocator: Allocator, size: int, where: object) -> Memory:
    with blamed(allocator, "in allocate", where):
        block = allocator.allocate(size)
    lacking = [part for part in ("nbytes", "view", "close") if not hasattr(block, part)]
    if lacking or block.nbytes < size:
        told = f"without {' and '.join(lacking)}" if lacking else f"of {block.nbytes:,} bytes"
        asked = f"{size:,} bytes were asked for"
        raise PluginError(
            f"{where}: {whose(allocator)}: allocate returned {block!r:.99}, {told}; {asked}"
        )
    with blamed(block, "in view", where):
        array = block.view(0, (1,), "uint8")
    lacking = [part for part in ("shape", "dtype", "nbytes") if not hasattr(array, part)]
    if lacking:
        told = f"view returned {array!r:.99}, without {' and '.join(lacking)} (valid: an array)"
        raise PluginError(f"{where}: {whose(block)}: {told}")
    return block
