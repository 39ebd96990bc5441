"""Files of samples as other libraries write them, or byte by byte, and what reads them, for tests."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import lmdb
import numpy as np

from demitasse import DataSpec
from demitasse_caffe.schema import schema
from demitasse_datasets.plugin import data_source


def photo(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours, so that JPEG keeps them nearly."""
    rows, columns = np.mgrid[0:height, 0:width]
    parts = [np.sin(rows / (7 + c) + seed) + np.cos(columns / (5 + c)) for c in range(channels)]
    return np.uint8(np.clip(60 * np.stack(parts, -1) + 128, 0, 255))


def image_list(folder: Path, count: int = 6, same: bool = False) -> Path:
    """A list of PNG files with the labels 10, 11, ...; they have several sizes unless ``same``."""
    lines = []
    for n in range(count):
        size = (24, 30) if same else (24 + n, 30 - n)
        cv2.imwrite(str(folder / f"{n}.png"), photo(*size, seed=n))
        lines.append(f"{n}.png {10 + n}\n")
    (folder / "list.txt").write_text("".join(lines))
    return folder / "list.txt"


def packed(pixels: np.ndarray, ending: str = ".png") -> bytes:
    return bytes(cv2.imencode(ending, pixels)[1])


def proto(**fields: Any) -> bytes:
    """A record as protobuf writes it."""
    message = schema({}).message("Datum")
    floats = fields.pop("float_data", ())
    for name, value in fields.items():
        setattr(message, name, value)
    message.float_data.extend(floats)
    return bytes(message.SerializeToString())


def database(folder: Path, records: dict[bytes, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 26) as made, made.begin(write=True) as transaction:
        for key, value in records.items():
            transaction.put(key, value)
    return folder


@contextlib.contextmanager
def opened(source: Any, kind: str | None = None, **options: Any) -> Iterator[Any]:
    shuffle, seed = options.pop("shuffle", False), options.pop("seed", 0)
    found = data_source(spec=DataSpec(source, kind, shuffle, seed, options))
    assert found is not None
    try:
        yield found
    finally:
        found.close()


def read(source: Any, count: int, first: int = 0) -> dict[str, np.ndarray]:
    out = {name: np.empty((count, *f.shape), f.dtype) for name, f in source.fields.items()}
    stream = source.stream(first, count, count)
    try:
        stream.read(out)
    finally:
        stream.close()
    return out


def records(count: int = 7) -> dict[bytes, bytes]:
    """Raw records under keys that are not written in order."""
    return {
        f"{number:08d}_x{number}".encode(): proto(
            channels=2, height=3, width=4, data=bytes(range(number, number + 24)), label=number - 3
        )
        for number in reversed(range(count))
    }


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def log_of(*contents: bytes) -> bytes:
    """Records that each fit what is left of a block of 32 KiB (checksums are not read)."""
    return b"".join(b"\0\0\0\0" + struct.pack("<HB", len(c), 1) + c for c in contents)


def block_of(items: list[tuple[bytes, bytes]]) -> bytes:
    """Entries that share no prefix, with one restart."""
    rows = b"".join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in items)
    return rows + struct.pack("<II", 0, 1)


def table_of(entries: dict[bytes, bytes], each: int = 2) -> bytes:
    """An uncompressed sorted table, byte by byte, with some entries to a block."""

    data, index, items = b"", [], sorted(entries.items())
    for start in range(0, len(items), each):
        some = [
            (key + struct.pack("<Q", 9 << 8 | 1), value) for key, value in items[start : start + each]
        ]
        made = block_of(some)
        index.append((some[-1][0], varint(len(data)) + varint(len(made))))
        data += made + b"\0" + b"\0" * 4
    meta, listing = block_of([]), block_of(index)
    ends = varint(len(data)) + varint(len(meta))
    data += meta + b"\0" * 5
    ends += varint(len(data)) + varint(len(listing))
    data += listing + b"\0" * 5
    return data + ends.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def small_leveldb(folder: Path) -> Path:
    """A database of one table and one log, written here."""
    folder.mkdir()
    entries = records(6)
    names = sorted(entries)
    (folder / "CURRENT").write_bytes(b"MANIFEST-000002\n")
    key = varint(3) + b"abc"
    file = b"\x07" + varint(0) + varint(5) + varint(99) + key + key
    comparator = b"leveldb.BytewiseComparator"
    edit = b"\x01" + varint(len(comparator)) + comparator + b"\x02\x06\x03\x07\x04\x14" + file
    (folder / "MANIFEST-000002").write_bytes(log_of(edit))
    (folder / "000005.ldb").write_bytes(table_of({name: entries[name] for name in names[:5]}))
    put = b"\x01" + varint(len(names[5])) + names[5] + varint(len(entries[names[5]])) + entries[names[5]]
    drop = b"\0" + varint(len(names[0])) + names[0]
    (folder / "000006.log").write_bytes(log_of(struct.pack("<QI", 20, 2) + put + drop))
    return folder


def hdf5_files(folder: Path, rows: tuple[int, ...]) -> Path:
    start = 0
    for number, count in enumerate(rows):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            values = np.arange(start, start + count)
            file["data"] = (values[:, None, None] + np.zeros((1, 2, 3))).astype(np.float32)
            file.create_dataset("label", data=values, compression="gzip" if number % 2 else None)
        start += count
    path = folder / "list.txt"
    path.write_text("".join(f"{folder}/{number}.h5\n" for number in range(len(rows))))
    return path
