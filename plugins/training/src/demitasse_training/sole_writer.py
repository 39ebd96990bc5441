"""One training at a time writes snapshots of a name: another's would take their places."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path

from demitasse import SnapshotError, Solver, locked
from demitasse_training.saving import paths_of, prefix_of


class _Claim:
    """A name that ``count`` trainings of this process write to, until ``held`` is closed."""

    def __init__(self) -> None:
        self.count, self.held = 0, contextlib.ExitStack()


_claims: dict[Path, _Claim] = {}
_changing = threading.Lock()


@contextlib.contextmanager
def sole_writer(solver: Solver) -> Iterator[None]:
    """Meanwhile no other process's training may write snapshots with the solver's prefix, if it asks for
    some: a hidden file beside them, which is there for as long, is locked. Raises SnapshotError where
    another does. What several of this process do is left to it. In folders without locks nothing is
    known, nor refused."""
    if not (solver.snapshot_interval or solver.snapshot_last):
        yield
        return
    named = paths_of(solver, 0)[0].with_suffix(".lock")
    path = Path(os.path.realpath(named.parent), f".{named.name}")
    with _changing:
        claim = _claims.get(path) or _Claim()
        if not claim.count:
            _lock(path, prefix_of(solver), claim.held)
            _claims[path] = claim
        claim.count += 1
    try:
        yield
    finally:
        with _changing:
            claim.count -= 1
            if not claim.count:
                del _claims[path]
                claim.held.close()


def _lock(path: Path, prefix: str, held: contextlib.ExitStack) -> None:
    """Lock the file, which has then whose it is in it, until ``held`` is closed; then it is gone."""
    try:
        alone = held.enter_context(locked(path, wait=False))
    except OSError:  # a name too long, a folder that cannot be written: snapshots are tried themselves
        return
    if not alone:
        held.close()
        raise SnapshotError(
            f"snapshots with prefix {prefix!r} are being written by another training{_told(path)}, and "
            f"each would take the other's place: give this one another snapshot_prefix, or wait until "
            f"that has ended"
        )
    held.callback(_remove, path)
    with contextlib.suppress(OSError):
        path.write_text(f"{os.getpid()} {platform.node()}", encoding="utf-8")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _told(path: Path) -> str:
    """Whose it is, as far as that can be read."""
    try:
        process, host = path.read_text(encoding="utf-8", errors="replace")[:99].split()
    except (OSError, ValueError):
        return ""
    return f" (process {process} on {host})"
