"""Reading and writing parameters: the content of a file decides, not the suffix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse import ModelError, ShapeError, Weights, nearest_path
from demitasse_caffe.hdf5_file import is_hdf5
from demitasse_caffe.hdf5_weights import read_hdf5_weights, write_hdf5_weights
from demitasse_caffe.pycaffe.runtime import tell
from demitasse_caffe.weights import read_caffemodel, write_caffemodel


def read_weights(path: Path) -> Weights:
    """Return the parameters in a caffemodel, protobuf or HDF5. Raise ModelError if it is neither."""
    if not path.is_file():
        raise ModelError(f"no such file: {path}{nearest_path(path)}")
    return read_hdf5_weights(path) if is_hdf5(path) else read_caffemodel(path)


def write_weights(path: Path, weights: Weights, *, hdf5: bool = False) -> None:
    """Write parameters, either the whole file or nothing. Raise ModelError on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (write_hdf5_weights if hdf5 else write_caffemodel)(path, weights)


def copy_parameters(path: Path, ours: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Copy a file's parameters into those of layers of the same name; axes of extent 1 are ignored.
    Raise ShapeError with the layer and the shapes, before anything is copied, if they differ."""
    todo, weights = [], read_weights(path)
    tell(weights.notes)
    for layer, arrays in weights.parameters.items():
        if layer not in ours:
            continue
        if len(arrays) != len(ours[layer]):
            raise ShapeError(
                f"{path}: layer {layer!r}: the number of parameters is {len(arrays)} in the file, "
                f"{len(ours[layer])} in the net"
            )
        for number, (array, mine) in enumerate(zip(arrays, ours[layer], strict=True)):
            if _squeezed(array.shape) != _squeezed(mine.shape):
                raise ShapeError(
                    f"{path}: layer {layer!r}, parameter {number}: the file's shape is {array.shape}, "
                    f"the net's {mine.shape}"
                )
            todo.append((mine, array))
    for mine, array in todo:
        mine[...] = array.reshape(mine.shape)


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)
