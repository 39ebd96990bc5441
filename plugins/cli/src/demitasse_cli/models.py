"""The file that a MODEL argument names: a solver or a net."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from demitasse import Runtime, Solver


def solver_of(runtime: Runtime, path: Path, overrides: Mapping[str, Any] | None = None) -> Solver | None:
    """Return the solver in a file; None if the file is not a solver, and may be a net.

    Raises ModelError if the file's name says that it is a solver: a mistake in it does not make it a
    net.
    """
    from demitasse import ModelError

    reader = runtime.read(path)
    try:
        reader.solver({})
    except ModelError:
        if "solver" in path.name:
            raise
        return None
    return reader.solver(overrides or {})


def state_of(runtime: Runtime, path: Path, prefix: str) -> str:
    """Return the override field for a net's state in a model file; in a solver, it says which net's."""
    return "state" if solver_of(runtime, path) is None else f"{prefix}state"


def tell_notes(*records: Any) -> None:
    """Print the records' notes on standard error, so that standard output has only the result."""
    for note in notes_of(*records):
        click.echo(f"demitasse: {note}", err=True)


def notes_of(*records: Any) -> list[str]:
    """Return, once each, the notes of readers on what they ignored in nets, solvers (with nets) and
    weights."""
    nets = [
        net for each in records for net in (getattr(each, "train", each), *getattr(each, "tests", ()))
    ]
    return list(dict.fromkeys(note for each in (*records, *nets) for note in getattr(each, "notes", ())))
