"""Files of PyTorch's own, which are not read: to read one is to run what it says."""

from __future__ import annotations

import zipfile
from pathlib import Path

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save began until version 1.6: a pickled number."""


def refused(path: Path) -> str | None:
    """What to do with a file instead, if torch.save or torch.jit.save wrote it; None for any other."""
    try:
        if not _is_torch(path):
            return None
    except (OSError, zipfile.BadZipFile):
        return None  # whoever reads such files says what is wrong
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
