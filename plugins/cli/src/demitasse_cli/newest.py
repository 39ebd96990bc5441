"""The snapshot from which ``--resume auto`` continues: the one of the highest iteration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import Runtime, Solver


def newest_for_all(runtime: Runtime, solver: Solver) -> str | None:
    """Return the snapshot from which all processes continue. Only process 0, which wrote it, looks: on a
    file system that hosts share, others may not see the newest one in its folder yet, though they can
    open it."""
    first = runtime.processes.rank == 0
    found: list[str | None] = runtime.processes.gather(newest_good(runtime, solver) if first else None)
    return found[0]


def newest_good(runtime: Runtime, solver: Solver) -> str | None:
    """Return the snapshot of the highest iteration that can be read; None if there are none at all.
    Prints a line for each damaged one, and one if a later run of the same prefix seems to have got less
    far. Raises SnapshotError if all are damaged."""
    from demitasse import ModelError, SnapshotError

    found = snapshots(solver)
    for path in found:
        try:
            runtime.read(path).weights()
        except (SnapshotError, ModelError, OSError) as error:
            click.echo(f"demitasse: {' '.join(str(error).split())}; trying an older one", err=True)
        else:
            _tell_of_later(path, found)
            return path
    if found:
        raise SnapshotError(
            f"no snapshot with the prefix {solver.snapshot_prefix!r} can be read "
            f"({report.counted(len(found), 'file')}); without --resume training starts afresh"
        )
    return None


def _tell_of_later(chosen: str, found: Sequence[str]) -> None:
    """Print a line if a snapshot of fewer iterations was written after the chosen one."""
    lower = found[found.index(chosen) + 1 :]
    latest = max([chosen, *lower], key=lambda path: (Path(path).stat().st_mtime, path == chosen))
    if Path(latest).stem != Path(chosen).stem:
        click.echo(
            f"demitasse: continuing from {chosen}, but {Path(latest).name} was written later; "
            f"if you mean that one: --resume {latest}",
            err=True,
        )


def snapshots(solver: Solver) -> list[str]:
    """Return the snapshots with the solver's prefix, highest iteration first. Of those of one iteration,
    ours comes first, because only it has the position in the data."""
    prefix = Path(solver.snapshot_prefix or "snapshot")
    pattern = re.compile(
        re.escape(prefix.name) + r"_iter_(\d+)\.(demitasse|solverstate|solverstate\.h5)"
    )
    folder = prefix.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = [
        (int(match[1]), match[2] == "demitasse", name)
        for name in names
        if (match := pattern.fullmatch(name))
    ]
    return [str(folder / name) for *_, name in sorted(found, reverse=True)]
