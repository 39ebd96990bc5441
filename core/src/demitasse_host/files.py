"""Files that plugins keep: where they are, and how to write them completely or not at all."""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from demitasse_host import leftovers

LONGEST_NAME = 255
"""The longest file name that file systems accept, in bytes."""

MOST_PATTERNS = 2
"""The number of parts of a path that may be patterns."""

SPECIAL_FILE = "is a pipe or a device; a file is needed here: copy it to one"
"""The message about a path for which ``is_special`` is true."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def cache_folder(name: str) -> Path:
    """Return the user's folder for what ``name`` remembers between processes, by the XDG base directory
    specification. Raises RuntimeError if the user has no home directory."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset or relative; the specification says to ignore relative ones
        base = Path.home() / ".cache"
    return base / "demitasse" / name


def is_there(path: str | Path) -> bool:
    """Return whether something exists at a path from a user. False also for a name that no file can
    have, such as one that is too long, for which ``Path.exists`` raises. Raises OSError if the system
    does not tell."""
    return _mode(path) != 0


def is_file(path: str | Path) -> bool:
    """Return whether a path from a user is a file; see ``is_there``."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    """Return whether a path from a user is a folder; see ``is_there``."""
    return stat.S_ISDIR(_mode(path))


def is_special(path: str | Path) -> bool:
    """Return whether a path from a user is a pipe or a device, which could be read or waited for without
    end; see ``is_there``."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def open_plain(path: str | Path) -> tuple[int, os.stat_result]:
    """Open a file for reading and return (file descriptor, its ``os.stat_result``), without waiting for
    the writer of a pipe. Raises OSError, also for a folder, and ValueError for a pipe or a device."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode):
        return file, about
    os.close(file)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise ValueError(f"it {SPECIAL_FILE}")


def matching(path: Path) -> Iterator[Path]:
    """Return an iterator over the paths that match a pattern (with ``*``, ``?`` or ``[]``). Raises
    ValueError if more than ``MOST_PATTERNS`` parts of the path are patterns."""
    if sum(map(glob.has_magic, path.parts)) > MOST_PATTERNS:
        raise ValueError(
            f"at most {MOST_PATTERNS} parts of a path may be patterns, so that reading a net does not "
            f"search whole disks"
        )
    # Not Path.glob, which rejects absolute patterns, and for which ** is a whole tree.
    return map(Path, glob.iglob(str(path)))  # noqa: PTH207


def _mode(path: str | Path) -> int:
    """Return the mode of a path as ``os.stat`` gives it; 0 if nothing exists there."""
    try:
        return Path(path).stat().st_mode
    except ValueError:  # a zero byte, or a character that no file name can have
        return 0
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return 0


def expanded(text: str) -> Path:
    """Return a path with the user's home in place of ``~``; unchanged if there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock against other processes for the duration of the block. ``path`` is the lock's empty
    file, which is created if it does not exist. A ``shared`` lock excludes only locks that are not
    shared.

    Yields True once the lock is held, or if the system or a network folder has no locks; False if
    another process holds it and ``wait`` is false. The lock ends with the block or the process, even if
    forked processes still have the file open. The holder of a lock that is not shared may remove the
    file in the block. Raises OSError if the file cannot be created."""
    try:
        import fcntl
    except ImportError:
        yield True
        return
    process = os.getpid()
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        # In some folders, a shared lock needs the file to be readable, the other to be writable.
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, kind)
                if not _is_still(path, file.fileno()):
                    continue  # a holder removed it after it was opened here, so it excludes nobody
                held = True
            except BlockingIOError:
                held = False
            except OSError:
                held = True
            try:
                yield held
            finally:
                if os.getpid() == process:  # a forked process would release its parent's lock
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_UN)
            return


def _is_still(path: Path, file: int) -> bool:
    """Return whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file beside ``path``, which replaces ``path`` at the end of the block. Its
    permissions follow the user's umask.

    It is removed if the block or the replacement raises; if the process is killed, the next
    ``replacing`` in that folder removes it. If ``path`` is a link, its target is replaced. A device or a
    pipe is not replaced: the block then receives ``path`` itself. Raises OSError."""
    _check_name(path)
    try:
        in_place = not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except FileNotFoundError:
        in_place = False
    if in_place:
        yield path
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    partial = _beside(target)
    made = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.close(made)  # in some network folders, this is where a lack of space shows
        leftovers.clear(partial.parent, partial)
        yield partial
        partial.replace(target)
    except BaseException:
        # Whatever was raised, even an interrupt: nothing else removes the file.
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, in which to prepare its replacement. The folder is removed
    at the end of the block or, if the process is killed, by the next call there. The block may move the
    old content of ``path`` to ``old`` in the folder: it is put back if nothing has taken its place, and
    stays there if the process is killed. Raises OSError."""
    _check_name(path)
    folder = _beside(path)
    folder.mkdir(mode=0o700)
    try:
        leftovers.clear(folder.parent, folder)
        yield folder
    finally:
        if not is_there(path) and (old := folder / leftovers.OLD).exists():
            old.replace(path)
        shutil.rmtree(folder, ignore_errors=True)


def _check_name(path: Path) -> None:
    """Raise OSError for a path that no file can have."""
    if not path.name:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name contains a zero byte", str(path))


def _beside(target: Path) -> Path:
    """Return an unpredictable name, so that nobody can have put a link to another file there."""
    mark = f".{leftovers.own_mark()}-{secrets.token_hex(4)}{leftovers.SUFFIX}"
    shown = os.fsdecode(os.fsencode(target.name)[: LONGEST_NAME - len(mark) - 1])
    return target.with_name(f".{shown}{mark}")


def write_text(path: str | Path, text: str) -> None:
    """Write a text in UTF-8, completely or not at all; create the folder if needed. Characters that
    cannot be encoded, such as odd bytes of a file's name, are written as escapes. Raises OSError that
    names the file."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as partial:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error
