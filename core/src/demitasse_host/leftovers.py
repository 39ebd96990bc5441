"""Files that a killed process was writing: which process they belong to, and which may be removed."""

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path

from demitasse_host.kernel_files import KernelFiles

SUFFIX = ".partial"

OLD = "old"
"""A name in a folder whose content may be the only remaining copy; such a folder is not removed."""

_KERNEL = KernelFiles()

ABANDONED = 24 * 3600
"""Seconds without a write after which a file counts as abandoned, if it cannot be known whether its
process lives: it is on another host, in another container, or from before this host was booted."""

_NAME = re.compile(
    r"\..*\.(?P<process>\d+)-(?:(?P<start>\d+)-(?P<where>[0-9a-f]{8})-)?[0-9a-f]{8}\.partial"
)


def own_mark() -> str:
    """Return the part of a file's name that identifies the process that writes it: its process number
    and, if the system tells, when it was started and in which PID namespace."""
    process = os.getpid()
    start, where = _started(process), _among()
    return f"{process}-{start}-{where}" if start and where else str(process)


def clear(folder: Path, new: Path) -> None:
    """Remove from a folder the unfinished files of processes that have ended. ``new`` is a file that was
    just created there; it gives the time by the clock of the folder's file system. Files that cannot be
    examined or removed stay."""
    where = _among()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        now = new.stat().st_mtime
        for entry in entries:
            if entry.name.endswith(SUFFIX) and (match := _NAME.fullmatch(entry.name)):
                known = bool(where) and match["where"] == where
                with contextlib.suppress(OSError):
                    if (
                        not _lives(int(match["process"]), match["start"])
                        if known
                        else now - entry.stat(follow_symlinks=False).st_mtime > ABANDONED
                    ):
                        _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.path)  # noqa: PTH108  of an entry
    elif OLD not in os.listdir(entry.path):  # noqa: PTH208
        shutil.rmtree(entry.path, ignore_errors=True)


def _lives(process: int, start: str) -> bool:
    try:
        os.kill(process, 0)  # also finds processes that the system hides from other users
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(process) in ("", start)


def _started(process: int) -> str:
    """Return when a process was started, in ticks since the system was booted; "0" for a zombie (it has
    ended and is only known to its parent), "" if the system does not tell."""
    fields = _KERNEL.text(f"proc/{process}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    return "0" if fields[0] in "ZX" else fields[19]


def _among() -> str:
    """Return a digest of where process numbers are unique: a host since boot, or a container."""
    boot = _KERNEL.text("proc/sys/kernel/random/boot_id")
    try:
        space = (_KERNEL.root / "proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.blake2b(f"{boot} {space}".encode(), digest_size=4).hexdigest() if boot else ""
