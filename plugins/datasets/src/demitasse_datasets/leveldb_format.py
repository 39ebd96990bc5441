"""LevelDB's files: records of logs, edits of a manifest, batches of writes, blocks of sorted tables.

Follows doc/log_format.md, doc/table_format.md and doc/impl.md of github.com/google/leveldb. Checksums
(CRC-32C) are not verified, as LevelDB itself does not by default; every length is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import IO, Any

from demitasse import DataError
from demitasse_datasets.datum import varint

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER, TRAILER = 48, 5
LOG_BLOCK, LOG_HEADER = 1 << 15, 7
COMPARATOR = b"leveldb.BytewiseComparator"
DELETED, PUT = 0, 1
LARGEST_RATIO = 22
"""Snappy expands 3 bytes to at most 64."""
PEEK = 4096
"""How many bytes of a large block are read to see whether it holds a single entry."""

_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RAW, _SNAPPY = 0, 1
_EDIT_NUMBERS = {2: "log", 3: "next file", 4: "last sequence", 9: "previous log"}


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a log, each with its number. A record at the end that a crash left unfinished
    is skipped, as LevelDB does. Raises DataError for a damaged record before it."""
    at, number, parts = 0, 0, list[bytes]()
    while at + LOG_HEADER <= len(data):
        left = LOG_BLOCK - at % LOG_BLOCK
        if left < LOG_HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if not kind and not length:  # space allocated in advance and never filled
            at += left
            continue
        if LOG_HEADER + length > left or kind > _LAST or not kind:
            raise DataError(f"record {number} is damaged at byte {at}: kind {kind}, {length} bytes")
        if at + LOG_HEADER + length > len(data):
            return
        if (kind in (_FULL, _FIRST)) == bool(parts):
            raise DataError(f"record {number} is damaged at byte {at}: a piece out of order")
        parts.append(data[at + LOG_HEADER : at + LOG_HEADER + length])
        at += LOG_HEADER + length
        if kind in (_FULL, _LAST):
            yield number, b"".join(parts)
            number, parts = number + 1, []


def manifest(data: bytes) -> tuple[set[int], int]:
    """Return the numbers of the live tables, and of the first log whose writes are in none of them."""
    tables: set[tuple[int, int]] = set()
    log = 0
    for _, record in records(data):
        at = 0
        while at < len(record):
            tag, at = varint(record, at)
            if tag == 1:
                name, at = text(record, at)
                if name != COMPARATOR:
                    raise DataError(f"its keys are ordered by {name!r}, not {COMPARATOR!r}")
            elif tag in _EDIT_NUMBERS:
                value, at = varint(record, at)
                log = value if tag == 2 else log
            elif tag == 5:
                _, at = varint(record, at)
                _, at = text(record, at)
            elif tag in (6, 7):
                level, at = varint(record, at)
                number, at = varint(record, at)
                if tag == 6:
                    tables.discard((level, number))
                    continue
                _, at = varint(record, at)
                _, at = text(record, at)
                _, at = text(record, at)
                tables.add((level, number))
            else:
                raise DataError(f"an edit of unknown kind {tag}")
    return {number for _, number in tables}, log


def batch(record: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the writes of a log's record: key, sequence and kind (sequence * 256 + kind), and where in
    the record its value begins and ends."""
    if len(record) < 12:
        raise DataError(f"a batch of {len(record)} bytes, less than its header")
    sequence = int.from_bytes(record[:8], "little")
    at = 12
    while at < len(record):
        kind = record[at]
        if kind not in (DELETED, PUT):
            raise DataError(f"a write of unknown kind {kind}")
        key, at = text(record, at + 1)
        start = stop = at
        if kind == PUT:
            size, start = varint(record, at)
            stop = at = start + size
            if at > len(record):
                raise DataError(f"a value of {size:,} bytes in a batch of {len(record):,}")
        yield key, sequence << 8 | kind, start, stop
        sequence += 1


def table(file: IO[bytes]) -> Iterator[tuple[bytes, int, int, int, int, int]]:
    """Yield the entries of a table: key, sequence and kind, its block's position and length in the file,
    and where in the block's contents its value begins and ends."""
    length = file.seek(0, 2)
    file.seek(max(0, length - FOOTER))
    footer = file.read()
    if len(footer) < FOOTER or footer[-8:] != MAGIC:
        raise DataError("is not a LevelDB table, or is cut off: it does not end as one")
    _, at = varint(footer, 0)
    _, at = varint(footer, at)
    place, at = varint(footer, at)
    extent, at = varint(footer, at)
    index, after = block(file, place, extent), 0
    for _, start, stop in entries(index):
        place, at = varint(index[start:stop], 0)
        extent, _ = varint(index[start:stop], at)
        # Blocks must be in order and must not overlap, so that their sum is limited by the file.
        if place < after:
            raise DataError(f"its index has a block at byte {place} after one that ends at {after}")
        after = place + extent
        if one := single(file, place, extent):
            rows: Iterator[tuple[bytes, int, int]] = iter((one,))
        else:
            rows = entries(block(file, place, extent))
        for key, begin, end in rows:
            if len(key) < 8:
                raise DataError(f"a key of {len(key)} bytes in the block at byte {place}")
            yield key[:-8], int.from_bytes(key[-8:], "little"), place, extent, begin, end


def block(file: IO[bytes], place: int, extent: int) -> bytes:
    """Return the decompressed contents of a table's block."""
    length = file.seek(0, 2)
    if place + extent + TRAILER > length:
        raise DataError(
            f"a block of {extent:,} bytes at {place:,} in a file of {length:,}; is it cut off?"
        )
    file.seek(place)
    stored = file.read(extent + TRAILER)
    kind, contents = stored[extent], stored[:extent]
    if kind == _RAW:
        return contents
    if kind != _SNAPPY:
        raise DataError(f"the block at byte {place} has an unknown compression ({kind})")
    packer = cramjam()
    promised, _ = varint(contents, 0)
    if promised > LARGEST_RATIO * extent:
        raise DataError(f"the block at byte {place} claims {promised:,} bytes in {extent:,} of snappy")
    try:
        return bytes(packer.snappy.decompress_raw(contents))
    except packer.DecompressionError as error:
        raise DataError(f"the block at byte {place} is damaged: {error}") from error


def single(file: IO[bytes], place: int, extent: int) -> tuple[bytes, int, int] | None:
    """Return the only entry of a block, as ``entries`` does, from the block's first bytes; None if there
    are more. A database of images has one entry per block, so that its keys are listed without reading
    the images."""
    if extent < 2 * PEEK:
        return None
    file.seek(place)
    start = file.read(PEEK)
    file.seek(place + extent)
    kind = file.read(1)
    length = extent
    if kind == bytes([_SNAPPY]):
        length, at = varint(start, 0)
        start = _unpacked_start(start[at:])
    elif kind != bytes([_RAW]):
        return None
    shared, at = varint(start, 0)
    own, at = varint(start, at)
    size, at = varint(start, at)
    # After the entry come one restart and the number of restarts, four bytes each.
    if shared or at + own > len(start) or at + own + size + 8 != length:
        return None
    return start[at : at + own], at + own, at + own + size


def _unpacked_start(packed: bytes) -> bytes:
    """Decompress the first bytes (some hundred) of snappy data that is itself truncated."""
    made, at = bytearray(), 0
    while at + 5 <= len(packed) and len(made) < PEEK // 8:
        tag, kind = packed[at], packed[at] & 3
        at += 1
        if kind == 0:
            count, extra = tag >> 2, max(0, (tag >> 2) - 59)
            if extra:
                count = int.from_bytes(packed[at : at + extra], "little")
                at += extra
            made += packed[at : at + count + 1]
            at += count + 1
            continue
        width = (1, 2, 4)[kind - 1]
        back = int.from_bytes(packed[at : at + width], "little")
        count = (tag >> 2) + 1
        if kind == 1:
            back, count = back | tag >> 5 << 8, (tag >> 2 & 7) + 4
        at += width
        if not 0 < back <= len(made):
            break
        for _ in range(count):
            made.append(made[-back])
    return bytes(made)


def entries(contents: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the entries of a block: key, and where its value begins and ends."""
    restarts = int.from_bytes(contents[-4:], "little")
    limit = len(contents) - 4 * (restarts + 1)
    if len(contents) < 4 or limit < 0:
        raise DataError(f"a block of {len(contents)} bytes with {restarts} restarts")
    key, at = b"", 0
    while at < limit:
        shared, at = varint(contents, at)
        own, at = varint(contents, at)
        size, at = varint(contents, at)
        if shared > len(key) or at + own + size > limit:
            raise DataError(f"an entry at byte {at} of a block goes beyond it")
        key = key[:shared] + contents[at : at + own]
        yield key, at + own, at + own + size
        at += own + size


def text(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have their length in front, and the position after them."""
    length, at = varint(data, at)
    if at + length > len(data):
        raise DataError(f"{length:,} bytes promised at byte {at} of {len(data):,}")
    return data[at : at + length], at + length


@cache
def cramjam() -> Any:
    """Return the module that decompresses. Raises DataError that says how to install it."""
    try:
        import cramjam as module
    except ImportError as error:
        raise DataError(
            f"the package cramjam is needed to unpack snappy ({error}); pip install cramjam"
        ) from error
    return module
