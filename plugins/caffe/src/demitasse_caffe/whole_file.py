"""Files read whole, and written so that they are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from demitasse import ModelError


def read_whole(path: Path) -> bytes:
    """What is in a file. Raises ModelError with the system's reason."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside ``path``, with the rights that the user's umask gives to any, which takes its
    place at the end of the block; it is gone where that or the block raises."""
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


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
