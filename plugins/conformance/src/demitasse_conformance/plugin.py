"""Hooks of the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from demitasse import hookimpl


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Return the command ``check``."""
    from demitasse_conformance.command import check

    return {"check": check}
