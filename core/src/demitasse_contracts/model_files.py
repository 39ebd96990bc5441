"""Which plugins read and write a model file: nets, solvers and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse import ModelError, looks_like_at, uninstalled

if TYPE_CHECKING:
    from demitasse import Composition, Manifest


def readers_of(composition: Composition, path: Path) -> list[Callable[..., Any]]:
    """Return the hooks that may read a file, preferred first: those whose plugins declare its suffix. If
    no plugin declares it, return all hooks; each recognises its own format by the content."""
    hooks = [hook for _, hook in composition.serving("model_reader")]
    return _by_suffix(composition, "model_reader", path) or hooks


def unread_model(composition: Composition, path: Path) -> str:
    """Return the error message for a model that no composed plugin reads."""
    told, known = looks_like_at(path), _suffixes(composition, "model_reader")
    nobody = f"{path}: no composed plugin can read this file (known suffixes: {known})"
    nobody += f"; it {told}" if told else ""
    if _by_suffix(composition, "model_reader", path):
        return nobody
    return nobody + (uninstalled("model_reader", path.name) or uninstalled("model_reader"))


def writer_of(composition: Composition, path: Path) -> Callable[..., Any]:
    """Return the preferred hook that writes files with the path's suffix. Creates the folder if it does
    not exist. Raises ModelError if no plugin writes such files or the folder cannot be created."""
    writers = _by_suffix(composition, "model_writer", path)
    if not writers:
        known = _suffixes(composition, "model_writer")
        lacking = uninstalled("model_writer", path.name)
        raise ModelError(
            f"{path}: no composed plugin writes files with this suffix (known: {known}){lacking}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
    return writers[0]


def _by_suffix(composition: Composition, role: str, path: Path) -> list[Callable[..., Any]]:
    suffixes = {plugin.name: _declared(plugin, role) for plugin in composition.plugins}
    return [hook for name, hook in composition.serving(role) if path.name.endswith(suffixes[name])]


def _suffixes(composition: Composition, role: str) -> str:
    known = {suffix for plugin in composition.plugins for suffix in _declared(plugin, role)}
    return ", ".join(sorted(known)) or "none"


def _declared(plugin: Manifest, role: str) -> tuple[str, ...]:
    return tuple(plugin.roles.get(role, {}).get("suffixes", ()))
