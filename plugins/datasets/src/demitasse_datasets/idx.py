"""IDX files, the format of MNIST: http://yann.lecun.com/exdb/mnist (section "file formats").

Four magic bytes (0, 0, element type, rank), followed by each length as a big-endian 32-bit number, and
then the elements, big-endian, the last axis fastest.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from demitasse import DataError, is_file, looks_like, nearest
from demitasse_datasets.files import (
    SUFFIXES,
    MappedFile,
    SampleFile,
    bare_name,
    identity,
    physical_memory,
)
from demitasse_datasets.samples import ArraySamples, decoded_once

ELEMENTS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
LARGEST_RANK = 32
MAPPED_FROM = 1 << 28
"""Uncompressed files of at least this many bytes (256 MiB) are mapped into memory instead of read."""


def is_idx(path: Path) -> bool:
    """Whether a file is IDX by its name (..-idx3-ubyte, .idx3-ubyte) or by its first bytes."""
    if re.search(r"(^|[-_.])idx\d*([-_.]|$)", bare_name(path).lower()):
        return True
    try:
        with SampleFile(path) as file:
            magic = file.read(4)
    except DataError:
        return False
    return len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in ELEMENTS and magic[3] > 0


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an IDX file, with samples on the first axis, in this machine's byte order (a
    large uncompressed file is mapped as it is). Raises DataError if the file is not IDX, or longer or
    shorter than its header says."""
    with SampleFile(path) as file:
        shape, element, header = _header(file)
        expected = math.prod(shape) * element.itemsize
        if file.compression is None:
            _check_length(path, shape, element, expected, file.stored - header)
            if expected >= MAPPED_FROM:
                return np.memmap(path, element, "r", header, shape)
        elif expected > physical_memory():
            raise DataError(
                f"{path}: its header promises {expected:,} bytes (shape {shape}), more than this "
                f"machine's memory; decompress the file, and it will be mapped instead"
            )
        # One byte more than promised, to notice a file that is too long, and to verify its checksum.
        data = file.read(expected + 1, expected)
        _check_length(path, shape, element, expected, len(data))
    array = np.frombuffer(data, element).reshape(shape)
    return array if element.isnative else array.astype(element.newbyteorder("="))


def _header(file: SampleFile) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
    magic = file.read(4)
    if len(magic) < 4 or magic[0] or magic[1] or magic[2] not in ELEMENTS:
        codes = ", ".join(f"{code:#04x}" for code in ELEMENTS)
        raise DataError(
            f"{file.path} is not an IDX file, which begins with 00 00, an element type ({codes}) and a "
            f"rank: it {looks_like(bytes(magic + file.read(512)))}"
        )
    rank = magic[3]
    if not 1 <= rank <= LARGEST_RANK:
        raise DataError(f"{file.path}: rank {rank} in its header (valid: 1 to {LARGEST_RANK})")
    lengths = file.read(4 * rank)
    if len(lengths) < 4 * rank:
        raise DataError(
            f"{file.path}: its header is cut short: {4 + len(lengths)} bytes, but rank {rank} needs "
            f"{4 + 4 * rank}"
        )
    shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
    if 0 in shape:
        raise DataError(f"{file.path}: there are no samples in it: its header says shape {shape}")
    return shape, np.dtype(ELEMENTS[magic[2]]), 4 + 4 * rank


def _check_length(
    path: Path, shape: tuple[int, ...], element: np.dtype[np.generic], expected: int, found: int
) -> None:
    if found < expected:
        sample = math.prod(shape[1:]) * element.itemsize
        raise DataError(
            f"{path}: sample {found // sample:,} of {shape[0]:,} is cut short: its header (shape "
            f"{shape}, {element.name}) promises {expected:,} bytes of samples, but {found:,} were found"
        )
    if found > expected:
        raise DataError(
            f"{path}: there are more bytes than its header promises (shape {shape}, "
            f"{element.name}): expected {expected:,} bytes of samples"
        )


def labels_beside(images: Path) -> tuple[Path | None, str]:
    """Return the labels file that belongs to an images file by its name, or None. If the name says that
    it holds images, but the labels are missing, the second result is a message for code that needs
    them."""
    name = bare_name(images)
    swapped, found = re.subn("images?", _labels, name, flags=re.IGNORECASE)
    if not found:
        return None, ""
    swapped = re.sub(r"idx\d", "idx1", swapped)
    suffix = images.suffix if images.suffix in SUFFIXES else ""
    candidates = [
        images.with_name(swapped + ending)
        for ending in sorted(SUFFIXES, key=lambda ending: ending != suffix)
    ]
    for candidate in candidates:
        if is_file(candidate):
            return candidate, ""
    others = [other.name for other in images.parent.iterdir() if other.name != images.name]
    close = nearest(candidates[0].name, [other for other in others if "label" in other.lower()])
    hint = f"; is it {close!r}?" if close else "."
    return None, (
        f"{images}: its labels are not beside it: no {candidates[0].name!r} (nor "
        f"{', '.join(repr(c.name) for c in candidates[1:])}){hint} Name them after the "
        f"source (?labels=FILE)"
    )


def _labels(match: re.Match[str]) -> str:
    word = match.group()
    label = "labels" if word.lower().endswith("s") else "label"
    return label.upper() if word.isupper() else label.title() if word[0].isupper() else label


def open_idx(images: Path, labels: Path | None, why: str = "") -> ArraySamples:
    """Return images (rank 3 gets one channel) as ``data``, and ``label`` if there are labels; otherwise
    ``why`` explains their absence to code that needs them."""

    def decode() -> ArraySamples:
        data = read_idx(images)
        if data.ndim == 3:
            data = data[:, None]
        columns = {"data": data}
        if labels is not None:
            columns["label"] = read_idx(labels)
            if len(columns["label"]) != len(data):
                raise DataError(
                    f"{images} has {len(data):,} samples, but its labels {labels} have "
                    f"{len(columns['label']):,}; each sample must have one"
                )
        mapped = [MappedFile(images, images.stat().st_size)] if isinstance(data, np.memmap) else []
        return ArraySamples(str(images), columns, {"label": why} if why else {}, mapped)

    return decoded_once(("idx", identity(images), labels and identity(labels), why), decode)
