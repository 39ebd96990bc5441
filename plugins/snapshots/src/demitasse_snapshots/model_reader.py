"""Reading a snapshot: nothing is believed before the checksum of the whole file is right."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgpack
import numpy as np

from demitasse import ModelError, NetDefinition, SnapshotError, Solver, Weights
from demitasse_snapshots.layout import (
    ARRAY,
    DEEPEST,
    DIGEST,
    GRADIENTS,
    HEADER,
    LARGEST_RANK,
    MAGIC,
    PARTS,
    TYPES,
    VERSION,
    Header,
)

FOREIGN = {
    b"\x89HDF": "HDF5, as Caffe's .h5 weights",
    b"PK\x03\x04": "a zip archive, as .npz or PyTorch's .pt",
    b"\x93NUMPY": "a NumPy array",
    b"\x80": "a Python pickle",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"\x89PNG": "a PNG image",
    b"\x89DMT": "a snapshot that was copied as text",
}


class SnapshotReader:
    """A snapshot file, opened. Implements ``demitasse.ModelReader``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = self._header()

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """A snapshot has no net: raises ModelError."""
        raise self._lacking("net")

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """A snapshot has no solver: raises ModelError."""
        raise self._lacking("solver")

    def weights(self) -> Weights:
        """Parameters, iteration, solver state and record, as they were written.

        Raises SnapshotError when the file is damaged: it names the damaged array where it can.
        """
        return _weights(self.path, self._body())

    def _lacking(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is a snapshot: it has weights and solver state, no {what}; "
            f"give the {what}'s own file, and this one as weights or to resume from"
        )

    def _header(self) -> Header:
        try:
            with self.path.open("rb") as file:
                start = file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(start) < len(MAGIC) and MAGIC.startswith(start) and start:
            raise SnapshotError(f"{self.path} is cut off: it has {len(start)} bytes")
        if not start.startswith(MAGIC):
            raise SnapshotError(f"{self.path} is not a Demitasse snapshot; it {_looks_like(start)}")
        if len(start) < HEADER.size:
            raise SnapshotError(
                f"{self.path} is cut off in its header: it has {len(start)} bytes of {HEADER.size}"
            )
        _, version, length, checksum = HEADER.unpack(start)
        if zlib.crc32(start[:-4]) != checksum:
            raise SnapshotError(f"{self.path} is damaged: its header does not match its checksum")
        if version != VERSION:
            raise SnapshotError(
                f"{self.path} has format version {version}; this demitasse-snapshots reads version "
                f"{VERSION}" + ("; install a newer one" if version > VERSION else "")
            )
        expected = HEADER.size + length + DIGEST
        if size != expected:
            raise SnapshotError(
                f"{self.path} {'is cut off' if size < expected else 'has bytes after its end'}: "
                f"its header says {expected:,} bytes, it has {size:,}"
            )
        return Header(version, length)

    def _body(self) -> Any:
        """The body unpacked; arrays are mappings still."""
        expected = HEADER.size + self.header.length + DIGEST
        try:
            content = memoryview(self.path.read_bytes())
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(content) != expected or content[: HEADER.size] != self.header.pack():
            raise SnapshotError(f"{self.path} was changed while it was read")
        body = content[HEADER.size : -DIGEST]
        if hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
            raise SnapshotError(
                f"{self.path} is damaged: {_damaged_part(body)} does not match its checksum; "
                f"use another snapshot"
            )
        try:
            return _unpacked(body)
        except ValueError as error:
            raise SnapshotError(f"{self.path}: its body is not a snapshot's: {error}") from error


def _unpacked(body: memoryview) -> Any:
    """msgpack's value, with every length bound by what is there. Raises ValueError."""
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_str_len=len(body),
            max_bin_len=len(body),
            max_array_len=len(body),
            max_map_len=len(body),
            max_ext_len=0,
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error  # a list for a key, and the like


def _damaged_part(body: memoryview) -> str:
    """The array whose own checksum is wrong, or else all that it can be."""
    try:
        tree = _unpacked(body)
        for where, entry in _entries(tree):
            if zlib.crc32(entry["data"]) != entry["crc32"]:
                return where
    except (ValueError, TypeError, KeyError, AttributeError):
        # What is damaged is the structure itself, and may unpack to anything.
        return "its structure"
    return "its structure, record or checksum"


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    for layer, entries in tree["parameters"].items():
        for number, entry in enumerate(entries):
            yield f"parameter {number} of layer {layer!r}", entry
    for layer, entries in tree.get(GRADIENTS, {}).items():
        for number, entry in enumerate(entries):
            yield f"gradient {number} of layer {layer!r}", entry
    for slot, layers in tree["state"].items():
        for layer, entries in layers.items():
            for number, entry in enumerate(entries):
                yield f"state {slot!r} {number} of layer {layer!r}", entry


def _looks_like(start: bytes) -> str:
    if not start:
        return "is empty"
    for magic, name in FOREIGN.items():
        if start.startswith(magic):
            return f"looks like {name}"
    if start.startswith(b"\x0a") and not start.isascii():
        return "looks like a binary Caffe model"
    text = all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)
    return f"{'looks like text' if text else 'begins with the bytes'} {_shown(start[:8], text)}"


def _shown(start: bytes, text: bool) -> str:
    return repr(start.decode("ascii")) if text else start.hex(" ")


def _weights(path: Path, tree: Any) -> Weights:
    """Weights from the body's tree, every type checked. The tree is emptied on the way, so that the
    arrays' bytes are not in memory twice."""

    def wrong(where: str, found: object, valid: str) -> NoReturn:
        shown = repr(found)
        shown = shown if len(shown) < 60 else f"a {type(found).__name__}"
        raise SnapshotError(f"{path}: {where} is {shown}, not {valid}")

    def mapping(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict or any(type(key) is not str for key in value):
            wrong(where, value, "a mapping with names for keys")
        return value

    def layers(value: Any, where: str) -> dict[str, list[np.ndarray]]:
        result = {}
        for layer, entries in mapping(value, where).items():
            if type(entries) is not list:
                wrong(f"{where}[{layer!r}]", entries, "a list of arrays")
            result[layer] = [
                array(entry, f"{where}[{layer!r}][{number}]") for number, entry in enumerate(entries)
            ]
        return result

    def array(entry: Any, where: str) -> np.ndarray:
        if set(mapping(entry, where)) != set(ARRAY):
            wrong(where, sorted(entry), f"an array ({', '.join(ARRAY)})")
        dtype, shape, data = entry["dtype"], entry["shape"], entry.pop("data")
        if type(dtype) is not str or dtype not in TYPES:
            wrong(f"{where}.dtype", dtype, "a number's type")
        if (
            type(shape) is not list
            or len(shape) > LARGEST_RANK
            or any(type(n) is not int or n < 0 for n in shape)
        ):
            wrong(f"{where}.shape", shape, f"at most {LARGEST_RANK} lengths")
        if type(data) is not bytes or len(data) != math.prod(shape) * np.dtype(dtype).itemsize:
            wrong(f"{where}.data", data, f"the bytes of a {dtype} array of shape {tuple(shape)}")
        return np.frombuffer(data, dtype).reshape(shape).copy()

    def plain(value: Any, where: str, depth: int) -> Any:
        if depth > DEEPEST:
            wrong(where, type(value), f"nested at most {DEEPEST} deep")
        if type(value) is dict:
            for key, item in value.items():
                if type(key) not in (str, int):
                    wrong(f"a key of {where}", key, "a string or an integer")
                plain(item, f"{where}[{key!r}]", depth + 1)
        elif type(value) is list:
            for number, item in enumerate(value):
                plain(item, f"{where}[{number}]", depth + 1)
        elif value is not None and type(value) not in (str, int, float, bool, bytes):
            wrong(where, value, "a plain value")
        return value

    if type(tree) is not dict or set(tree) - {GRADIENTS} != set(PARTS):
        wrong("its body", tree, f"a mapping with {', '.join(PARTS)}")
    if tree["iteration"] is not None and type(tree["iteration"]) is not int:
        wrong("iteration", tree["iteration"], "an integer or nothing")
    return Weights(
        parameters=layers(tree["parameters"], "parameters"),
        iteration=tree["iteration"],
        state={
            slot: layers(value, f"state[{slot!r}]")
            for slot, value in mapping(tree["state"], "state").items()
        },
        record=plain(mapping(tree["record"], "record"), "record", 0),
        gradients=layers(tree.get(GRADIENTS, {}), GRADIENTS),
    )
