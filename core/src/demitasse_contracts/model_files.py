"""Which plugins read and write a model file: nets, solvers and weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse import looks_like_at

if TYPE_CHECKING:
    from demitasse import Composition


def by_suffix(composition: Composition, role: str, path: Path) -> tuple[list[Any], list[Any], str]:
    """(hooks whose plugins declare the path's suffix, all hooks of the role, the declared suffixes as
    text)."""
    plugins = [plugin for plugin in composition.plugins if role in plugin.roles]
    suffixes = {plugin.name: tuple(plugin.roles[role].get("suffixes", ())) for plugin in plugins}
    serving = list(composition.serving(role))
    named = [hook for name, hook in serving if path.name.endswith(suffixes[name])]
    known = ", ".join(sorted({suffix for each in suffixes.values() for suffix in each}))
    return named, [hook for _, hook in serving], known or "none"


def unread_model(path: Path, known: str) -> str:
    """The error for a model that no composed plugin reads; ``known`` are the suffixes they declare."""
    told = looks_like_at(path)
    nobody = f"{path}: no composed plugin reads such content (suffixes: {known})"
    return f"{nobody}; it {told}" if told else nobody
