"""Files read whole, and written so that they are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from demitasse import ModelError, check_plain, replacing


def read_whole(path: Path) -> bytes:
    """What is in a file. Raises ModelError with the system's reason, and for a pointer of Git LFS."""
    check_plain(path, ModelError)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{str(path)!r}: cannot be read: {error}") from error
    if data.startswith(b"version https://git-lfs.github.com/"):
        raise ModelError(
            f"{path}: is a pointer that Git LFS has in the file's place; 'git lfs pull' fetches the file"
        )
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
