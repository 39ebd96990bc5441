"""Files of nets, solvers and weights that users name, and who reads and writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse import ModelError, is_file, is_folder, is_there, nearest_path

if TYPE_CHECKING:
    from demitasse import Composition


def check_file(path: Path) -> None:
    """Raise ModelError unless it is a file, with the nearest name where there is nothing."""
    if is_folder(path):
        raise ModelError(f"{path} is a folder; a file is needed here: name one in it")
    if is_file(path):
        return
    if is_there(path):
        raise ModelError(f"{path} is a pipe or a device; a file is needed here: copy it to one")
    raise ModelError(f"no such file: {path}{nearest_path(path)}")


def by_suffix(composition: Composition, role: str, path: Path) -> tuple[list[Any], list[Any], str]:
    """The hooks of plugins that declare the path's suffix, those of all, and what is declared."""
    plugins = [plugin for plugin in composition.plugins if role in plugin.roles]
    suffixes = {plugin.name: tuple(plugin.roles[role].get("suffixes", ())) for plugin in plugins}
    serving = list(composition.serving(role))
    named = [hook for name, hook in serving if path.name.endswith(suffixes[name])]
    known = ", ".join(sorted({suffix for each in suffixes.values() for suffix in each}))
    return named, [hook for _, hook in serving], known or "none"
