"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from demitasse import ModelError


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, which afterwards has all of it or what it had before. Raises
    ModelError with the system's reason."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
