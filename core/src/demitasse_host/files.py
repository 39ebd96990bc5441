"""Files that plugins keep: where they are, and how to write them whole or leave them as they were."""

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
"""Bytes of a file's name that file systems take."""

MOST_PATTERNS = 2
"""Parts of a path that may be patterns."""

SPECIAL_FILE = "is a pipe or a device; a file is needed here: copy it to one"
"""What is said of a name for which ``is_special`` is true."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def cache_folder(name: str) -> Path:
    """The user's folder for what ``name`` remembers from one process to the next, by the XDG base
    directory specification. Raises RuntimeError if the user has no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset; and the specification has relative ones ignored
        base = Path.home() / ".cache"
    return base / "demitasse" / name


def is_there(path: str | Path) -> bool:
    """Whether something exists at a path that somebody gave. False also for a name that no file can
    have, such as one that is too long, for which ``Path.exists`` raises. Raises OSError if the system
    does not tell."""
    return _mode(path) != 0


def is_file(path: str | Path) -> bool:
    """Whether a path that somebody gave is a file; see ``is_there``."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    """Whether a path that somebody gave is a folder; see ``is_there``."""
    return stat.S_ISDIR(_mode(path))


def is_special(path: str | Path) -> bool:
    """Whether a path that somebody gave is a pipe or a device, which may be read, or waited for, without
    an end; see ``is_there``."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def open_plain(path: str | Path) -> tuple[int, os.stat_result]:
    """(file descriptor, its ``os.stat_result``) of a file opened to be read, without waiting at a pipe
    for a writer. Raises OSError, also for a folder, and ValueError for a pipe or a device."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode):
        return file, about
    os.close(file)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise ValueError(f"it {SPECIAL_FILE}")


def matching(path: Path) -> Iterator[Path]:
    """The paths that match a pattern (with ``*``, ``?`` or ``[]``). Raises ValueError if more than
    ``MOST_PATTERNS`` parts of it are patterns."""
    if sum(map(glob.has_magic, path.parts)) > MOST_PATTERNS:
        raise ValueError(
            f"at most {MOST_PATTERNS} parts of a path may be patterns, so that reading a net does not "
            f"search whole disks"
        )
    # Not Path.glob, which refuses absolute patterns, and for which ** is a whole tree.
    return map(Path, glob.iglob(str(path)))  # noqa: PTH207


def _mode(path: str | Path) -> int:
    """The mode of a path as ``os.stat`` gives it; 0 if nothing exists there."""
    try:
        return Path(path).stat().st_mode
    except ValueError:  # a zero byte, or what no file's name can be written with
        return 0
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return 0


def expanded(text: str) -> Path:
    """A path with the user's home in place of ``~``; unchanged if there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock against other processes for the duration of the block. ``path`` stands for it: an
    empty file, made if it does not exist. A ``shared`` lock excludes only those that are not.

    Gives True once the lock is held, or if the system, or a network's folder, has no locks; False if
    others hold it and ``wait`` is false. The lock ends with the block or the process, even if processes
    were forked meanwhile, which have the file open, too. Whoever holds it unshared may remove the file
    in the block. Raises OSError if the file cannot be made."""
    try:
        import fcntl
    except ImportError:
        yield True
        return
    process = os.getpid()
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        # To be read for a shared lock and written for the other, in some folders.
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, kind)
                if not _is_still(path, file.fileno()):
                    continue  # who held it has removed it since it was opened: it keeps nobody out
                held = True
            except BlockingIOError:
                held = False
            except OSError:
                held = True
            try:
                yield held
            finally:
                if os.getpid() == process:  # a forked one would give back what its parent holds
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_UN)
            return


def _is_still(path: Path, file: int) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give an empty file beside ``path``, which takes the place of ``path`` at the end of the block. It
    has the rights that the user's umask gives.

    It is removed if the block or the replacing raises; if the process is killed, the next ``replacing``
    in that folder removes it. If ``path`` is a link, its target is replaced. A device or a pipe is not
    replaced: then the block is given ``path`` itself. Raises OSError."""
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
        os.close(made)  # which some network folders let fail for want of space
        leftovers.clear(partial.parent, partial)
        yield partial
        partial.replace(target)
    except BaseException:
        # Whatever it was, even an interrupt: nobody else removes it.
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Give an empty folder beside ``path``, in which to make what shall take its place. It is removed at
    the end of the block or, if the process is killed, by the next one there. In the block the old
    content of ``path`` may be moved to ``old`` in the folder: it is put back if nothing has taken its
    place, and stays there if the process is killed. Raises OSError."""
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
    """A name that nobody can foresee, so that nobody can have put a link to another file there."""
    mark = f".{leftovers.own_mark()}-{secrets.token_hex(4)}{leftovers.SUFFIX}"
    shown = os.fsdecode(os.fsencode(target.name)[: LONGEST_NAME - len(mark) - 1])
    return target.with_name(f".{shown}{mark}")


def write_text(path: str | Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all; its folder is made. Characters that cannot be encoded,
    such as odd bytes of a file's name, are written as escapes. Raises OSError that names the file."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as partial:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error
