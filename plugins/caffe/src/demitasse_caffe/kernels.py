"""Kernels for operations on Caffe's files; none for arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from demitasse import PLAIN, Candidate, DataError, Request, Work, is_file, is_there, replacing
from demitasse_caffe.hdf5_file import is_hdf5


def candidates(request: Request) -> Iterable[Candidate]:
    """Return the candidate for write_arrays in host memory: an HDF5 file with the datasets
    ``data`` and ``label``."""
    if request.operation.name != "write_arrays" or request.place.space != "host":
        return ()
    path = Path(request.attributes["path"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        data, label = inputs
        return lambda: write_arrays(path, {"data": data, "label": label})

    return (Candidate("HDF5 file", bind, (PLAIN, PLAIN)),)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays as the datasets of an HDF5 file, atomically. Raise DataError with the
    system's reason, or if the file exists and is of another kind, so that a net from elsewhere
    cannot overwrite it."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"{path}: writing HDF5 needs h5py ({error}); pip install h5py") from error
    try:
        if is_there(path) and not (is_file(path) and (path.stat().st_size == 0 or is_hdf5(path))):
            raise DataError(
                f"{path}: exists and is not an HDF5 file; HDF5Output overwrites HDF5 files only"
            )
        with replacing(path) as temporary, h5py.File(temporary, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
