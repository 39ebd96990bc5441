"""CIFAR-10 and CIFAR-100 binary files: https://www.cs.toronto.edu/~kriz/cifar.html ("binary version").

A record is one label byte (CIFAR-100: a coarse and a fine one), then 3 planes (red, green, blue) of
32 rows of 32 pixels. There is no header.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError
from demitasse_datasets.files import SampleFile, bare_name, identity
from demitasse_datasets.samples import ArraySamples, decoded_once

PIXELS = 3 * 32 * 32
LARGEST_UNPACKED = 1 << 31
"""Bytes that one compressed file may unpack to (2 GiB, some 700,000 records)."""


@dataclass(frozen=True)
class Format:
    """A kind of record: its label bytes in order, each with its number of classes."""

    title: str
    labels: tuple[tuple[str, int], ...]
    train: str
    test: str

    @property
    def record(self) -> int:
        return len(self.labels) + PIXELS


FORMATS = {
    "cifar10": Format("CIFAR-10", (("label", 10),), r"data_batch(_\d+)?\.bin", r"test_batch\.bin"),
    "cifar100": Format("CIFAR-100", (("coarse_label", 20), ("label", 100)), r"train\.bin", r"test\.bin"),
}


def is_cifar(path: Path) -> bool:
    """Whether a file is one of CIFAR's by its name."""
    return path.suffix == ".bin" or bare_name(path).endswith(".bin")


def open_cifar(paths: Sequence[Path], kind: str | None) -> ArraySamples:
    """The records of the files, one after another: ``data`` (3, 32, 32), ``label``, and for
    CIFAR-100 ``coarse_label`` (``label`` is the fine one), all uint8. Raises DataError."""
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    def decode() -> ArraySamples:
        # lzma, zlib and bz2 release the interpreter's lock while they unpack.
        pool = ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1))
        try:
            parts = list(pool.map(_read, paths))
        finally:
            pool.shutdown(cancel_futures=True)
        chosen = FORMATS[kind] if kind is not None else _format(paths[0], len(parts[0]))
        records = [_records(path, part, chosen) for path, part in zip(paths, parts, strict=True)]
        return ArraySamples(name, _columns(np.concatenate(records), chosen))

    return decoded_once((kind, *map(identity, paths)), decode)


def _read(path: Path) -> bytearray:
    with SampleFile(path) as file:
        if file.compression is None:
            return file.read(file.stored)
        data = file.read(LARGEST_UNPACKED + 1)
    if len(data) > LARGEST_UNPACKED:
        raise DataError(
            f"{path}: it unpacks to more than {LARGEST_UNPACKED:,} bytes, which no CIFAR file does; "
            f"if it is right, decompress it"
        )
    return data


def _format(path: Path, length: int) -> Format:
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
    # A common multiple of both (some 9 MB): the name decides, else CIFAR-10.
    named = [f for f in fitting if re.fullmatch(f"{f.train}|{f.test}", bare_name(path))]
    return (named or fitting)[0]


def _records(path: Path, data: bytearray, form: Format) -> np.ndarray:
    whole, rest = divmod(len(data), form.record)
    if rest:
        raise DataError(
            f"{path}: its {len(data):,} bytes are not a multiple of {form.record:,}, a "
            f"{form.title} record; sample {whole:,} is cut short: expected {form.record:,} bytes, "
            f"found {rest:,}"
        )
    if not whole:
        raise DataError(f"{path}: there are no samples in it; expected {form.title} records")
    records = np.frombuffer(data, np.uint8).reshape(whole, form.record)
    for i, (label, classes) in enumerate(form.labels):
        wrong = np.flatnonzero(records[:, i] >= classes)
        if len(wrong):
            raise DataError(
                f"{path}: sample {wrong[0]:,} has {label} {records[wrong[0], i]}; {form.title} has "
                f"0 to {classes - 1}. Is the file damaged, or of another format?"
            )
    return records


def _columns(records: np.ndarray, form: Format) -> dict[str, np.ndarray]:
    columns = {"data": records[:, len(form.labels) :].reshape(-1, 3, 32, 32)}
    for i, (label, _) in reversed(list(enumerate(form.labels))):
        columns[label] = records[:, i]
    return columns
