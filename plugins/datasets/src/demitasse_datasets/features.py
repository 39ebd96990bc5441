"""Writing a net's blobs over its samples to databases or files, as Caffe's extract_features does."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from demitasse import DataError, ModelError, NetDefinition, ShapeError, is_there, replacing, unknown
from demitasse_datasets.convert import new_lmdb
from demitasse_datasets.datum import Datum, serialize
from demitasse_datasets.hdf5 import h5py

KINDS = ("lmdb", "hdf5", "npy")
_SUFFIXES = {".h5": "hdf5", ".hdf5": "hdf5", ".npy": "npy"}

Put = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class Features:
    """What was written for a blob: the path, the kind, and the shape, rows first."""

    target: Path
    kind: str
    shape: tuple[int, ...]


def extract_features(
    runtime: Any,
    model: str | Path,
    weights: str | Path,
    targets: Mapping[str, str | Path],
    *,
    batches: int | None = None,
    kind: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    precision: str | None = None,
    force: bool = False,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Features]:
    """Run the net of ``model`` in phase test over the samples that its layers read, and write blobs.
    ``targets`` has a path for each blob. Layers that no requested blob needs are left out.

    ``kind`` is ``lmdb`` (Datum records of float32, keys of ten digits, as Caffe writes them), ``hdf5``
    (a dataset with the blob's name; several blobs may share a file) or ``npy``. By default it follows
    from the path's suffix, and otherwise is lmdb. With ``batches``, samples start over after the last;
    without it, each is used once. Each target appears whole or not at all. ``progress`` is called with
    the number of rows done.

    Raises ModelError for a blob that the net lacks or a net without samples, ShapeError for a blob
    without a row for each sample, DataError if something cannot be written.
    """
    files = {blob: Path(target) for blob, target in targets.items()}
    kinds = {blob: kind or _SUFFIXES.get(file.suffix, "lmdb") for blob, file in files.items()}
    _check_targets(files, kinds, force)
    definition = needed(runtime.read(model).net("test", overrides), list(files))
    read_inside = any(
        blob in layer.bottoms and blob not in layer.tops for blob in files for layer in definition.layers
    )
    net = runtime.net(
        definition,
        weights=weights,
        precision=precision,
        retain="all" if read_inside else None,
    )
    if not net.graph.feeds:
        raise ModelError(
            f"{definition.location}: no layer that these blobs need reads samples; give a net with such "
            f"a layer (a train_test net)"
        )
    feed = net.graph.feeds[0]
    shapes = {blob: tuple(net.blobs[blob].shape) for blob in files}
    rows = batches * feed.batch if batches is not None else int(feed.source.size)
    for blob, shape in shapes.items():
        if not shape or shape[0] != feed.batch:
            raise ShapeError(
                f"{definition.location}: blob {blob!r} has the shape {shape}, not one row for each of "
                f"the {feed.batch} samples of a batch"
            )
        if kinds[blob] == "lmdb" and len(shape) > 4:
            raise ShapeError(f"blob {blob!r} has the shape {shape}; a Datum has at most three axes")
    with contextlib.ExitStack() as stack:
        puts = _opened(stack, files, kinds, shapes, rows)
        for number in range(math.ceil(rows / feed.batch)):
            outputs = net.forward()
            some = min(feed.batch, rows - number * feed.batch)
            for blob, put in puts.items():
                values = net.blobs[blob].data if read_inside else outputs[blob]
                put(np.asarray(values[:some], np.float32))
            if progress is not None:
                progress(number * feed.batch + some)
    return {b: Features(files[b], kinds[b], (rows, *shapes[b][1:])) for b in files}


def needed(definition: NetDefinition, blobs: Sequence[str]) -> NetDefinition:
    """Return the net without the layers that none of the blobs needs. Raises ModelError for a blob that
    it lacks."""
    tops = dict.fromkeys(top for layer in definition.layers for top in layer.tops)
    for blob in blobs:
        if blob not in tops:
            raise ModelError(unknown("blob", blob, tops, definition.location))
    wanted, kept = set(blobs), []
    for layer in reversed(definition.layers):
        if wanted.intersection(layer.tops):
            wanted.update(layer.bottoms)
            kept.append(layer)
    return replace(definition, layers=tuple(reversed(kept)))


def _check_targets(files: Mapping[str, Path], kinds: Mapping[str, str], force: bool) -> None:
    seen: dict[Path, str] = {}
    for blob, file in files.items():
        if kinds[blob] not in KINDS:
            raise DataError(unknown("kind of features", kinds[blob], KINDS))
        if file in seen and kinds[blob] != "hdf5":
            raise DataError(f"{file} is given for the blobs {seen[file]!r} and {blob!r}")
        seen[file] = blob
        if is_there(file) and not force:
            raise DataError(f"{file} already exists; force (--force) overwrites it")


def _opened(
    stack: contextlib.ExitStack,
    files: Mapping[str, Path],
    kinds: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    rows: int,
) -> dict[str, Put]:
    """Return a function for each blob that writes its next rows; all targets appear when ``stack``
    ends."""
    puts: dict[str, Put] = {}
    hdf5: dict[Path, Any] = {}
    for blob, file in files.items():
        shape = (rows, *shapes[blob][1:])
        if kinds[blob] == "lmdb":
            puts[blob] = _records(stack.enter_context(new_lmdb(file)))
            continue
        if kinds[blob] == "npy":
            new = stack.enter_context(_new_file(file))
            puts[blob] = _numpy_rows(stack.enter_context(new.open("wb")), shape)
            continue
        if file not in hdf5:
            new = stack.enter_context(_new_file(file))
            hdf5[file] = stack.enter_context(h5py().File(new, "w"))
        puts[blob] = _filler(hdf5[file].create_dataset(blob, shape, "f4"))
    return puts


def _records(put: Callable[[Sequence[tuple[bytes, bytes]]], None]) -> Put:
    count = 0

    def take(rows: np.ndarray) -> None:
        nonlocal count
        channels, height, width = (*rows.shape[1:], 1, 1, 1)[:3]
        made = []
        for number, row in enumerate(rows, count):
            record = Datum(channels, height, width, floats=row.reshape(-1))
            made.append((b"%010d" % number, serialize(record)))
        put(made)
        count += len(rows)

    return take


def _numpy_rows(file: BinaryIO, shape: tuple[int, ...]) -> Put:
    """Return a function that writes rows after the header of a NumPy file. It does not map the file: on
    a full disk, writing to mapped memory is not an error but ends the process."""
    head = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)

    def take(rows: np.ndarray) -> None:
        file.write(np.ascontiguousarray(rows, "<f4").data)

    return take


def _filler(whole: Any) -> Put:
    count = 0

    def take(rows: np.ndarray) -> None:
        nonlocal count
        whole[count : count + len(rows)] = rows
        count += len(rows)

    return take


@contextlib.contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes the target if the block succeeds."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as partial:
            yield partial
    except OSError as error:
        # HDF5's message contains the system's message, besides addresses and more.
        told = re.search(r"error message = '([^']*)'", str(error))
        reason = told[1] if told else error.strerror or error
        raise DataError(f"{target}: cannot be written: {reason}") from error
