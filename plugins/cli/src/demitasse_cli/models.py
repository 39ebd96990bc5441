"""What a MODEL argument names: a solver, or a net."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from demitasse import Runtime, Solver


def solver_of(runtime: Runtime, path: Path, overrides: Mapping[str, Any] | None = None) -> Solver | None:
    """The solver in a file, None when the file is not one, so a net if anything.

    Raises ModelError for a file whose name calls it a solver: a mistake in it makes it no net.
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
    """The field of a net's state among the overrides of a model file: a solver says which net's."""
    return "state" if solver_of(runtime, path) is None else f"{prefix}state"


def tell_notes(*records: Any) -> None:
    """Their notes on standard error, so that what is on standard output is the result alone."""
    for note in notes_of(*records):
        click.echo(f"demitasse: {note}", err=True)


def notes_of(*records: Any) -> list[str]:
    """What readers have read over in nets, solvers and weights, each once; a solver's with its nets'."""
    nets = [
        net for each in records for net in (getattr(each, "train", each), *getattr(each, "tests", ()))
    ]
    return list(dict.fromkeys(note for each in (*records, *nets) for note in getattr(each, "notes", ())))
