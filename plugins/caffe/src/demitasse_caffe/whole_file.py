"""Files read whole, and written so that they are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from demitasse import ModelError, check_plain, looks_like, nearest_path, replacing

ENOUGH = 512
"""Bytes of a file's beginning by which another kind of file is told."""


def read_whole(path: Path) -> bytes:
    """What is in a file. Raises ModelError with the system's reason, and for a pointer of Git LFS."""
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
    """Write ``data`` to ``path``, which afterwards has all of it or what it had before. Raises
    ModelError with the system's reason."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
