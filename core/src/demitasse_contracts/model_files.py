"""Files that users name, before a plugin is asked to read them."""

from __future__ import annotations

from pathlib import Path

from demitasse import ModelError, is_file, is_folder, is_there, nearest_path


def check_file(path: Path) -> None:
    """Raise ModelError unless it is a file, with the nearest name where there is nothing."""
    if is_folder(path):
        raise ModelError(f"{path} is a folder; a file is needed here: name one in it")
    if is_file(path):
        return
    if is_there(path):
        raise ModelError(f"{path} is a pipe or a device; a file is needed here: copy it to one")
    raise ModelError(f"no such file: {path}{nearest_path(path)}")
