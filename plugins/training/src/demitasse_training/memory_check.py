"""A check that everything a plan needs fits in memory at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from demitasse import Allocator, Memory, PlanError, PluginError, blamed, closed, whose


def check_room(allocator: Allocator, needed: Mapping[str, int], where: object) -> None:
    """Raise PlanError with the bytes of each part unless memory for all parts is available now. Blocks
    are first used some time after they are allocated, so that allocating them one after the other could
    succeed without enough memory. Therefore this allocates one block for all or, if an allocator has no
    block so large, one for each part. Raises PluginError if the result of an allocator is not such a
    block."""
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
