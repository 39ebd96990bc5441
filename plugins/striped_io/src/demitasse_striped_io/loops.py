"""Compiled loops: reading pieces of stripes into a batch, checking them, and transforming samples.

All run without the GIL. System calls are made from compiled code: a mini-batch of scattered samples
takes hundreds of them, and each call from Python would take longer than the kernel needs to copy a small
sample. They are in one file because numba recompiles a cached function when its own file changes, but
not when a function changes that it calls in another file. (shuffling.py's loop calls none of them.)
"""

from __future__ import annotations

import os
import time
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse import compiled_loop

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

READ, CUT_OFF, FAILED, DAMAGED, LATE = 0, 1, 2, 3, 4
"""The outcome for a piece: it was read; its stripe ended before it; the system could not read it; its
checksum differs from when it was written; it did not arrive in time (see stripe_queues.py)."""

PAGE = 4096
"""Direct I/O requires offsets, lengths and addresses to be multiples of this."""
LINE = 64
SMALL, PIECE = 1 << 14, 256
"""Records of up to so many bytes are copied in pieces, and the length of a piece."""
CHECKED_AT_ONCE = 1 << 18
"""So many bytes are read before they are checked, so that they are still in the cache then."""
AT_ONCE = 1 << 30
"""Bytes of the longest single read: Linux reads at most 2 GiB minus a page at once."""

_pread: Any = types.ExternalFunction(
    "pread", types.intp(types.intc, types.intp, types.uintp, types.int64)
)
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
_advise: Any = types.ExternalFunction(
    "posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc)
)
if not hasattr(os, "posix_fadvise"):
    # macOS lacks posix_fadvise. Compiling a loop that calls a missing function would end the process.
    @compiled_loop
    def _advise(file: Any, first: Any, length: Any, kind: Any) -> None:
        """Do nothing: the system cannot be asked."""


_clock: Any = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.intp))
_MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 1))
_WILL_NEED = 3

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@compiled_loop
def _rotated(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@compiled_loop
def _round(lane: Any, word: Any) -> Any:
    return _rotated(lane + word * _P2, 31) * _P1


@compiled_loop
def xxh64(data: Array) -> Any:
    """Return the checksum XXH64 (seed 0) of contiguous bytes, uint64. 20 GB/s per core on bytes in the
    cache; zlib's CRC32 reaches a tenth of that. Specification: xxHash, doc/xxhash_spec.md."""
    size = len(data)
    at = 0
    if size >= 32:
        words = data[: size // 32 * 32].view(np.uint64)
        a, b, c, d = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        for i in range(0, len(words), 4):
            four = words[i : i + 4]
            a, b = _round(a, four[0]), _round(b, four[1])
            c, d = _round(c, four[2]), _round(d, four[3])
        at = size // 32 * 32
        total = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        for lane in (a, b, c, d):
            total = (total ^ _round(np.uint64(0), lane)) * _P1 + _P4
    else:
        total = _P5
    total += np.uint64(size)
    while at + 8 <= size:
        word = data[at : at + 8].view(np.uint64)[0]
        total = _rotated(total ^ _round(np.uint64(0), word), 27) * _P1 + _P4
        at += 8
    if at + 4 <= size:
        half = np.uint64(data[at : at + 4].view(np.uint32)[0])
        total = _rotated(total ^ (half * _P1), 23) * _P2 + _P3
        at += 4
    while at < size:
        total = _rotated(total ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))


@compiled_loop
def checksums(data: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Compute XXH64 of each of several records in ``data``."""
    for i in range(len(starts)):
        out[i] = xxh64(data[starts[i] : starts[i] + lengths[i]])


@compiled_loop
def _now(clock: Array) -> Any:
    _clock(_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@compiled_loop
def _whole(file: Any, address: Any, length: Any, offset: Any) -> Any:
    """Read ``length`` bytes, with as many calls as it takes; return READ, CUT_OFF or FAILED."""
    done = np.int64(0)
    while done < length:
        got = _pread(file, address + done, min(length - done, AT_ONCE), offset + done)
        if got == 0:
            return CUT_OFF
        if got < 0:
            return FAILED
        done += got
    return READ


@compiled_loop
def _direct(file: Any, out: Any, length: Any, offset: Any, bounce: Array) -> Any:
    """The same, bypassing the page cache: straight to the destination if everything is aligned,
    otherwise in portions through ``bounce``, from its first aligned address on and in whole pages."""
    if offset % PAGE == 0 and length % PAGE == 0 and out % PAGE == 0:
        return _whole(file, out, length, offset)
    start = (bounce.ctypes.data + PAGE - 1) // PAGE * PAGE
    room = (bounce.ctypes.data + len(bounce) - start) // PAGE * PAGE
    done = np.int64(0)
    while done < length:
        lead = (offset + done) % PAGE
        wanted = min(room - lead, length - done)
        pages = (lead + wanted + PAGE - 1) // PAGE * PAGE
        filled = np.int64(0)
        while filled < lead + wanted:
            got = _pread(file, start + filled, pages - filled, offset + done - lead + filled)
            if got < 0:
                return FAILED
            filled += got
            if filled % PAGE or got == 0:  # the end of the file
                break
        if filled < lead + wanted:
            return CUT_OFF
        _memcpy(out + done, start + lead, wanted)
        done += wanted
    return READ


@compiled_loop
def _read(file: Any, out: Any, length: Any, offset: Any, bounce: Array) -> Any:
    if file < 0:
        return FAILED
    if len(bounce):
        return _direct(file, out, length, offset, bounce)
    return _whole(file, out, length, offset)


@compiled_loop
def fetch(
    files: Array,
    pieces: Array,
    out: Array,
    checks: Array,
    verify: Array,
    status: Array,
    tally: Array,
    bounce: Array,
) -> int:
    """Read pieces of stripes into ``out`` (uint8, flat); return how many could not be read.

    ``pieces`` (n, 4) int64: stripe, offset in it, length, position in ``out``. Pieces that are adjacent
    both in the stripe and in ``out`` are read at once. If ``verify`` is not 0, the piece's XXH64 must
    equal the one in ``checks``. ``status`` gets the outcome for each piece. ``tally`` (stripes, 4) int64
    counts reads, bytes, nanoseconds and pieces by stripe. ``files`` are descriptors, -1 for a missing
    stripe. With a ``bounce`` of some pages, the files are read directly (O_DIRECT).
    """
    clock = np.zeros(2, np.int64)
    count = len(pieces)
    first = failed = 0
    before = _now(clock)
    while first < count:
        stripe, offset, length, place = pieces[first]
        checking = verify[first] != 0
        last = first + 1
        while (
            last < count
            and pieces[last, 0] == stripe
            and pieces[last, 1] == offset + length
            and pieces[last, 3] == place + length
            and (not checking or length + pieces[last, 2] <= CHECKED_AT_ONCE)
        ):
            length += pieces[last, 2]
            checking = checking or verify[last] != 0
            last += 1
        done = _read(files[stripe], out.ctypes.data + place, length, offset, bounce)
        for i in range(first, last):
            at = pieces[i, 3]
            if done != READ and last - first > 1:  # find out which of them it was
                address = out.ctypes.data + at
                status[i] = _read(files[stripe], address, pieces[i, 2], pieces[i, 1], bounce)
            else:
                status[i] = done
            checked = out[at : at + pieces[i, 2]]
            if status[i] == READ and verify[i] != 0 and xxh64(checked) != checks[i]:
                status[i] = DAMAGED
            if status[i] != READ:
                failed += 1
        after = _now(clock)
        tally[stripe, 0] += 1
        tally[stripe, 1] += length
        tally[stripe, 2] += after - before
        tally[stripe, 3] += last - first
        before, first = after, last
    return failed


@compiled_loop
def advise(files: Array, pieces: Array) -> None:
    """Ask the system to bring pieces into its page cache soon."""
    for i in range(len(pieces)):
        if files[pieces[i, 0]] >= 0:
            _advise(files[pieces[i, 0]], pieces[i, 1], pieces[i, 2], _WILL_NEED)


@intrinsic
def _fetch_line(context: Any, address: Any) -> Any:
    """Prefetch the cache line of an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        asked = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        where = builder.inttoptr(arguments[0], pointer)
        builder.call(asked, [where, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


_prefetch: Any = _fetch_line


@compiled_loop
def _copy_from(addresses: Array, size: int, out: Array) -> None:
    """Copy records of ``size`` bytes at some addresses into ``out``, one after the other.

    A processor prefetches by itself only within a page. Therefore small records are copied in pieces,
    and after each piece, the same piece of the record after the next is prefetched. For a mini-batch of
    256 records of 3 KB, scattered over 150 MB, this takes one core of a Zen 5 41 us (38 from huge
    pages). It takes 50 us if whole records are prefetched one ahead, and 66 without prefetching;
    consecutive records take 28 us. Adjacent and large records are copied at once.
    """
    first, count = 0, len(addresses)
    target = out.ctypes.data
    while first < count:
        last = first + 1
        while last < count and addresses[last] == addresses[last - 1] + size:
            last += 1
        if last > first + 1 or size > SMALL:
            if last < count:
                for line in range(0, min(size, PAGE), LINE):
                    _prefetch(addresses[last] + line)
            _memcpy(target + first * size, addresses[first], (last - first) * size)
        else:
            later = addresses[min(first + 2, count - 1)]
            for begin in range(0, size, PIECE):
                end = min(begin + PIECE, size)
                for line in range(begin, end, LINE):
                    _prefetch(later + line)
                _memcpy(target + first * size + begin, addresses[first] + begin, end - begin)
        first = last


@compiled_loop
def gather(records: Array, numbers: Array, size: int, out: Array) -> None:
    """Copy records (flat uint8, each of ``size`` bytes) by number, one after the other."""
    _copy_from(records.ctypes.data + numbers * size, size, out)


@compiled_loop
def gather_mapped(
    maps: Array, geometry: Array, seen: Array, numbers: Array, out: Array, tally: Array
) -> bool:
    """Copy records by number from stripes that are mapped into memory at the addresses ``maps``.
    ``geometry`` is bytes of a record, records in a block, bytes of a block, stripes. Returns false, and
    copies nothing, if one of them is not among the ``seen``, which are known to exist and to be correct.
    The time is divided among stripes by their number of records."""
    size, in_block, block, stripes = geometry
    count = len(numbers)
    clock = np.zeros(2, np.int64)
    before = _now(clock)
    addresses = np.empty(count, np.int64)
    of_stripe = np.zeros(stripes, np.int64)
    for i in range(count):
        number = numbers[i]
        if seen[number] == 0:
            return False
        turn, stripe = divmod(number // in_block, stripes)
        addresses[i] = maps[stripe] + turn * block + number % in_block * size
        of_stripe[stripe] += 1
    _copy_from(addresses, size, out)
    spent = _now(clock) - before
    for stripe in range(stripes):
        tally[stripe, 0] += of_stripe[stripe]
        tally[stripe, 1] += of_stripe[stripe] * size
        tally[stripe, 2] += spent * of_stripe[stripe] // count
        tally[stripe, 3] += of_stripe[stripe]
    return True


@compiled_loop
def copy_mapped(maps: Array, pieces: Array, out: Array, tally: Array) -> None:
    """Copy pieces, as ``fetch`` does, from stripes that are mapped into memory at the addresses
    ``maps``; the pieces are known to exist and to be correct."""
    clock = np.zeros(2, np.int64)
    before = _now(clock)
    end = out.ctypes.data
    for i in range(len(pieces)):
        stripe, offset, length, place = pieces[i]
        if i + 1 < len(pieces):
            following = maps[pieces[i + 1, 0]] + pieces[i + 1, 1]
            for line in range(0, min(pieces[i + 1, 2], PAGE), LINE):
                _prefetch(following + line)
        _memcpy(end + place, maps[stripe] + offset, length)
        after = _now(clock)
        tally[stripe, 0] += 1
        tally[stripe, 1] += length
        tally[stripe, 2] += after - before
        tally[stripe, 3] += 1
        before = after


@compiled_loop
def transform(
    samples: Array, places: Array, mean: Array, whole_mean: bool, scale: Any, out: Array
) -> None:
    """Crop, subtract the mean, scale and mirror: from ``samples`` (n, channels, height, width) to
    ``out`` (n, channels, rows, columns) float32. ``places`` (n, 3) int64 are top, left and whether to
    mirror, for each sample. ``mean`` is (channels, height, width) float32 if ``whole_mean``, else
    (channels, 1, 1)."""
    rows, columns = out.shape[2], out.shape[3]
    factor = np.float32(scale)
    for n in range(len(samples)):
        top, left = places[n, 0], places[n, 1]
        for c in range(out.shape[1]):
            for r in range(rows):
                line = samples[n, c, top + r, left : left + columns]
                target = out[n, c, r]
                if whole_mean:
                    middle = mean[c, top + r, left : left + columns]
                    for x in range(columns):
                        target[x] = (np.float32(line[x]) - middle[x]) * factor
                else:
                    one = mean[c, 0, 0]
                    for x in range(columns):
                        target[x] = (np.float32(line[x]) - one) * factor
                if places[n, 2] != 0:
                    for x in range(columns // 2):
                        swapped = target[x]
                        target[x] = target[columns - 1 - x]
                        target[columns - 1 - x] = swapped


@compiled_loop
def planes(pixels: Array, out: Array) -> None:
    """Convert an image (height, width, channels) to planes (channels, height, width)."""
    height, width, channels = pixels.shape
    for r in range(height):
        line = pixels[r]
        for c in range(channels):
            target = out[c, r]
            for x in range(width):
                target[x] = line[x, c]
