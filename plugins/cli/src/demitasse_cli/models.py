"""What a MODEL argument names: a solver, or a net."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse import Runtime, Solver


def solver_of(
    runtime: Runtime, path: Path, overrides: Mapping[str, Any] | None = None
) -> Solver | None:
    """The solver in a file, None when the file is a net. Raises ModelError when it is neither, with
    what is wrong with it as the one and as the other."""
    from demitasse import ModelError

    reader = runtime.read(path)
    try:
        return reader.solver(overrides or {})
    except ModelError as as_solver:
        try:
            reader.net("test")
        except ModelError as as_net:
            # A typing error in a solver makes it no less a solver: its name says what was meant.
            if "solver" in path.name:
                raise as_solver from None
            raise as_net from None
        if overrides and "solver" in path.name:
            raise
        return None
