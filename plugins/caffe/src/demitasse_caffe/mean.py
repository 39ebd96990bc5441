"""The mean of a source's images, and binaryproto files, in which Caffe keeps it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, DataSpec, ModelError, is_file
from demitasse_caffe.schema import wire_classes
from demitasse_caffe.whole_file import write_whole

TOGETHER = 256


def write_blob(path: Path, array: np.ndarray) -> None:
    """Write an array of up to four axes as a BlobProto, with the old four extents, as mean files have
    them. The file appears whole or not at all. Raises ModelError."""
    if not 1 <= array.ndim <= 4:
        raise ModelError(f"{path}: an array of shape {array.shape} has no four extents")
    blob = wire_classes()["BlobProto"]()
    extents = (*(1,) * (4 - array.ndim), *array.shape)
    blob.num, blob.channels, blob.height, blob.width = extents
    blob.data.append(array.astype("<f4", order="C").tobytes())
    write_whole(path, blob.SerializeToString())


def compute_image_mean(
    runtime: Any,
    source: str | Path,
    target: str | Path | None = None,
    *,
    kind: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> np.ndarray:
    """The mean of all images of a source (channels, height, width), float32, as Caffe's tool of this
    name computes it; a text that lists images needs no ``kind``. With a ``target``, written there as a
    binaryproto. ``progress`` is told now and then how many images are added, and of how many. Raises
    DataError when the images cannot be read or differ in size."""
    opened = runtime.open_source(DataSpec(str(source), kind or _kind_of_list(Path(source))))
    if "data" not in opened.fields:
        raise DataError(f"{source}: has the fields {', '.join(opened.fields)}; data is needed")
    shape = opened.fields["data"].shape
    total = np.zeros(shape)
    with contextlib.closing(opened):
        for start in range(0, opened.size, TOGETHER):
            count = min(TOGETHER, opened.size - start)
            if start == 0 or count < TOGETHER:
                stream = opened.stream(start, count, count)
            images = np.empty((count, *shape), opened.fields["data"].dtype)
            stream.read({"data": images})
            total += images.sum(axis=0, dtype=np.float64)
            if progress is not None:
                progress(start + count, opened.size)
    mean: np.ndarray = (total / opened.size).astype(np.float32)
    if target is not None:
        write_blob(Path(target), mean)
    return mean


def _kind_of_list(source: Path) -> str | None:
    """images for a text that lists no HDF5 files; None for any other source, which says itself what it
    is."""
    if source.suffix.lower() != ".txt" or not is_file(source):
        return None
    with source.open("rb") as file:
        listed = file.readline(4096).split()[:1]
    return None if listed and listed[0].endswith((b".h5", b".hdf5")) else "images"
