"""The files in which numba keeps compiled loops: sealed with a checksum, and forgotten if damaged."""

from __future__ import annotations

import logging
import re
import struct
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("demitasse.host")

_SEAL = b"demitasse"
"""Marks the end of a file's content, where unpickling stops; its length and checksum follow."""

_CURRENT = re.compile(rf"\.py{sys.version_info[0]}{sys.version_info[1]}[a-z]*\.(nbi|\d+\.nbc)$")
"""Matches the names of files that this version of Python reads."""

_told: set[str] = set()
"""Folders for which the warning that nothing can be kept there was given."""


class DamageError(Exception):
    """A file is not as it was written."""


def seal(files: Any) -> None:
    """Make numba write a loop's files with a checksum, and check machine code before it is used. numba
    alone would run whatever a flipped bit has made of it. Files without a checksum are used
    unchecked."""
    kept: Any = getattr(files, "_cache_file", None)
    if not all(hasattr(kept, name) for name in ("_dump", "_load_data", "_data_path")):
        return  # this version of numba has them elsewhere
    dump, load, path_of = kept._dump, kept._load_data, kept._data_path

    def load_whole(name: str) -> Any:
        _check(Path(path_of(name)).read_bytes())
        return load(name)

    kept._dump = lambda content: _sealed(dump(content))
    kept._load_data = load_whole


def forget(files: Any, error: Exception) -> None:
    """Remove the files of a loop that could not be loaded."""
    index = Path(getattr(getattr(files, "_cache_file", None), "_index_path", ""))
    if index.suffix == ".nbi":
        for path in _of_loop(index):
            with suppress(OSError):
                path.unlink()
    else:  # this version of numba uses other names
        files.flush()
    log.warning("a saved compiled loop is damaged and is compiled again: %s (%s)", index, _said(error))


def tell_lost(folder: str, error: OSError) -> None:
    """Warn, once for each folder, that a loop could not be kept in it."""
    if folder not in _told:
        _told.add(folder)
        log.warning("compiled loops cannot be saved in %s: %s", folder, error.strerror or error)


def damaged_loops(folder: str | Path) -> tuple[Path, ...]:
    """Return the files of compiled loops in a folder that are not as they were written."""
    return tuple(path for path in sorted(Path(folder).glob("*.nb[ic]")) if _is_damaged(path))


def _sealed(content: bytes) -> bytes:
    return content + _SEAL + struct.pack(">QI", len(content), zlib.crc32(content))


def _check(data: bytes) -> None:
    """Raise DamageError if a file's content is not as it was written."""
    end = len(data) - len(_SEAL) - struct.calcsize(">QI")
    if data[end : end + len(_SEAL)] == _SEAL:
        length, checksum = struct.unpack(">QI", data[end + len(_SEAL) :])
        if length > end or zlib.crc32(data[end - length : end]) != checksum:
            raise DamageError("its checksum does not match")
    elif not data.endswith(b"."):  # every pickle ends with this
        raise DamageError("it is cut off")


def _of_loop(index: Path) -> Iterable[Path]:
    """Yield the files of a loop, one for each set of types."""
    data = re.compile(re.escape(index.stem) + r"\.\d+\.nbc")
    with suppress(OSError):
        yield from [path for path in index.parent.iterdir() if data.fullmatch(path.name)]
    yield index


def _is_damaged(path: Path) -> bool:
    if not _CURRENT.search(path.name):
        return False
    try:
        _check(path.read_bytes())
    except FileNotFoundError:  # removed meanwhile
        return False
    except (OSError, DamageError):
        return True
    return False


def _said(error: Exception) -> str:
    lines = f"{error}".strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
