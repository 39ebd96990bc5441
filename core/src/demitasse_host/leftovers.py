"""Files that a killed process was writing: whose they are, and which may be removed."""

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path

from demitasse_host.kernel_files import KernelFiles

SUFFIX = ".partial"

OLD = "old"
"""What in a folder may be all that is left of something, and is not removed."""

_KERNEL = KernelFiles()

ABANDONED = 24 * 3600
"""Seconds without a byte after which a file is nobody's, where it cannot be known whether its process
lives: that is on another host, in another container, or was there before this host was started."""

_NAME = re.compile(
    r"\..*\.(?P<process>\d+)-(?:(?P<start>\d+)-(?P<where>[0-9a-f]{8})-)?[0-9a-f]{8}\.partial"
)


def own_mark() -> str:
    """The part of a file's name that identifies the process that writes it: its number and, if the
    system tells, when it was started and in which space of process numbers."""
    process = os.getpid()
    start, where = _started(process), _among()
    return f"{process}-{start}-{where}" if start and where else str(process)


def clear(folder: Path, new: Path) -> None:
    """Remove from a folder what processes left there that ended while they wrote it. ``new`` is a file
    that was just made there: it tells the time by the clock of the folder's file system. What cannot be
    looked at or removed stays."""
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
        os.kill(process, 0)  # which tells of those too that the system hides from other users
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(process) in ("", start)


def _started(process: int) -> str:
    """When a process was started, in ticks since the system was. 0 for one that has ended and is only
    known to its parent, "" if the system does not tell."""
    fields = _KERNEL.text(f"proc/{process}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    return "0" if fields[0] in "ZX" else fields[19]


def _among() -> str:
    """The space in which process numbers are unique: a host since it was started, or a container."""
    boot = _KERNEL.text("proc/sys/kernel/random/boot_id")
    try:
        space = (_KERNEL.root / "proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.blake2b(f"{boot} {space}".encode(), digest_size=4).hexdigest() if boot else ""
