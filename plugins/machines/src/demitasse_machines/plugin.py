"""Hooks of the machines plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import hookimpl


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Return the command ``machines``."""
    from demitasse_machines.command import machines

    return {"machines": machines}
