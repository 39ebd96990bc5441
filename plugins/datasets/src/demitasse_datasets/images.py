"""Encoded images: checked before anything is allocated for them, decoded and resized as Caffe does.

OpenCV is what Caffe itself decodes and resizes with, so the pixels are its: blue, green, red, rows from
the top. It releases the interpreter's lock while it works.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse import DataError

FORMATS = "JPEG, PNG, BMP, WebP, TIFF, GIF, PNM"
ALWAYS = 1 << 22
"""Pixels (4 million, 12 MB in colour) that any image may have."""
PIXELS_PER_BYTE = 8 * 1032
"""What deflate at its best makes of a byte, at a bit a pixel: an image that has more than ``ALWAYS``
pixels and more than this for each of its bytes lies about its size."""
MODES = ("color", "gray", "native")
LARGEST_IMAGE = 1 << 15
"""Rows or columns that an image may be resized to."""
QUICK = 48 * 48
"""Pixels of an image that one thread decodes sooner than two: of 32 x 32 24,000 a second, not 17,000; of
64 x 64 two have 13,000, not 11,000."""
SPOTS = 8
"""Images, about, that are looked at for their size."""
INTERPOLATIONS = ("LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4")

_NO_FRAME = {0xC4, 0xC8, 0xCC}
"""Markers among JPEG's start-of-frame codes that start none."""


@functools.cache
def opencv() -> Any:
    """The module cv2. Raises DataError that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f'images need OpenCV, which cannot be imported ({error}); pip install "opencv-python-'
            f'headless<5" (or demitasse-datasets[images])'
        ) from error
    return cv2


def decode(data: memoryview | bytes, mode: str = "color") -> np.ndarray:
    """The pixels (height, width, channels) uint8 of an image file's bytes: ``color`` has three
    channels, ``gray`` one, ``native`` what the file has. Raises DataError."""
    cv2 = opencv()
    check(data)
    flags = {
        "color": cv2.IMREAD_COLOR,
        "gray": cv2.IMREAD_GRAYSCALE,
        "native": cv2.IMREAD_UNCHANGED,
    }[mode]
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"its image is damaged: {error.err or error}") from error
    if pixels is None or not pixels.size:
        raise DataError(f"its image is damaged: {len(data):,} bytes that OpenCV cannot decode")
    if pixels.dtype != np.uint8:
        raise DataError(f"its image has {pixels.dtype} pixels; Caffe takes images of 8 bits a channel")
    return np.asarray(pixels[:, :, None] if pixels.ndim == 2 else pixels)


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image in another size, by bilinear interpolation."""
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = opencv()
    made = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(made[:, :, None] if made.ndim == 2 else made)


def resize_nearest(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image in another size, each pixel one of its own."""
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = opencv()
    made = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.asarray(made[:, :, None] if made.ndim == 2 else made)


def encode(pixels: np.ndarray, ending: str) -> bytes:
    """An image file's bytes, in the format that an ending such as ``.png`` names. Raises DataError."""
    cv2 = opencv()
    try:
        done, data = cv2.imencode(ending, pixels)
    except cv2.error as error:
        raise DataError(f"OpenCV cannot write images as {ending!r}: {error.err or error}") from error
    if not done:
        raise DataError(f"OpenCV cannot write images as {ending!r}")
    return bytes(data)


def planes(pixels: np.ndarray) -> np.ndarray:
    """A view (channels, height, width) of an image (height, width, channels)."""
    return pixels.transpose(2, 0, 1)


def are_quick(encoded: Callable[[int], memoryview | bytes], count: int) -> bool:
    """Whether images are as small as ``QUICK``, by some of the ``count``: the first may be a small one
    among others. No where one cannot be read, which is told when it is asked for."""
    try:
        sizes = (size(encoded(number)) for number in range(0, count, max(1, count // SPOTS)))
        return all(found is not None and found[0] * found[1] <= QUICK for found in sizes)
    except DataError:
        return False


def check(data: memoryview | bytes) -> None:
    """Raise DataError for what is no image, for one that was cut off, and for one whose header claims
    more pixels than its bytes can hold."""
    if not len(data):
        raise DataError("its image is empty (0 bytes)")
    found = size(data)
    if found is None:
        start = bytes(data[:8]).hex(" ")
        raise DataError(f"it is no image: it begins with the bytes {start} (read are {FORMATS})")
    width, height = found
    if min(width, height) < 1:
        raise DataError(f"its image has no pixels: {width} x {height}")
    if width * height > max(ALWAYS, min(1 << 30, PIXELS_PER_BYTE * len(data))):
        raise DataError(f"its image claims {width:,} x {height:,} pixels in {len(data):,} bytes")
    whole = bytes(data)
    if whole.startswith(b"\xff\xd8"):
        # libjpeg fills with gray what is missing, and goes on.
        if whole.rfind(b"\xff\xd9") < whole.rfind(b"\xff\xda"):
            raise DataError(f"its image is cut off after {len(whole):,} bytes: a JPEG without its end")
    elif whole.startswith(b"\x89PNG"):
        _check_chunks(whole)


def _check_chunks(data: bytes) -> None:
    """OpenCV takes as much memory for a chunk of a PNG as the chunk says it needs."""
    at = 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IEND":
            return
        at += 12 + length
    raise DataError(f"its image is cut off after {len(data):,} bytes: a PNG without its end")


def size(data: memoryview | bytes) -> tuple[int, int] | None:
    """(width, height) by the header of an image; None when it is none of ``FORMATS`` or has no whole
    header."""
    head = bytes(data[:64])
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
        if head.startswith((b"II*\0", b"MM\0*")):
            return _tiff(data, "<" if head[:1] == b"I" else ">")
        if found := re.match(rb"P[1-6](?:\s|#[^\n]*\n)+(\d{1,9})\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s", head):
            return int(found[1]), int(found[2])
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


def _tiff(data: memoryview | bytes, order: str) -> tuple[int, int] | None:
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    count = struct.unpack_from(f"{order}H", data, at)[0]
    found = {}
    for entry in range(min(count, 64)):
        tag, kind = struct.unpack_from(f"{order}HH", data, at + 2 + 12 * entry)
        if tag in (256, 257):
            form = "H" if kind == 3 else "I"
            found[tag] = struct.unpack_from(f"{order}{form}", data, at + 10 + 12 * entry)[0]
    return (found[256], found[257]) if len(found) == 2 else None
