"""The snapshot that ``--resume auto`` goes on from: the newest one that can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import Runtime, Solver


def newest_for_all(runtime: Runtime, solver: Solver) -> str | None:
    """The snapshot that all processes go on from: process 0, which wrote it, looks. On a file system
    that hosts share others may not see the newest one yet in its folder, though they can open it."""
    first = runtime.processes.rank == 0
    found: list[str | None] = runtime.processes.gather(newest_good(runtime, solver) if first else None)
    return found[0]


def newest_good(runtime: Runtime, solver: Solver) -> str | None:
    """The newest snapshot that can be read, None when there is none at all; a line for each that is
    damaged. Raises SnapshotError when all are."""
    from demitasse import ModelError, SnapshotError

    found = snapshots(solver)
    for path in found:
        try:
            runtime.read(path).weights()
        except (SnapshotError, ModelError, OSError) as error:
            click.echo(f"demitasse: {' '.join(str(error).split())}; trying an older one", err=True)
        else:
            return path
    if found:
        raise SnapshotError(
            f"no snapshot with the prefix {solver.snapshot_prefix!r} can be read "
            f"({report.counted(len(found), 'file')}); without --resume training starts afresh"
        )
    return None


def snapshots(solver: Solver) -> list[str]:
    """The snapshots with the solver's prefix, that of the highest iteration first; of those of one
    iteration ours, which alone has the place in the data."""
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
