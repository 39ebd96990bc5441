"""The command's own sub-commands, offered through the same hook as any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import hookimpl


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """The sub-commands. Their modules import little; the rest is imported when they run."""
    from demitasse_cli import convert, curve, detect, doctor, explain, plugins, test, time, train

    modules = (train, test, time, explain, detect, plugins, doctor, convert, curve)
    return {module.command.name or "": module.command for module in modules}
