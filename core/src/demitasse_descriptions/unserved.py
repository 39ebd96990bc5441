"""Messages for requests that no composed plugin serves: which plugins would serve them, and which names
are valid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse import discover, is_special, is_there, looks_like_at, nearest, uninstalled, unknown

if TYPE_CHECKING:
    from demitasse import Composition, DataSpec, Machine, Manifest, WorkerPlace


def unallocated(machine: Machine, composition: Composition, space: str) -> str:
    """Return the message for a memory space that no composed plugin allocates: where the description
    names it, which spaces the composed plugins declare, and which installed plugin would serve it."""
    spaces = {s for m in composition.plugins for s in m.roles.get("allocator", {}).get("spaces", ())}
    guess = nearest(space, sorted(spaces))
    if asked := _declaring(composition.plugins, space):
        there = (
            f"memory {space!r} does not exist: plugin {asked[0]!r}, which serves this space, has none"
        )
        return f"{_place(machine, space)}{there}"
    others = _declaring(discover(), space)
    hint = f"; did you mean {guess!r}?" if guess else ""
    hint = f"; compose {' or '.join(others)} (--plugins +{others[0]})" if others else hint
    hint = hint or uninstalled("allocator", space)
    nobody = f"no composed plugin allocates memory in space {space!r}"
    return f"{_place(machine, space)}{nobody}{hint} (valid: {', '.join(sorted(spaces)) or 'none'})"


def _declaring(manifests: Iterable[Manifest], space: str) -> list[str]:
    """Return the names of plugins whose allocator declares a space."""
    return [
        manifest.name
        for manifest in manifests
        if not manifest.problem
        and manifest.roles.get("allocator", {}).get("spaces")
        and manifest.serves("allocator", space=space)
    ]


def _place(machine: Machine, space: str) -> str:
    for level in machine.levels:
        for memory in level.memory:
            own = re.escape(memory.at or memory.space).replace(r"\*", r"\d+")
            if space == memory.space or re.fullmatch(own, space):
                at = memory.location or level.location or machine.origin
                return f"{at}: level {level.name!r}: "
    return ""


def unread(composition: Composition, spec: DataSpec) -> str:
    """Return the message for samples that no composed plugin reads: which plugins were asked, whether
    any reads this kind at all, and which installed ones could be asked."""
    asked = [plugin.name for plugin in composition.plugins if plugin.serves("data_source")]
    where = f"{spec.location}: " if spec.location else ""
    source = repr(spec.source) if isinstance(spec.source, str) else "arrays"  # arrays would fill pages
    nobody = f"no composed plugin reads samples from {source}"
    roles = [plugin.roles.get("data_source", {}) for plugin in composition.plugins]
    kinds = {kind for facts in roles for kind in facts.get("kinds", ())}
    if spec.kind is not None and spec.kind not in kinds:
        nobody += f": {unknown('kind', spec.kind, kinds)}"
    others = [
        manifest
        for manifest in discover()
        if manifest.serves("data_source")
        and manifest.automatic
        and not manifest.problem
        and manifest.name not in asked
    ]
    theirs = [each for each in others if spec.kind in each.roles["data_source"].get("kinds", ())]
    names, more = [each.name for each in theirs or others], ""
    if names:
        more = f"; not composed: {', '.join(names)} (--plugins {','.join(f'+{name}' for name in names)})"
    if not theirs:
        named = str(spec.source).partition(":")[0]
        more += uninstalled("data_source", spec.kind or named) or uninstalled("data_source")
    if spec.kind is None and isinstance(spec.source, str) and is_there(spec.source):
        told = "" if is_special(spec.source) else looks_like_at(Path(spec.source))
        instead = {what: remedy for facts in roles for what, remedy in facts.get("instead", {}).items()}
        remedies = (remedy for what, remedy in instead.items() if what in told)
        more += "".join(f"; {each}" for each in (told and f"it {told}", next(remedies, "")) if each)
    elif isinstance(spec.source, str):
        more += "".join(f"; {each}" for each in _behind(composition, spec.source))
    return f"{where}{nobody} (asked: {', '.join(asked) or 'none'}){more}"


def _behind(composition: Composition, source: str) -> list[str]:
    """Say of each option behind a source's name whose it is; only that it is unknown if one is."""
    theirs = {m.name: m.roles.get("data_source", {}).get("behind", ()) for m in composition.plugins}
    told = []
    for key in re.findall(r"[?&](\w+)=", source):
        if not (owners := [name for name, keys in theirs.items() if key in keys]):
            return [
                unknown("option of a source", key, {each for keys in theirs.values() for each in keys})
            ]
        told.append(f"{key!r} is an option of {' or '.join(owners)}")
    return told


def unstreamed(machine: Machine, composition: Composition, worker: WorkerPlace) -> str:
    """Return the message for a worker if no composed plugin has streams for its accelerator: which
    plugins were asked, or could be."""
    where = _place(machine, worker.space) or f"level {worker.place.level!r}: "
    nobody = f"{where}no composed plugin has streams in {worker.space!r}"
    space = worker.place.space
    asked = [each.name for each in composition.plugins if each.serves("stream_engine", space=space)]
    if asked:
        return f"{nobody} (asked, but has none of that name here: {', '.join(asked)})"
    others = [each for each in composition.plugins if each.serves("stream_engine")]
    theirs = [
        f"{each.name}, whose 'spaces' are {', '.join(each.roles['stream_engine']['spaces'])}"
        for each in others
    ]
    if theirs:
        return f"{nobody}, a memory of space {space!r} (composed, but for others: {'; '.join(theirs)})"
    some = ", ".join(each.name for each in discover() if each.serves("stream_engine"))
    return f"{nobody}; compose one that has them (installed: {some or 'none'})"


def unoffered(program: str, offered: Iterable[str]) -> str:
    """Return the message for a program that no composed plugin offers."""
    plugins = discover()
    able = " or ".join(f"+{each.name}" for each in plugins if each.serves("programs", program=program))
    known = unknown("program", program, offered)
    if not any(each.serves("programs") for each in plugins):
        return f'{known}: no installed plugin offers any; pip install "demitasse[standard]"'
    lacking = uninstalled("programs", program)
    if able or not lacking:
        lacking = f"; compose a plugin that offers it ({able or 'none'}){lacking}"
    return known + lacking
