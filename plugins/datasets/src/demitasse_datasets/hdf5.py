"""Samples from HDF5 files, or a text that lists files: each dataset is a field, its rows are samples."""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from demitasse import (
    DataError,
    Field,
    is_file,
    is_special,
    looks_like_at,
    nearest_path,
    shortened,
    unknown,
)
from demitasse_datasets.files import physical_memory
from demitasse_datasets.image_list import beside, lines, log
from demitasse_datasets.samples import naming

SIGNATURE = b"\x89HDF\r\n\x1a\n"
STARTS = (0, 512, 1024, 2048)
"""Where the signature may be: after a user block, as in MATLAB's files of version 7.3."""
KEPT = 1 << 30
"""How many bytes of arrays (1 GiB) stay in memory; those of the last two files always do."""
MOST_LINKS = 16
"""How many links to a dataset are followed: as many as HDF5 follows."""
ALWAYS = 1 << 26
LARGEST_RATIO = 2000
"""How much larger than its file a dataset of more than ``ALWAYS`` bytes (64 MiB) may be. Deflate expands
one byte to at most 1,032, and data that was never written takes no space."""


@functools.cache
def h5py() -> Any:
    """Return the module h5py. Raises DataError that says how to install it."""
    try:
        import h5py as module
    except ImportError as error:
        raise DataError(f"HDF5 files need h5py ({error}); pip install h5py") from error
    return module


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do."""
    try:
        if is_special(path):
            return False
        with path.open("rb") as file:
            start = file.read(max(STARTS) + len(SIGNATURE))
            return any(start.startswith(SIGNATURE, at) for at in STARTS)
    except (OSError, ValueError):  # ValueError: the name contains a zero byte
        return False


def listed_files(path: Path) -> list[Path]:
    """Return the HDF5 files that a text lists, one per line; for an HDF5 file, itself. Raises
    DataError."""
    if is_hdf5(path):
        return [path]
    if path.suffix in (".h5", ".hdf5"):
        raise DataError(f"{path}: is not an HDF5 file: it {looks_like_at(path)}")
    files, moved = list[Path](), list[str]()
    for number, line in lines(path):
        file = beside(line, path)
        if not is_file(file) and (found := _moved(line, path.parent)):
            moved.append(f"{path}:{number}: {shortened(line)} was not found; using {found}")
            file = found
        if not is_file(file):
            raise DataError(
                f"{path}:{number}: no such file: {shortened(line, quoted=True)}{nearest_path(file)}"
            )
        files.append(file)
    if not files:
        raise DataError(f"{path}: lists no HDF5 files")
    if moved:
        log.warning("%s%s", moved[0], f" (and {len(moved) - 1:,} more)" if moved[1:] else "")
    return files


def _moved(name: str, folder: Path) -> Path | None:
    """For an absolute path on another machine, as scripts write them to lists: return the file in the
    list's folder that matches the most of its last parts."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or (parts[0] != "/" and not parts[0].endswith(":")):
        return None
    tails = (folder.joinpath(*parts[first:]) for first in range(1, len(parts)))
    return next((file for file in tails if is_file(file)), None)


class Hdf5Samples:
    """The rows of all files, file after file. ``wanted`` are the names of datasets; every file must have
    all of them, with the same number of rows. If it is empty, they are all datasets at the top level of
    the first file.

    If files differ in element type, a field has a type that can hold the numbers of all. Each file is
    read as a whole, as in Caffe. ``groups`` are the numbers of rows in the files, by which samples are
    shuffled.
    """

    def __init__(self, path: Path, wanted: Sequence[str]) -> None:
        self.name, self._files = str(path), listed_files(path)
        names, fields, rows = tuple(wanted), None, []
        types: dict[str, set[str]] = {}
        for file in self._files:
            found = _outline(file, names)
            names = tuple(found)
            rows.append(next(iter(found.values()))[0])
            mine = {name: Field(shape, dtype) for name, (_, shape, dtype) in found.items()}
            fields = fields or mine
            if {n: f.shape for n, f in mine.items()} != {n: f.shape for n, f in fields.items()}:
                raise DataError(
                    f"{file}: its samples are {_told(mine)}, but the first file's {_told(fields)}"
                )
            for name, field in mine.items():
                types.setdefault(name, set()).add(field.dtype)
        self.fields: Mapping[str, Field] = {
            name: Field(field.shape, np.result_type(*types[name]).name)
            for name, field in (fields or {}).items()
        }
        self.groups: Sequence[int] = rows
        self._starts = np.cumsum([0, *rows])
        self.size = int(self._starts[-1])
        if not self.size:
            raise DataError(f"{path}: there are no samples in it")
        self._kept: OrderedDict[int, dict[str, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        files = np.searchsorted(self._starts, numbers, side="right") - 1
        for file in dict.fromkeys(files.tolist()):
            here = files == file
            arrays = self._arrays(file)
            for name, target in out.items():
                target[here] = arrays[name][numbers[here] - self._starts[file]]

    def _arrays(self, number: int) -> dict[str, np.ndarray]:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
            else:
                self._kept[number] = _read(self._files[number], tuple(self.fields))
                while len(self._kept) > 2 and sum(map(_bytes, self._kept.values())) > KEPT:
                    self._kept.popitem(last=False)
            return self._kept[number]


def _outline(file: Path, names: Sequence[str]) -> dict[str, tuple[int, tuple[int, ...], str]]:
    """Return rows, shape of a row, and element type of each dataset."""
    with naming(str(file)), _opened(file) as opened:
        try:
            names = names or [n for n in opened if isinstance(_member(opened, n), h5py().Dataset)]
            found = {}
            for name in names:
                dataset = _dataset(opened, name)
                found[name] = dataset.shape[0], tuple(dataset.shape[1:]), dataset.dtype.name
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"is damaged: {error}") from error
        if not found:
            raise DataError("has no dataset")
        if len({rows for rows, _, _ in found.values()}) > 1:
            each = ", ".join(f"{name!r} {rows:,}" for name, (rows, _, _) in found.items())
            raise DataError(f"its datasets have different numbers of rows: {each}")
        return found


def _dataset(opened: Any, name: str) -> Any:
    """Return a dataset of real numbers that is in this file and of plausible size. A file from a
    stranger may refer to any other file of this machine; those are not opened."""
    dataset = _member(opened, name)
    if dataset is None:
        raise DataError(unknown("dataset", name, map(str, opened)))
    if not isinstance(dataset, h5py().Dataset):
        raise DataError(f"{name!r} is a group, not a dataset")
    if dataset.external or dataset.is_virtual:
        others = [each[0] for each in dataset.external or ()]
        others += [each.file_name for each in dataset.virtual_sources()] if dataset.is_virtual else []
        raise DataError(_elsewhere(name, f"in {', '.join(map(repr, others[:3]))}"))
    if dataset.dtype.kind not in "iuf":
        raise DataError(f"dataset {name!r} has {dataset.dtype} elements (valid: real numbers)")
    if dataset.shape is None or not dataset.shape:
        raise DataError(f"dataset {name!r} is a single number; its first axis must be the samples")
    size, stored = math.prod(dataset.shape) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if size > max(ALWAYS, LARGEST_RATIO * stored) or size > physical_memory():
        raise DataError(
            f"dataset {name!r} claims {dataset.shape} ({size:,} bytes), but has {stored:,} bytes in the "
            f"file"
        )
    return dataset


def _member(opened: Any, name: str) -> Any:
    """Return the object with this name in a file, following links within the file; None if there is
    none. HDF5 itself would open other files, and would block on a pipe. Raises DataError."""
    place, parts, links = opened, name.split("/"), 0
    while parts:
        part, *parts = parts
        if part in ("", "."):
            continue
        link = place.get(part, getlink=True) if isinstance(place, h5py().Group) else None
        if link is None:
            return None
        if isinstance(link, h5py().ExternalLink):
            raise DataError(_elsewhere(name, f"behind a link to {link.filename!r}"))
        if isinstance(link, h5py().SoftLink):
            links += 1
            if links > MOST_LINKS:
                raise DataError(f"dataset {name!r} is behind links that point to each other")
            place, parts = opened if link.path[:1] == "/" else place, [*link.path.split("/"), *parts]
        else:
            place = place[part]
    return place


def _elsewhere(name: str, where: str) -> str:
    return (
        f"dataset {name!r} is not in this file but {where}, which is not opened; list the file that has "
        f"it, or copy it (h5repack, h5copy)"
    )


def _read(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    with naming(str(file)), _opened(file) as opened:
        try:
            return {name: np.asarray(_dataset(opened, name)[...]) for name in names}
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"is damaged: {error}") from error


def _opened(file: Path) -> Any:
    """Open the file without a lock, because not every file system has locks; but with one if HDF5
    insists, because this process, such as a user's script, has opened the file that way."""
    try:
        try:
            return h5py().File(file, "r", locking=False)
        except OSError as error:
            if "locking flag" not in str(error):
                raise
            return h5py().File(file, "r")
    except (OSError, RuntimeError, ValueError) as error:
        if "signature not found" in str(error):
            raise DataError(f"is not an HDF5 file: it {looks_like_at(file)}") from error
        raise DataError(f"cannot be read as HDF5: {error}") from error


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _told(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name!r} {field.shape}" for name, field in fields.items())
