"""Files that commands write: checked before the work begins, and JSON that every reader understands."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from demitasse import write_text


def check_writable(paths: Mapping[str, str | Path | None]) -> None:
    """Raise OSError for a file that a command could not write: now, rather than after the work.
    ``paths`` maps options (``--json``) to their files; the error names the option. ``None``, ``-``
    (standard output), pipes and devices are accepted, and so is a missing folder that can be created;
    it is created when the file is written."""
    for option, given in paths.items():
        if given is None or str(given) == "-":
            continue
        path = Path(given)
        if path.is_dir():
            raise IsADirectoryError(f"{option} {given} is a folder; name a file")
        if path.exists() and not path.is_file():
            continue
        folder = Path(os.path.realpath(path) if path.is_symlink() else path).parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(f"{option} {given} cannot be written: {folder} is not a folder")
        try:
            # Permissions alone do not show that a file system is read-only.
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = f"{folder}: {error.strerror or error}"
            raise type(error)(f"{option} {given} cannot be written: {why}") from error


def write_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """Write a value as JSON to a file, whole or not at all; ``-`` is standard output. Numbers that are
    not finite become null, which every JSON reader supports; NumPy's numbers and arrays become numbers
    and lists, and paths text. Raises OSError that names the file."""
    text = json.dumps(_plain(value), indent=indent, allow_nan=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    return str(value)
