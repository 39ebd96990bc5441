"""Turning a snapshot's unpacked body into weights, checking the type of every value."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from demitasse import SnapshotError, Weights
from demitasse_snapshots.layout import ARRAY, DEEPEST, GRADIENTS, LARGEST_RANK, PARTS, TYPES

Arrays = dict[str, list[np.ndarray]]
"""By layer."""


class Body:
    """The tree of mappings, lists and values that msgpack returns for the file at ``path``. It is
    emptied while it is read, so that the arrays' bytes are not in memory twice."""

    def __init__(self, path: Path, tree: Any) -> None:
        self._path, self._tree = path, tree

    def weights(self) -> Weights:
        """Return parameters, iteration, state, record and gradients. Raises SnapshotError that names the
        first part that is invalid."""
        tree = self._tree
        if type(tree) is not dict or set(tree) - {GRADIENTS} != set(PARTS):
            self._refuse("its body", tree, f"a mapping with {', '.join(PARTS)}")
        if tree["iteration"] is not None and type(tree["iteration"]) is not int:
            self._refuse("iteration", tree["iteration"], "an integer or nothing")
        return Weights(
            parameters=self._layers(tree["parameters"], "parameters"),
            iteration=tree["iteration"],
            state={
                slot: self._layers(value, f"state[{slot!r}]")
                for slot, value in self._mapping(tree["state"], "state").items()
            },
            record=self._record(tree["record"]),
            gradients=self._layers(tree.get(GRADIENTS, {}), GRADIENTS),
        )

    def _layers(self, value: Any, where: str) -> Arrays:
        result = {}
        for layer, entries in self._mapping(value, where).items():
            place = f"{where}[{layer!r}]"
            if type(entries) is not list:
                self._refuse(place, entries, "a list of arrays")
            result[layer] = [self._array(each, f"{place}[{i}]") for i, each in enumerate(entries)]
        return result

    def _array(self, entry: Any, where: str) -> np.ndarray:
        if set(self._mapping(entry, where)) != set(ARRAY):
            self._refuse(where, sorted(entry), f"an array ({', '.join(ARRAY)})")
        dtype, shape, data = entry["dtype"], entry["shape"], entry.pop("data")
        if type(dtype) is not str or dtype not in TYPES:
            self._refuse(f"{where}.dtype", dtype, "a number's type")
        if not _is_shape(shape):
            self._refuse(f"{where}.shape", shape, f"at most {LARGEST_RANK} lengths of an array")
        pieces = data if type(data) is list else [data]
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if any(type(each) is not bytes for each in pieces) or sum(map(len, pieces)) != nbytes:
            valid = f"the bytes of a {dtype} array of shape {tuple(shape)}"
            self._refuse(f"{where}.data", data, valid)
        array, at = np.empty(shape, dtype), 0
        whole = array.reshape(-1).view(np.uint8)
        while pieces:  # free each one as soon as it is copied
            piece = pieces.pop(0)
            whole[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return array

    def _record(self, value: Any) -> dict[str, Any]:
        record = self._mapping(value, "record")
        self._check_plain(record, "record", 0)
        return record

    def _check_plain(self, value: Any, where: str, depth: int) -> None:
        if depth > DEEPEST:
            self._refuse(where, type(value), f"nested at most {DEEPEST} deep")
        if type(value) is dict:
            for key, item in value.items():
                if type(key) not in (str, int):
                    self._refuse(f"a key of {where}", key, "a string or an integer")
                self._check_plain(item, f"{where}[{key!r}]", depth + 1)
        elif type(value) is list:
            for number, item in enumerate(value):
                self._check_plain(item, f"{where}[{number}]", depth + 1)
        elif value is not None and type(value) not in (str, int, float, bool, bytes):
            self._refuse(where, value, "a plain value")

    def _mapping(self, value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict or any(type(key) is not str for key in value):
            self._refuse(where, value, "a mapping with names for keys")
        return value

    def _refuse(self, where: str, found: object, valid: str) -> NoReturn:
        shown = repr(found)
        shown = shown if len(shown) < 60 else f"a {type(found).__name__}"
        raise SnapshotError(f"{self._path}: {where} is {shown}, not {valid}")


def _is_shape(value: Any) -> bool:
    if type(value) is not list or len(value) > LARGEST_RANK:
        return False
    if not all(type(length) is int and length >= 0 for length in value):
        return False
    largest: int = math.prod(max(length, 1) for length in value)
    return largest < 1 << 59  # NumPy limits the shapes of empty arrays, too


def checksum(data: Any) -> int:
    """Return the CRC-32 of an array's bytes, in one piece or several. Raises TypeError for anything
    else."""
    result = 0
    for piece in data if type(data) is list else [data]:
        result = zlib.crc32(piece, result)
    return result


def entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree that may be damaged anywhere, each with its name; nothing is
    checked."""
    yield from _numbered("parameter", tree["parameters"])
    yield from _numbered("gradient", tree.get(GRADIENTS, {}))
    for slot, layers in tree["state"].items():
        yield from _numbered(f"state {slot!r}", layers)


def _numbered(kind: str, layers: Any) -> Iterator[tuple[str, Any]]:
    for layer, arrays in layers.items():
        for number, entry in enumerate(arrays):
            yield f"{kind} {number} of layer {layer!r}", entry
