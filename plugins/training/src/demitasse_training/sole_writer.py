"""A lock that lets one training at a time write snapshots of a name; others would overwrite them."""

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
"""How many seconds to wait for a run on another host, and between two attempts: a network file system
keeps the locks of a host that has died until its lease ends (NFS: 90 s)."""


class _Claim:
    """A name to which ``count`` trainings of this process write; closing ``held`` releases it."""

    def __init__(self) -> None:
        self.count, self.held = 0, contextlib.ExitStack()


_claims: dict[Path, _Claim] = {}
_changing = process_lock()
after_fork(_claims.clear)  # they belong to the parent, which is another process to a forked one


@contextlib.contextmanager
def sole_writer(solver: Solver) -> Iterator[None]:
    """While this is entered, no other process's training may write snapshots with the solver's prefix
    (if it asks for any): a hidden file next to them is locked, and removed afterwards. Raises
    SnapshotError if another process has the lock; one on another host may have died, so this waits for
    it first. Several trainings of this process may share a prefix. In folders without locks nothing is
    known, and nothing is prevented."""
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
    """Return the claim to a lock file, with one more training."""
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
    """Lock the file, and write into it who holds it. Closing ``held`` unlocks and removes it. Returns
    false if another process has locked it."""
    try:
        alone = held.enter_context(locked(path, wait=False))
    except OSError:  # a name too long, a folder not writable: writing the snapshots will show it
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
    """Return the number and the host of the process that holds a lock; empty if unreadable."""
    try:
        process, host = path.read_text(encoding="utf-8", errors="replace")[:99].split()
    except (OSError, ValueError):
        return "", ""
    return process, host
