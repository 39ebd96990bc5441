"""The layout of a snapshot file.

        magic    8 bytes    89 'D' 'M' 'T' 0d 0a 1a 0a: damaged by any program that treats the file as
        text
        version  uint32     little-endian, as are all following numbers
        length   uint64     bytes of the body
        crc32    uint32     of the 20 bytes before
        body     msgpack    {"parameters", "iteration", "state", "record"}, and "gradients" if present
    sha256   32 bytes   of all bytes before

An array is {"dtype", "shape", "crc32", "data"}: a NumPy type string with its byte order, the shape, the
CRC-32 of the elements (which shows which array of a damaged file is damaged), and the elements in C
order. If there are more than 2 GiB, "data" is a list of byte strings to be concatenated. The body has no
extension types.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"\x89DMT\r\n\x1a\n"
VERSION = 1
HEADER = struct.Struct("<8sIQI")
DIGEST = 32
PARTS = ("parameters", "iteration", "state", "record")
GRADIENTS = "gradients"
"""A part that is present only if the weights have it."""

ARRAY = ("dtype", "shape", "crc32", "data")
WIDE = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
TYPES = frozenset(["|b1", "|i1", "|u1", *(order + kind for order in "<>" for kind in WIDE)])
LARGEST_RANK = 32
LONGEST = 1 << 31
"""The most bytes in one string; msgpack's longest header allows 4 GiB minus one."""

DEEPEST = 64
"""How deeply lists and mappings of the record may be nested."""


@dataclass(frozen=True)
class Header:
    """A snapshot's header; ``length`` is the body's, in bytes."""

    version: int
    length: int

    def pack(self) -> bytes:
        bare = HEADER.pack(MAGIC, self.version, self.length, 0)[:-4]
        return bare + struct.pack("<I", zlib.crc32(bare))
