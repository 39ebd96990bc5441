"""CIFAR-10 and CIFAR-100, the binary files and the Python batches:
https://www.cs.toronto.edu/~kriz/cifar.html ("binary version", "python version").

A record is one label byte (CIFAR-100: a coarse and a fine one), followed by 3 planes (red, green, blue)
of 32 rows of 32 pixels. There is no header. Python batches hold the same data in separate arrays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError
from demitasse_datasets.files import SampleFile, bare_name, identity
from demitasse_datasets.pickled import begins_pickle, is_pickled, read_batch
from demitasse_datasets.samples import ArraySamples, decoded_once

PIXELS = 3 * 32 * 32
LARGEST_UNPACKED = 1 << 31
"""The most bytes that one compressed file may unpack to (2 GiB, some 700,000 records)."""


@dataclass(frozen=True)
class Format:
    """A kind of record: its label bytes in order, each with its number of classes, and the labels' names
    in Python batches."""

    title: str
    labels: tuple[tuple[str, int], ...]
    pickled: tuple[str, ...]
    train: str
    test: str

    @property
    def record(self) -> int:
        return len(self.labels) + PIXELS


FORMATS = {
    "cifar10": Format(
        "CIFAR-10",
        (("label", 10),),
        ("labels",),
        r"data_batch(_\d+)?(\.bin)?",
        r"test_batch(\.bin)?",
    ),
    "cifar100": Format(
        "CIFAR-100",
        (("coarse_label", 20), ("label", 100)),
        ("coarse_labels", "fine_labels"),
        r"train(\.bin)?",
        r"test(\.bin)?",
    ),
}


def is_cifar(path: Path) -> bool:
    """Whether a file is one of CIFAR's by its name, or a pickle by its first bytes."""
    return path.suffix == ".bin" or bare_name(path).endswith(".bin") or is_pickled(path)


def open_cifar(paths: Sequence[Path], kind: str | None) -> ArraySamples:
    """Return the records of the files, one after another: ``data`` (3, 32, 32), ``label`` and, for
    CIFAR-100, ``coarse_label`` (``label`` is the fine one), all uint8. Raises DataError."""
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    def decode() -> ArraySamples:
        # lzma, zlib and bz2 release the interpreter's lock while they decompress.
        pool = ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1))
        try:
            parts = list(pool.map(_read, paths))
        finally:
            pool.shutdown(cancel_futures=True)
        chosen = FORMATS[kind] if kind is not None else _format(paths[0], parts[0])
        records = [_records(path, part, chosen) for path, part in zip(paths, parts, strict=True)]
        return ArraySamples(name, _columns(np.concatenate(records), chosen))

    return decoded_once((kind, *map(identity, paths)), decode)


def _read(path: Path) -> bytearray | Mapping[str, np.ndarray]:
    """Return a file's bytes, or the arrays in its pickle."""
    with SampleFile(path) as file:
        packed = file.compression is not None
        data = file.read(LARGEST_UNPACKED + 1 if packed else file.stored)
    if packed and len(data) > LARGEST_UNPACKED:
        raise DataError(
            f"{path}: it unpacks to more than {LARGEST_UNPACKED:,} bytes, which no CIFAR file does; "
            f"if it is intact, decompress it"
        )
    # A record begins with a label, which is smaller than a pickle's first byte.
    return read_batch(path, data) if begins_pickle(data) else data


def _format(path: Path, content: bytearray | Mapping[str, np.ndarray]) -> Format:
    if isinstance(content, Mapping):
        named = (form for form in FORMATS.values() if form.pickled[-1] in content)
        return next(named, FORMATS["cifar10"])
    length = len(content)
    fitting = [form for form in FORMATS.values() if length % form.record == 0]
    if not fitting:
        sizes = " nor ".join(f"{form.record:,} ({form.title})" for form in FORMATS.values())
        form = next(
            (f for f in FORMATS.values() if re.fullmatch(f"{f.train}|{f.test}", bare_name(path))),
            FORMATS["cifar10"],
        )
        whole, rest = divmod(length, form.record)
        raise DataError(
            f"{path}: its {length:,} bytes are not a multiple of {sizes} bytes a record; as "
            f"{form.title}, sample {whole:,} is cut short: expected {form.record:,} bytes, "
            f"found {rest:,}"
        )
    # If the length is a multiple of both (some 9 MB), the name decides; by default it is CIFAR-10.
    likely = [f for f in fitting if re.fullmatch(f"{f.train}|{f.test}", bare_name(path))]
    return (likely or fitting)[0]


def _records(path: Path, content: bytearray | Mapping[str, np.ndarray], form: Format) -> np.ndarray:
    """Return records (samples, label bytes and pixels), uint8, with labels in range. Raises
    DataError."""
    if isinstance(content, Mapping):
        labels, pixels = _of_batch(path, content, form)
    else:
        records = _of_bytes(path, content, form)
        labels = records[:, : len(form.labels)]
    for i, (label, classes) in enumerate(form.labels):
        wrong = np.flatnonzero((labels[:, i] < 0) | (labels[:, i] >= classes))
        if len(wrong):
            raise DataError(
                f"{path}: sample {wrong[0]:,} has {label} {labels[wrong[0], i]}; {form.title} has "
                f"0 to {classes - 1}. Is the file damaged, or of another format?"
            )
    if isinstance(content, Mapping):
        return np.concatenate([labels.astype(np.uint8), pixels], axis=1)
    return records


def _of_batch(
    path: Path, batch: Mapping[str, np.ndarray], form: Format
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels (samples, kinds of label) and pixels (samples, 3072) of a Python batch."""
    lacking = [name for name in form.pickled if name not in batch]
    if lacking:
        there = ", ".join(map(repr, batch))
        raise DataError(f"{path}: has no {lacking[0]!r}, as {form.title} has; it has {there}")
    pixels, labels = batch["data"], [batch[name] for name in form.pickled]
    if pixels.dtype != np.uint8 or pixels.shape[1:] not in ((PIXELS,), (3, 32, 32)):
        raise DataError(
            f"{path}: its data is {pixels.dtype} {pixels.shape}; {form.title} has uint8 "
            f"(samples, {PIXELS})"
        )
    if not len(pixels):
        raise DataError(f"{path}: there are no samples in it; expected {form.title} records")
    for name, column in zip(form.pickled, labels, strict=True):
        if column.shape != pixels.shape[:1]:
            raise DataError(f"{path}: has {len(pixels):,} samples, but {column.size:,} {name}")
    return np.stack(labels, axis=1), pixels.reshape(len(pixels), PIXELS)


def _of_bytes(path: Path, data: bytearray, form: Format) -> np.ndarray:
    whole, rest = divmod(len(data), form.record)
    if rest:
        raise DataError(
            f"{path}: its {len(data):,} bytes are not a multiple of {form.record:,}, a "
            f"{form.title} record; sample {whole:,} is cut short: expected {form.record:,} bytes, "
            f"found {rest:,}"
        )
    if not whole:
        raise DataError(f"{path}: there are no samples in it; expected {form.title} records")
    return np.frombuffer(data, np.uint8).reshape(whole, form.record)


def _columns(records: np.ndarray, form: Format) -> dict[str, np.ndarray]:
    columns = {"data": records[:, len(form.labels) :].reshape(-1, 3, 32, 32)}
    for i, (label, _) in reversed(list(enumerate(form.labels))):
        columns[label] = records[:, i]
    return columns
