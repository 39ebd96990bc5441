"""Hooks of the system plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from demitasse import Finding, Level, hookimpl


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """The levels of this machine, as its kernel describes them."""
    from demitasse_system.probe import probed

    return probed()


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``measure``: a runtime's machine with bandwidths and peaks measured here."""
    from demitasse_system.measure import measured

    return {"measure": measured}


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Find limits of this machine that slow down training: cores, memory, pages, storage."""
    from demitasse_system.diagnosis import findings

    return findings()
