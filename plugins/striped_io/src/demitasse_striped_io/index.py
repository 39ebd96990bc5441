"""A striped set's index: what the records are, where they are, and their checksums.

A set is a folder with ``index.json``, a table and the stripes. The stripes may also be in folders of
their own (disks, mount points). Records are numbered from 0 and placed in blocks, never across two.
Block b is in stripe b mod S, at b // S times the block's size. swCaffe's data is laid out in the same
way over disk arrays (V.B: 32 arrays, blocks of 256 MB), there by the file system, here over any folders.

The table consists of columns, one after the other: ``xxh64`` (uint64, of each record); for records of
varying length, ``offset`` (int64) and ``length`` (int64), where the offset counts through all blocks as
if they were in one file; and then the fields that are too small to be read from a stripe one by one,
such as the label.

Nothing in an index is trusted: it contains its own checksum and the table's, and every claim is compared
with the files.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, Field, is_file, is_folder, is_there, nearest_path, replacing

FORMAT, VERSION = "demitasse striped set", 1
INDEX = "index.json"
STRIPES, BLOCK = 32, 256 << 20
"""The paper's values (swCaffe, V.B)."""
RUN = 256
"""The default length of a run in block order, in samples: the paper's mini-batch of a process."""
LARGEST_INDEX = 1 << 24
JOURNAL = ".writing"
"""A file in a set's folder that records, while the set is being written, what has been written."""
FORMS = ("raw", "encoded")
TAG = re.compile("[0-9a-f]{6}")
STRIPE = re.compile(rf"stripe-\d+-{TAG.pattern}\.bin$")
"""How stripes are named in the set's own folder, how their names end in other folders, and the part that
all names of one conversion share."""
BOOKKEEPING = ("xxh64", "offset", "length")


@dataclass(frozen=True)
class Index:
    """The contents of ``index.json``. ``main`` are the fields in the records, ``small`` those in the
    table. ``record`` is the number of bytes of a raw record, 0 if records differ in length. ``decoding``
    has the default options for decoding images."""

    form: str
    samples: int
    main: Mapping[str, Field]
    small: Mapping[str, Field]
    record: int
    block: int
    stripes: tuple[Path, ...]
    lengths: tuple[int, ...]
    run: int = RUN
    decoding: Mapping[str, Any] | None = None
    source: str = ""
    table: str = ""
    table_check: str = ""

    @property
    def in_block(self) -> int:
        """The number of records in a full block, for records of fixed size."""
        return self.block // self.record

    def columns(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """The table's columns: name, element type, shape."""
        book: list[tuple[str, np.dtype[Any]]] = [("xxh64", np.dtype("<u8"))]
        if not self.record:
            book += [("offset", np.dtype("<i8")), ("length", np.dtype("<i8"))]
        return [(name, kind, (self.samples,)) for name, kind in book] + [
            (name, np.dtype(f.dtype).newbyteorder("<"), (self.samples, *f.shape))
            for name, f in self.small.items()
        ]

    def table_bytes(self) -> int:
        return sum(kind.itemsize * math.prod(shape) for _, kind, shape in self.columns())


def record_bytes(fields: Mapping[str, Field]) -> int:
    """Return the number of bytes of a raw record with these fields."""
    return sum(np.dtype(f.dtype).itemsize * math.prod(f.shape) for f in fields.values())


def is_set(path: Path) -> bool:
    """Whether a path is a striped set (its folder or its index). Cheap: reads 512 bytes."""
    file = path / INDEX if is_folder(path) else path
    if file.name != INDEX or not is_file(file):
        return False
    with file.open("rb") as opened:
        return FORMAT.encode() in opened.read(512)


def write_index(folder: Path, index: Index) -> None:
    """Write the index, whole or not at all; with it the set comes into being. Raises OSError."""
    home = folder.absolute()
    where = [p.absolute() for p in index.stripes]
    inside = [os.path.relpath(p, home) if p.is_relative_to(home) else str(p) for p in where]
    body = {
        "format": FORMAT,
        "version": VERSION,
        "form": index.form,
        "samples": index.samples,
        "main": {name: [list(f.shape), f.dtype] for name, f in index.main.items()},
        "small": {name: [list(f.shape), f.dtype] for name, f in index.small.items()},
        "record": index.record,
        "block": index.block,
        "stripes": [
            {"path": path, "bytes": length} for path, length in zip(inside, index.lengths, strict=True)
        ],
        "run": index.run,
        "decoding": dict(index.decoding or {}),
        "source": index.source,
        "table": {"path": index.table, "bytes": index.table_bytes(), "xxh64": index.table_check},
    }
    body["crc32"] = f"{_crc(body):08x}"
    written_whole(folder / INDEX, (json.dumps(body, indent=1) + "\n").encode())


def written_whole(path: Path, data: bytes) -> None:
    """Write a file with these bytes and flush it to disk; if that fails, it is as before. Raises
    OSError."""
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _crc(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def read_index(path: Path) -> Index:
    """Read the index of the set at ``path`` (its folder, or the index). Raises DataError if it is not an
    index, is damaged, has another version, or makes impossible claims."""
    file = path if path.name == INDEX else path / INDEX
    folder = file.parent
    try:
        if file.stat().st_size > LARGEST_INDEX:
            raise DataError(f"{file}: is too long for an index ({file.stat().st_size:,} bytes)")
        body = json.loads(file.read_bytes())
    except OSError as error:
        hint = nearest_path(folder)
        if (folder / JOURNAL).exists():
            hint = "; its writing was interrupted: convert again to continue"
        raise DataError(f"{path}: is not a striped set: {file}: {error.strerror}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is damaged: it is not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DataError(f"{file}: is not the index of a striped set")
    if body.get("version") != VERSION:
        raise DataError(f"{file}: is of version {body.get('version')} (supported: {VERSION})")
    said = body.pop("crc32", None)
    if said != f"{_crc(body):08x}":
        raise DataError(f"{file}: is damaged: its checksum is {_crc(body):08x}, but it says {said}")
    try:
        index = _parsed(body, folder)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(f"{file}: is not a complete index: {type(error).__name__}: {error}") from error
    _check(index, file)
    return index


def _parsed(body: Mapping[str, Any], folder: Path) -> Index:
    def fields(name: str) -> dict[str, Field]:
        return {
            str(key): Field(tuple(int(n) for n in shape), np.dtype(str(kind)).name)
            for key, (shape, kind) in body[name].items()
        }

    stripes = body["stripes"]
    return Index(
        form=str(body["form"]),
        samples=int(body["samples"]),
        main=fields("main"),
        small=fields("small"),
        record=int(body["record"]),
        block=int(body["block"]),
        stripes=tuple(_found(folder, str(each["path"])) for each in stripes),
        lengths=tuple(int(each["bytes"]) for each in stripes),
        run=int(body["run"]),
        decoding=dict(body["decoding"]),
        source=str(body["source"]),
        table=Path(str(body["table"]["path"])).name,
        table_check=str(body["table"]["xxh64"]),
    )


def _found(folder: Path, named: str) -> Path:
    """Return a stripe's path: where it was written or, if it has been moved, in the set's folder."""
    path = folder / named
    if Path(named).is_absolute() and not is_there(path) and is_there(beside := folder / path.name):
        return beside
    return path


def _check(index: Index, file: Path) -> None:
    """Raise DataError for anything that our writer would not write."""
    wrong = ""
    every = [*index.main.values(), *index.small.values()]
    if index.form not in FORMS:
        wrong = f"form {index.form!r} (valid: {', '.join(FORMS)})"
    elif index.samples < 1 or index.block < 1 or index.run < 1 or not index.stripes:
        wrong = "no samples, blocks, runs or stripes"
    elif not index.main or set(index.main) & set(index.small) or set(index.small) & set(BOOKKEEPING):
        wrong = f"fields {', '.join([*index.main, *index.small])}"
    elif any(np.dtype(f.dtype).kind not in "biuf" or any(n < 1 for n in f.shape) for f in every):
        wrong = "a field without elements, or whose elements are not numbers"
    elif index.form == "raw" and not 0 < index.record == record_bytes(index.main) <= index.block:
        wrong = f"records of {index.record:,} bytes in blocks of {index.block:,}"
    elif index.form == "encoded" and index.record:
        wrong = f"encoded records of a fixed size, {index.record:,} bytes"
    if wrong:
        raise DataError(f"{file}: has {wrong}")


def read_table(folder: Path, index: Index) -> dict[str, np.ndarray]:
    """Return the table's columns by name. Raises DataError if it is missing, truncated or damaged."""
    from demitasse_striped_io.loops import xxh64

    file = folder / index.table
    try:
        data = np.fromfile(file, np.uint8) if file.stat().st_size == index.table_bytes() else None
        found = file.stat().st_size
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    if data is None:
        raise DataError(f"{file}: has {found:,} bytes, but the index says {index.table_bytes():,}")
    if (check := f"{int(xxh64(data)):016x}") != index.table_check:
        raise DataError(
            f"{file}: is damaged: its checksum is {check}, but the index says {index.table_check}"
        )
    table, at = {}, 0
    for name, kind, shape in index.columns():
        length = kind.itemsize * math.prod(shape)
        # A column begins wherever the one before it ends; copying it aligns it.
        table[name] = (
            data[at : at + length]
            .copy()
            .view(kind)
            .reshape(shape)
            .astype(kind.newbyteorder("="), copy=False)
        )
        at += length
    if not index.record:
        _check_places(table, index, file)
    return table


def _check_places(table: Mapping[str, np.ndarray], index: Index, file: Path) -> None:
    offset, length = table["offset"], table["length"]
    ends = offset + length
    wrong = (length < 1) | (offset < 0) | (offset // index.block != (ends - 1) // index.block)
    wrong[1:] |= offset[1:] < ends[:-1]
    if wrong.any():
        raise DataError(f"{file}: sample {int(np.argmax(wrong)):,} is at an impossible place")
