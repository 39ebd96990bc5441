"""Files that plugins keep: where, and so that they are there whole or as they were."""

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
    """The user's folder for what ``name`` remembers from one process to the next, as the XDG base
    directory specification has it. Raises RuntimeError where the user has no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset; and the specification has relative ones ignored
        base = Path.home() / ".cache"
    return base / "demitasse" / name


def is_there(path: str | Path) -> bool:
    """Whether there is anything of a name that somebody gave: no for one that no file can have, too, as
    one too long, for which ``Path.exists`` raises. Raises OSError where the system does not tell."""
    return _mode(path) != 0


def is_file(path: str | Path) -> bool:
    """Whether a name that somebody gave is a file's; see ``is_there``."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    """Whether a name that somebody gave is a folder's; see ``is_there``."""
    return stat.S_ISDIR(_mode(path))


def is_special(path: str | Path) -> bool:
    """Whether a name that somebody gave is a pipe's or a device's, which may be read, or waited for,
    without an end; see ``is_there``."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def open_plain(path: str | Path) -> tuple[int, os.stat_result]:
    """The number of a file that is opened to be read, and what the system has of it: without waiting at
    a pipe for who writes to it. Raises OSError for a folder, too, and ValueError for a pipe or a
    device."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode):
        return file, about
    os.close(file)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise ValueError(f"it {SPECIAL_FILE}")


def matching(path: Path) -> Iterator[Path]:
    """The paths that a pattern (with ``*``, ``?`` or ``[]``) names. Raises ValueError where more than
    ``MOST_PATTERNS`` parts of it are patterns."""
    if sum(map(glob.has_magic, path.parts)) > MOST_PATTERNS:
        raise ValueError(
            f"at most {MOST_PATTERNS} parts of a path are patterns: whoever reads a net is not to "
            f"search all disks"
        )
    # Not Path.glob, which refuses absolute patterns, and for which ** is a whole tree.
    return map(Path, glob.iglob(str(path)))  # noqa: PTH207


def _mode(path: str | Path) -> int:
    """What the system has of a path, 0 for nothing."""
    try:
        return Path(path).stat().st_mode
    except ValueError:  # a zero byte, or what no file's name can be written with
        return 0
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return 0


def expanded(text: str) -> Path:
    """A path with the user's home in place of ``~``; as it stands where there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Holds a lock, which ``path`` stands for (an empty file, made where it is not there), against other
    processes, or only against those that hold it alone where it is ``shared``. True once it is held, or
    where the system or a network's folder has no locks; False where others hold it and nobody is to
    ``wait``. It ends with the block, or with the process, whatever processes were forked off meanwhile,
    which have the file open too; who holds it alone may remove the file in the block. Raises OSError
    where there can be no file."""
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
    """Whether an open file is that which has the name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside ``path``, with the rights that the user's umask gives to any, which takes its
    place at the end of the block; it is gone where that or the block raises, and where the process is
    killed, with the next file that is replaced in its folder. Where ``path`` is a link, all this is of
    its target. A device's or a pipe's place a file must not take: there the block gets
    ``path`` itself. Raises OSError."""
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
    """An empty folder beside ``path``, in which what is to take its place can be made; it is gone at the
    end of the block and, where the process is killed, with the next one there. What was at ``path``
    before may be moved to ``old`` in it meanwhile: that is put back where nothing has taken its place,
    and left there where the process is killed. Raises OSError."""
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
    """Raise OSError for what is no file's name."""
    if not path.name:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "there is a zero byte in the name", str(path))


def _beside(target: Path) -> Path:
    """A name that nobody foresees: what is not there cannot be somebody's link to another file."""
    mark = f".{leftovers.own_mark()}-{secrets.token_hex(4)}{leftovers.SUFFIX}"
    shown = os.fsdecode(os.fsencode(target.name)[: LONGEST_NAME - len(mark) - 1])
    return target.with_name(f".{shown}{mark}")


def write_text(path: str | Path, text: str) -> None:
    """A file with this text, in UTF-8, whole or as it was, in a folder that is made. What is no text, as
    the bytes of a file's name may be, is written as an escape. Raises OSError that says which file."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as partial:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error
