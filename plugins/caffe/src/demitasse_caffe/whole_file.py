"""Reading whole files, and writing files atomically."""

from __future__ import annotations

import os
from pathlib import Path

from demitasse import ModelError, check_plain, looks_like, nearest_path, replacing

ENOUGH = 512
"""The number of bytes at a file's beginning that identify another kind of file."""


def read_whole(path: Path) -> bytes:
    """Return the content of a file. Raise ModelError with the system's reason, and for
    a Git LFS pointer."""
    check_plain(path, ModelError)
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = nearest_path(path) if isinstance(error, FileNotFoundError) else ""
        raise ModelError(f"{path}: cannot be read: {error.strerror}{hint}") from error
    except ValueError as error:
        raise ModelError(f"{str(path)!r}: cannot be read: {error}") from error
    if data.startswith(b"version https://git-lfs.github.com/"):
        raise ModelError(f"{path}: {looks_like(data[:ENOUGH])}")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: afterwards it holds either all of the data or what it held
    before. Creates the folder. Raise ModelError with the system's reason."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
