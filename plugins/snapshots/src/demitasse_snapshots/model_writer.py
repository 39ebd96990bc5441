"""Writing a snapshot: to a temporary file next to it, flushed to disk and then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from demitasse import SnapshotError, Weights, replacing
from demitasse_snapshots.layout import (
    ARRAY,
    DEEPEST,
    DIGEST,
    GRADIENTS,
    LARGEST_RANK,
    LONGEST,
    PARTS,
    TYPES,
    VERSION,
    Header,
)

Pieces = list[bytes | memoryview]


def write_snapshot(path: Path, weights: Weights) -> None:
    """Write ``weights`` to ``path``, which afterwards contains either all of them or what it had before.

    Arrays are written from where they are; only those that are not contiguous are copied. Raises
    SnapshotError with the path and the reason: a value that cannot be stored, a full disk, a missing
    folder.
    """
    pieces = _Body(path).of(weights)
    length = sum(len(piece) for piece in pieces)
    pieces.insert(0, Header(VERSION, length).pack())
    try:
        _replace(path, pieces)
        _synchronise_folder(Path(os.path.realpath(path)).parent)  # of a link, its target is written
    except OSError as error:
        size = sum(len(piece) for piece in pieces) + DIGEST
        raise SnapshotError(
            f"{path}: the snapshot of {size:,} bytes could not be written: "
            f"{error.strerror or error}; the previous file is untouched"
        ) from error


def _replace(target: Path, pieces: Pieces) -> None:
    with replacing(target) as partial, partial.open("wb") as file:
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())


def _synchronise_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support it
            raise
    finally:
        os.close(descriptor)


class _Body:
    """The body in pieces: packed bytes, and between them the arrays' own memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packer = msgpack.Packer(strict_types=True, unicode_errors="surrogatepass")
        self.pieces: Pieces = []

    def of(self, weights: Weights) -> Pieces:
        self.map(len(PARTS) + bool(weights.gradients))
        self.value("parameters")
        self.layers(weights.parameters, "parameters")
        if weights.iteration is not None and not isinstance(weights.iteration, (int, np.integer)):
            raise SnapshotError(f"{self.path}: iteration is {weights.iteration!r}, not an integer")
        self.value("iteration")
        self.value(self.plain(weights.iteration, "iteration", 0))
        self.value("state")
        self.map(len(weights.state))
        for slot, layers in weights.state.items():
            self.name(slot, "state")
            self.layers(layers, f"state[{slot!r}]")
        self.value("record")
        self.value(self.plain(weights.record, "record", 0))
        if weights.gradients:
            self.value(GRADIENTS)
            self.layers(weights.gradients, GRADIENTS)
        return self.pieces

    def layers(self, layers: Mapping[str, Sequence[np.ndarray]], where: str) -> None:
        self.map(len(layers))
        for layer, arrays in layers.items():
            self.name(layer, where)
            self.pieces.append(self.packer.pack_array_header(len(arrays)))
            for number, array in enumerate(arrays):
                self.array(np.asarray(array), f"{where}[{layer!r}][{number}]")

    def array(self, array: np.ndarray, where: str) -> None:
        if array.dtype.str not in TYPES:
            raise SnapshotError(
                f"{self.path}: {where} has element type {array.dtype}, which a snapshot cannot hold "
                f"(valid: booleans, integers, floating point and complex numbers of up to 8 bytes)"
            )
        if array.ndim > LARGEST_RANK:
            raise SnapshotError(f"{self.path}: {where} has rank {array.ndim}; at most {LARGEST_RANK}")
        data = array.reshape(-1).view(np.uint8).data
        values = (array.dtype.str, list(array.shape), zlib.crc32(data))
        self.map(len(ARRAY))
        for key, value in zip(ARRAY, values, strict=False):
            self.value(key)
            self.value(value)
        self.value(ARRAY[-1])
        if len(data) > LONGEST:
            self.pieces.append(self.packer.pack_array_header(-(-len(data) // LONGEST)))
        for start in range(0, max(len(data), 1), LONGEST):
            piece = data[start : start + LONGEST]
            self.pieces.append(_binary_header(len(piece)))
            self.pieces.append(piece)

    def name(self, name: object, where: str) -> None:
        if type(name) is not str:
            raise SnapshotError(f"{self.path}: a name in {where} is {name!r} (valid: strings)")
        self.value(name)

    def map(self, size: int) -> None:
        self.pieces.append(self.packer.pack_map_header(size))

    def value(self, value: object) -> None:
        self.pieces.append(self.packer.pack(value))

    def plain(self, value: Any, where: str, depth: int) -> Any:
        """Return the value after checking that its types are the same when read back."""
        if isinstance(value, np.generic):
            value = value.item()
        if depth > DEEPEST:
            raise SnapshotError(f"{self.path}: {where} is nested deeper than {DEEPEST}")
        if type(value) is dict:
            for key in value:
                if type(key) not in (str, int):
                    raise SnapshotError(
                        f"{self.path}: {where} has the key {key!r} (valid: strings and integers)"
                    )
            return {
                self.plain(key, where, depth + 1): self.plain(item, f"{where}[{key!r}]", depth + 1)
                for key, item in value.items()
            }
        if type(value) is list:
            return [self.plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            raise SnapshotError(f"{self.path}: {where} is {value}, which does not fit in 64 bits")
        if value is not None and type(value) not in (str, int, float, bool, bytes):
            raise SnapshotError(
                f"{self.path}: {where} is of type {type(value).__name__}, which a snapshot cannot "
                f"hold (valid: str, int, float, bool, None, bytes, list and dict)"
            )
        return value


def _binary_header(length: int) -> bytes:
    """Return msgpack's header for ``length`` bytes; the packer only makes those of maps and arrays."""
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big")
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")
