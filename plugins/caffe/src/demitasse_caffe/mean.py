"""The mean of a source's images, and the files that store it: Caffe's binaryproto and NumPy's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    DataError,
    DataSpec,
    ModelError,
    check_plain,
    is_file,
    looks_like_at,
    nearest_path,
    shortened,
)
from demitasse_caffe.schema import wire_classes
from demitasse_caffe.weights import read_blob
from demitasse_caffe.whole_file import write_whole

TOGETHER = 256


def write_blob(path: Path, array: np.ndarray) -> None:
    """Write an array of up to four axes as a BlobProto with the four old extents, as in mean files.
    Either the whole file appears or nothing. Raise ModelError on failure."""
    if not 1 <= array.ndim <= 4:
        raise ModelError(f"{path}: an array of shape {array.shape} does not have four axes")
    blob = wire_classes()["BlobProto"]()
    extents = (*(1,) * (4 - array.ndim), *array.shape)
    blob.num, blob.channels, blob.height, blob.width = extents
    blob.data.append(array.astype("<f4", order="C").tobytes())
    write_whole(path, blob.SerializeToString())


def read_mean_image(path: Path) -> np.ndarray:
    """Read the mean image of a binaryproto file. Raise ModelError for any other file."""
    mean = read_blob(path)
    if problem := _unreal(mean):
        raise ModelError(f"{path}: is not a mean: it has {problem}")
    return mean


def read_mean(path: Path) -> np.ndarray:
    """Read a mean from a binaryproto, or from a NumPy file of real numbers. Raise
    ModelError and DataError."""
    if path.suffix != ".npy":
        return read_mean_image(path)
    check_plain(path, ModelError)
    try:
        stored: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        extra = path.stat().st_size - stored.offset - stored.nbytes  # type: ignore[attr-defined]
    except Exception as error:  # NumPy's header parser raises any kind of exception
        reason = getattr(error, "strerror", None) or shortened(error) or type(error).__name__
        hint = nearest_path(path) if isinstance(error, FileNotFoundError) else ""
        told = looks_like_at(path) if not hint and is_file(path) else ""
        hint = f"; it {told}" if told and "NumPy" not in told else hint
        raise DataError(f"{path}: is not a NumPy file of numbers ({reason}){hint}") from error
    if stored.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: is not a NumPy file of real numbers: they are {shortened(stored.dtype)}"
        )
    if extra:
        raise DataError(f"{path}: has {extra:,} bytes more than numbers of shape {stored.shape} take")
    with np.errstate(over="ignore"):
        mean: np.ndarray = np.array(stored, np.float32)
    if problem := _unreal(mean):
        raise DataError(f"{path}: is not a mean: it has {problem}")
    return mean


def _unreal(mean: np.ndarray) -> str:
    """Describe how many numbers of a mean are not finite; "" if all are."""
    count = mean.size - int(np.count_nonzero(np.isfinite(mean)))
    return f"{count:,} of {mean.size:,} numbers that are not finite" if count else ""


def compute_image_mean(
    runtime: Any,
    source: str | Path,
    target: str | Path | None = None,
    *,
    kind: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> np.ndarray:
    """Compute the mean of all images of a source, float32 (channels, height, width), as Caffe's tool of
    this name does. A text file that lists images needs no ``kind``. If ``target`` is given, the mean is
    also written there as a binaryproto. ``progress`` is called now and then with the number of images
    done and their total. Raise DataError if the images cannot be read or differ in size."""
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
    """Return ``images`` for a text file that does not list HDF5 files, or None for any other source,
    which identifies itself."""
    if source.suffix.lower() != ".txt" or not is_file(source):
        return None
    with source.open("rb") as file:
        listed = file.readline(4096).split()[:1]
    return None if listed and listed[0].endswith((b".h5", b".hdf5")) else "images"
