"""HDF5 files, read defensively: nothing outside the file is opened, nothing is allocated that the file
does not hold, and whatever the library raises for damaged bytes becomes a ModelError."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import ModelError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DAMAGE = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    OverflowError,
    AttributeError,
    TypeError,
    MemoryError,
)
"""The exceptions that h5py raises for damaged files, found by damaging tens of thousands of files."""

_LONGEST_TEXT = 1 << 16


class Hdf5File:
    """An open file, whose errors name its path."""

    def __init__(self, path: Path, root: Any) -> None:
        self.path, self.root = path, root

    def group(self, name: str, parent: Any = None) -> Any:
        """Return the group called ``name`` in ``parent`` (by default the file), or None."""
        import h5py

        found = self._member(self.root if parent is None else parent, name)
        return found if isinstance(found, h5py.Group) else None

    def array(self, parent: Any, name: str, what: str) -> np.ndarray:
        """Return a whole data set of numbers as it is stored: floating point of 8, 4 or 2 bytes in
        this machine's byte order, or integers. Raise ModelError that says ``what`` the data set
        should have been."""
        import h5py

        found = self._member(parent, name)
        if not isinstance(found, h5py.Dataset):
            raise ModelError(f"{self.path}: {what} is missing")
        if found.dtype.kind not in "fiu" or found.dtype.itemsize not in (1, 2, 4, 8):
            raise ModelError(f"{self.path}: {what} holds {found.dtype}, which is not a type of numbers")
        self._check_held(found, what)
        return np.asarray(found[()]).astype(found.dtype.newbyteorder("="))

    def text(self, parent: Any, name: str) -> str:
        """Return a string of fixed length, as Caffe writes it, or "" if it does not exist."""
        import h5py

        found = self._member(parent, name)
        if not isinstance(found, h5py.Dataset):
            return ""
        if found.dtype.kind != "S" or found.size != 1 or found.dtype.itemsize > _LONGEST_TEXT:
            raise ModelError(f"{self.path}: {name} holds {found.dtype}, which is not text")
        self._check_held(found, name)
        value = np.asarray(found[()]).reshape(()).item()
        return bytes(value).decode("utf-8", "surrogateescape")

    def _member(self, parent: Any, name: str) -> Any:
        """Return the member of a group by its name, if it lies in this file; links to other files are
        not followed."""
        import h5py

        link = parent.get(name, getlink=True)
        return parent[name] if isinstance(link, h5py.HardLink) else None

    def _check_held(self, found: Any, what: str) -> None:
        """Raise ModelError for a data set whose bytes are elsewhere or missing."""
        if found.external or found.is_virtual:
            raise ModelError(f"{self.path}: {what} is stored in another file, which is not opened")
        held = found.id.get_storage_size()
        if found.chunks is not None:
            # Chunks may be compressed, so only their presence can be checked.
            chunk = int(np.prod(found.chunks, dtype=object)) * found.dtype.itemsize
            size = self.path.stat().st_size
            held = found.id.get_num_chunks() * chunk if found.nbytes <= 1100 * size else 0
        if held < found.nbytes:
            raise ModelError(
                f"{self.path}: {what} claims the shape {found.shape}, {found.nbytes:,} bytes, but the "
                f"file does not hold all of them"
            )


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5File]:
    """Open a file for reading. Raise ModelError if it is damaged or cannot be read."""
    import h5py

    try:
        with path.open("rb") as raw, h5py.File(raw, "r") as root:
            yield Hdf5File(path, root)
    except ModelError:
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno and error.strerror:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path}: is damaged or cut off, HDF5 says: {reason}") from error


@contextmanager
def made_hdf5(path: Path) -> Iterator[tuple[Any, io.BytesIO]]:
    """Make a new file in memory, whose groups keep the order in which they are made."""
    import h5py

    image = io.BytesIO()
    try:
        with h5py.File(image, "w", track_order=True) as root:
            yield root, image
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path}: the weights do not fit an HDF5 file: {error}") from error


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins like an HDF5 file."""
    try:
        with path.open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
