"""Files in PyTorch's own formats, which are rejected: reading such a file runs the code in it."""

from __future__ import annotations

import zipfile
from pathlib import Path

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The beginning of files written by torch.save until version 1.6: a pickled number."""


def refused(path: Path) -> str | None:
    """Return the error for a file that torch.save or torch.jit.save wrote, with what to do instead, or
    None for any other file."""
    try:
        if not _is_torch(path):
            return None
    except (OSError, zipfile.BadZipFile):
        return None  # the reader of such files reports what is wrong
    return (
        f"{path}: a PyTorch file is a pickle, and reading one runs the code in it; load it in PyTorch, "
        f"write the net and its weights with torch.onnx.export, and give that .onnx file"
    )


def _is_torch(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(len(LEGACY))
    if head == LEGACY:
        return True
    if not head.startswith(b"PK\x03\x04"):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())
