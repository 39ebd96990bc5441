"""One training at a time writes snapshots of a name: another's would take their places."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from demitasse import SnapshotError, Solver, after_fork, locked, process_lock
from demitasse_training.saving import paths_of, prefix_of

log = logging.getLogger("demitasse.training")

PATIENCE, PAUSE = 120.0, 1.0
"""Seconds for which one on another host is waited for, and between two looks: a network's folder keeps
the locks of a host that has died until its lease ends (NFS: 90 s)."""


class _Claim:
    """A name that ``count`` trainings of this process write to, until ``held`` is closed."""

    def __init__(self) -> None:
        self.count, self.held = 0, contextlib.ExitStack()


_claims: dict[Path, _Claim] = {}
_changing = process_lock()
after_fork(_claims.clear)  # they are the parent's, and another process's to who was forked


@contextlib.contextmanager
def sole_writer(solver: Solver) -> Iterator[None]:
    """Meanwhile no other process's training may write snapshots with the solver's prefix, if it asks for
    some: a hidden file beside them, which is there for as long, is locked. Raises SnapshotError where
    another does; one on another host may have died, and is waited for first. What several of this
    process do is left to it. In folders without locks nothing is known, nor refused."""
    if not (solver.snapshot_interval or solver.snapshot_last):
        yield
        return
    named = paths_of(solver, 0)[0].with_suffix(".lock")
    path = Path(os.path.realpath(named.parent), f".{named.name}")
    claim = _claimed(path, prefix_of(solver))
    try:
        yield
    finally:
        with _changing:
            claim.count -= 1
            if not claim.count:
                del _claims[path]
                claim.held.close()


def _claimed(path: Path, prefix: str) -> _Claim:
    """The claim to a lock's file, with one training more."""
    start, waits = time.monotonic(), False
    while True:
        with _changing:
            claim = _claims.get(path) or _Claim()
            if claim.count or _is_locked(path, claim.held):
                claim.count += 1
                _claims[path] = claim
                return claim
        process, host = _whose(path)
        who = f" (process {process} on {host})" if host else ""
        if host in ("", platform.node()) or time.monotonic() - start >= PATIENCE:
            raise SnapshotError(
                f"snapshots with prefix {prefix!r} are being written by another run{who}, and each "
                f"would overwrite the other's: give this one another snapshot_prefix, or wait until "
                f"that one has ended"
            )
        if not waits:
            told = "snapshots with prefix %r belong to another run%s: waiting %.0f s for it to end"
            log.warning(told, prefix, who, PATIENCE)
        waits = True
        time.sleep(PAUSE)


def _is_locked(path: Path, held: contextlib.ExitStack) -> bool:
    """Lock the file, which has then whose it is in it, until ``held`` is closed; then it is gone. False
    where another process has."""
    try:
        alone = held.enter_context(locked(path, wait=False))
    except OSError:  # a name too long, a folder that cannot be written: snapshots are tried themselves
        return True
    if not alone:
        held.close()
        return False
    held.callback(_remove, path)
    with contextlib.suppress(OSError):
        path.write_text(f"{os.getpid()} {platform.node()}", encoding="utf-8")
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _whose(path: Path) -> tuple[str, str]:
    """Whose it is, the number of a process and its host, as far as that can be read."""
    try:
        process, host = path.read_text(encoding="utf-8", errors="replace")[:99].split()
    except (OSError, ValueError):
        return "", ""
    return process, host
