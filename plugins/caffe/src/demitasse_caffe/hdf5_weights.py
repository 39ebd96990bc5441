"""``.caffemodel.h5``: a group for each layer in ``/data``, which contains a data set for each parameter,
named by its number; gradients likewise in ``/diff``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import ModelError, Weights
from demitasse_caffe.hdf5_file import Hdf5File, made_hdf5, open_hdf5
from demitasse_caffe.whole_file import write_whole

_MOST_PARAMETERS = 1024


def read_hdf5_weights(path: Path) -> Weights:
    """Return the parameters of every layer that has any, and gradients if they were saved.
    Raise ModelError."""
    return read_with_order(path)[0]


def read_with_order(path: Path) -> tuple[Weights, bool]:
    """Return the weights, and whether their layers are in the order in which they were written. Caffe's
    files do not keep that order; theirs is by name."""
    with open_hdf5(path) as file:
        if file.group("data") is None:
            raise ModelError(f"{path}: is not a caffemodel: it has no group 'data'")
        parameters = _layers(file, file.group("data"), "parameter")
        if not parameters:
            raise ModelError(f"{path}: its layers hold no weights")
        saved = file.group("diff")
        gradients = _layers(file, saved, "gradient of parameter") if saved is not None else {}
        ordered = len(parameters) == 1 or _keeps_order(file.group("data"))
    return Weights(parameters, gradients=gradients), ordered


def write_hdf5_weights(path: Path, weights: Weights) -> None:
    """Write parameters and gradients; either the whole file appears or nothing. Raise
    ModelError on failure."""
    with made_hdf5(path) as (root, image):
        _fill(root.create_group("data", track_order=True), weights.parameters, path)
        if weights.gradients:
            _fill(root.create_group("diff", track_order=True), weights.gradients, path)
    write_whole(path, image.getvalue())


def write_array(group: Any, name: str, array: np.ndarray) -> None:
    """Write a data set of float32, or of float64 if the array is float64."""
    kind = "<f8" if array.dtype == np.float64 else "<f4"
    group.create_dataset(name, data=np.asarray(array, dtype=kind))


def _fill(group: Any, layers: Mapping[str, Sequence[np.ndarray]], path: Path) -> None:
    for layer, arrays in layers.items():
        if not layer.strip("."):
            raise ModelError(f"{path}: a layer called {layer!r} cannot be a group of an HDF5 file")
        # A slash would make groups within groups. Caffe cannot write such a layer, and ignores one.
        inner = group.require_group(layer)
        for number, array in enumerate(arrays):
            if array.size or not array.ndim:
                write_array(inner, str(number), array)


def _layers(file: Hdf5File, group: Any, what: str) -> dict[str, list[np.ndarray]]:
    found: dict[str, list[np.ndarray]] = {}
    for layer, inner in _groups(file, group, "", set()):
        if arrays := _arrays(file, inner, f"layer {layer!r}, {what}"):
            found[layer] = arrays
    return found


def _groups(file: Hdf5File, group: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the groups below a group with their paths, each once even if damaged links form a cycle."""
    import h5py

    for name in group:
        inner = file.group(name, group)
        if inner is None:
            continue
        address = h5py.h5o.get_info(inner.id).addr
        if address in seen:
            raise ModelError(f"{file.path}: is damaged: its group {prefix + name!r} has two names")
        seen.add(address)
        yield prefix + name, inner
        yield from _groups(file, inner, f"{prefix}{name}/", seen)


def _arrays(file: Hdf5File, group: Any, what: str) -> list[np.ndarray]:
    """Return the arrays by number. Caffe omits what belongs to another layer; an empty
    array takes its place."""
    numbers = sorted(int(name) for name in group if name.isascii() and name.isdigit())
    numbers = [number for number in numbers if file.group(str(number), group) is None]
    if not numbers:
        return []
    if numbers[-1] > _MOST_PARAMETERS:
        told = f"{what} has a parameter numbered {numbers[-1]}"
        raise ModelError(f"{file.path}: {told} (valid: at most {_MOST_PARAMETERS})")
    missing = np.empty(0, np.float32)
    return [
        _real(file.array(group, str(number), f"{what} {number}")) if number in numbers else missing
        for number in range(numbers[-1] + 1)
    ]


def _real(array: np.ndarray) -> np.ndarray:
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _keeps_order(group: Any) -> bool:
    import h5py

    return bool(group.id.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED)
