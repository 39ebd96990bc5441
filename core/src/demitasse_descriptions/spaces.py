"""What a memory space is called, where a description names one that nobody allocates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from demitasse import discover, nearest

if TYPE_CHECKING:
    from demitasse import Composition, Machine


def unallocated(machine: Machine, composition: Composition, space: str) -> str:
    """The sentence for a memory space that no composed plugin allocates: where the description names
    it, which spaces the composed plugins declare, and which installed one would have it."""
    spaces = {s for m in composition.plugins for s in m.roles.get("allocator", {}).get("spaces", ())}
    guess = nearest(space, sorted(spaces))
    others = [
        manifest.name
        for manifest in discover()
        if not manifest.problem and space in manifest.roles.get("allocator", {}).get("spaces", ())
    ]
    hint = f"; did you mean {guess!r}?" if guess else ""
    hint = f"; compose {' or '.join(others)} (--plugins +{others[0]})" if others else hint
    nobody = f"no composed plugin allocates memory in space {space!r}"
    return f"{_place(machine, space)}{nobody}{hint} (valid: {', '.join(sorted(spaces)) or 'none'})"


def _place(machine: Machine, space: str) -> str:
    for level in machine.levels:
        for memory in level.memory:
            own = re.escape(memory.at or memory.space).replace(r"\*", r"\d+")
            if space == memory.space or re.fullmatch(own, space):
                at = memory.location or level.location or machine.origin
                return f"{at}: level {level.name!r}: "
    return ""
