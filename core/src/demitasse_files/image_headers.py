"""What an image's header says, read before a decoder allocates memory for the image: its size, and
whether the file can hold that many pixels and is complete."""

from __future__ import annotations

import re
import struct

from demitasse import DataError
from demitasse_files.contents import looks_like

_FORMATS = "JPEG, PNG, BMP, WebP, TIFF, GIF, JPEG 2000, PNM, PAM, Sun raster"
_ALWAYS, _LARGEST = 1 << 22, 1 << 30
"""Pixels that any image may claim (4 million, 12 MB in colour), and the most that OpenCV decodes."""
_PIXELS_PER_BYTE = 8 * 1032
"""The most that deflate can pack into a byte, at one bit a pixel. An image that claims more than
``_ALWAYS`` pixels, and more than this for each byte of its file, lies about its size."""
_HEAD, _TAIL = 1 << 10, 1 << 10
"""Bytes at the start and at the end of a file that suffice for most formats."""
_COMMENTED = 4096
"""Bytes at the start of a portable map that are searched, as its header may have comments."""
_NO_FRAME = {0xC4, 0xC8, 0xCC}
"""Markers in the range of JPEG's start-of-frame codes that start no frame (T.81, table B.1)."""


def check_image(data: memoryview | bytes) -> None:
    """Raise DataError if the bytes are not an image, are cut off, or if the header claims more pixels
    than this number of bytes can hold."""
    if not len(data):
        raise DataError("its image is empty (0 bytes)")
    found = image_size(data)
    if found is None:
        told = looks_like(bytes(data[:512]))
        raise DataError(f"it is not an image in a supported format: it {told} (supported: {_FORMATS})")
    width, height = found
    if min(width, height) < 1:
        raise DataError(f"its image has no pixels: {width} x {height}")
    if width * height > max(_ALWAYS, min(_LARGEST, _PIXELS_PER_BYTE * len(data))):
        raise DataError(f"its image claims {width:,} x {height:,} pixels in {len(data):,} bytes")
    kind = {b"\xff\xd8": "JPEG", b"\x89P": "PNG"}.get(bytes(data[:2]))
    if kind and not (_ends_as_jpeg if kind == "JPEG" else _ends_as_png)(data):
        raise DataError(
            f"its image is cut off after {len(data):,} bytes: a {kind} without its end; download or "
            f"save it again, or leave it out"
        )


def _ends_as_jpeg(data: memoryview | bytes) -> bool:
    """Return whether an end marker follows the last scan. Without one, libjpeg paints the rest of the
    image gray and reports no error."""
    for some in (data[-_TAIL:], data):
        whole = bytes(some)
        if (end := whole.rfind(b"\xff\xd9")) >= 0:
            return end > whole.rfind(b"\xff\xda")
    return False


def _ends_as_png(data: memoryview | bytes) -> bool:
    """Return whether the chunks, followed by their lengths, reach IEND; anything may come after it.
    OpenCV allocates whatever length a chunk claims, so it must not be given a truncated file."""
    at = 8
    while at + 8 <= len(data):
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return False


def image_size(data: memoryview | bytes) -> tuple[int, int] | None:
    """Return (width, height) from an image's header; None for other formats or a truncated header."""
    head = bytes(data[:_HEAD])
    try:
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
            return _pair(">II", head, 16)
        if head.startswith(b"BM"):
            old = struct.unpack_from("<I", head, 14)[0] == 12
            width, height = _pair("<HH" if old else "<ii", head, 18)
            return width, abs(height)
        if head.startswith((b"GIF87a", b"GIF89a")):
            return _pair("<HH", head, 6)
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp(head)
        if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
            return _tiff(data, "<" if head[:1] == b"I" else ">", b"+" in head[2:4])
        if head.startswith((b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP")):
            return _jpeg_2000(data)
        if head.startswith(b"\x59\xa6\x6a\x95"):
            return _pair(">II", head, 4)
        if head[:1] == b"P":
            return _portable(bytes(data[:_COMMENTED]))
    except (struct.error, IndexError):
        return None
    return None


def _pair(form: str, data: memoryview | bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, data, at)
    return first, second


def _jpeg(data: memoryview | bytes) -> tuple[int, int] | None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _pair(">HH", data, at + 5)
            return width, height
        elif marker in (0xD8, 0xD9, 0xDA):
            return None
        else:
            at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    return None


def _webp(head: bytes) -> tuple[int, int] | None:
    form = head[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    if form == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        width, height = _pair("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _tiff(data: memoryview | bytes, order: str, big: bool) -> tuple[int, int] | None:
    """Return the size in the first directory. In a ``big`` TIFF, offsets and counts have 8 bytes."""
    at = struct.unpack_from(f"{order}{'Q' if big else 'I'}", data, 8 if big else 4)[0]
    count = struct.unpack_from(f"{order}{'Q' if big else 'H'}", data, at)[0]
    first, length, value = (8, 20, 12) if big else (2, 12, 8)
    found = {}
    for entry in range(min(count, 64)):
        here = at + first + length * entry
        tag, kind = struct.unpack_from(f"{order}HH", data, here)
        if tag in (256, 257):
            form = {3: "H", 16: "Q"}.get(kind, "I")
            found[tag] = struct.unpack_from(f"{order}{form}", data, here + value)[0]
    return (found[256], found[257]) if len(found) == 2 else None


def _jpeg_2000(data: memoryview | bytes) -> tuple[int, int] | None:
    """Return the size in the SIZ marker that starts the codestream: the grid's extent less the image's
    offset. Boxes may precede it (ISO 15444-1, annexes A and I)."""
    at = 0
    while bytes(data[at : at + 4]) != b"\xff\x4f\xff\x51":
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"jp2c":
            at += 16 if length == 1 else 8
        elif length < 8:
            return None
        else:
            at += length
    right, below, left, above = struct.unpack_from(">IIII", data, at + 8)
    return right - left, below - above


def _portable(head: bytes) -> tuple[int, int] | None:
    """Return the size in the header of a PNM (P1 to P6) or PAM (P7), which may contain comments."""
    plain = re.sub(rb"#[^\n]*", b"", head)
    if found := re.match(rb"P[1-6]\s+(\d{1,9})\s+(\d{1,9})\s", plain):
        return int(found[1]), int(found[2])
    rows, columns = (re.search(rb"\n%s\s+(\d{1,9})\s" % name, plain) for name in (b"HEIGHT", b"WIDTH"))
    return (int(columns[1]), int(rows[1])) if plain[:2] == b"P7" and rows and columns else None
