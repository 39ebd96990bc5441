"""Encoded images to pixels, by the fastest decoder that gives Caffe's pixels.

OpenCV is what Caffe decodes and resizes with; it works without the interpreter's lock, in vector code.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

from demitasse import DataError

FORMATS = "JPEG, PNG, BMP, WebP, TIFF, GIF, PNM"
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
ALWAYS, LARGEST = 1 << 22, 1 << 30
"""Pixels (4 million) that any image may have, and that OpenCV lets one have."""
PIXELS_PER_BYTE = 8 * 1032
"""What deflate at its best makes of a byte, at a bit a pixel: an image of more than ``ALWAYS`` pixels
and of more than this for each of its bytes lies about its size."""
_STARTS_NO_FRAME = {0xC4, 0xC8, 0xCC}


@functools.cache
def opencv() -> Any:
    """The module cv2. Raises DataError that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"images need OpenCV, which cannot be imported ({error}); pip install "
            f'"opencv-python-headless<5" (or demitasse-striped_io[images])'
        ) from error
    return cv2


def decode(data: np.ndarray, gray: bool, resized: tuple[int, int] | None) -> np.ndarray:
    """The pixels (height, width, channels) uint8, blue first, of an image file's bytes (uint8), resized
    to (height, width) by bilinear interpolation. Raises DataError for what is no image or is cut off."""
    cv2 = opencv()
    check(data)
    try:
        pixels = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR)
        if pixels is None or not pixels.size:
            raise DataError(f"its image is damaged: {len(data):,} bytes that OpenCV cannot decode")
        if resized is not None and pixels.shape[:2] != resized:
            pixels = cv2.resize(pixels, resized[::-1], interpolation=cv2.INTER_LINEAR)
    except cv2.error as error:
        raise DataError(f"its image is damaged: {error.err or error}") from error
    return np.asarray(pixels[:, :, None] if pixels.ndim == 2 else pixels)


def check(data: np.ndarray) -> None:
    """Raise DataError for what has no image's header or end, or claims more pixels than its bytes can
    hold: before a decoder takes memory for them."""
    head = data[:32].tobytes()
    size: tuple[int, int] | None = (1, 1)  # OpenCV has bounds of its own for BMP, TIFF and PNM
    if head.startswith(b"\xff\xd8\xff"):
        size = _jpeg_size(data)
        # libjpeg fills with gray what is missing, and goes on.
        if b"\xff\xd9" not in data[-(1 << 10) :].tobytes() and not _ends(data):
            raise DataError(f"its image is cut off after {len(data):,} bytes: a JPEG without its end")
    elif head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = struct.unpack_from(">II", head, 16) if len(head) >= 24 else None
        if not _has_last_chunk(data):
            raise DataError(f"its image is cut off after {len(data):,} bytes: a PNG without its end")
    elif head.startswith(b"GIF8"):
        size = struct.unpack_from("<HH", head, 6) if len(head) >= 10 else None
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        size = _webp_size(head) if len(head) >= 30 else None
    elif not head.startswith((b"BM", b"II*\0", b"MM\0*")) and not (
        head[:1] == b"P" and head[1:2] in b"123456"
    ):
        raise DataError(f"it is no image: it begins with {head[:8].hex(' ')} (read are {FORMATS})")
    if size is None or min(size) < 1:
        raise DataError(f"its image has no header that can be believed: {size} pixels")
    if size[0] * size[1] > max(ALWAYS, min(LARGEST, PIXELS_PER_BYTE * len(data))):
        raise DataError(f"its image claims {size[0]:,} x {size[1]:,} pixels in {len(data):,} bytes")


def _has_last_chunk(data: np.ndarray) -> bool:
    # By the chunks' lengths: behind the last one anything may stand.
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8].tobytes())
        if kind == b"IEND":
            return True
        at += 12 + length
    return False


def _webp_size(head: bytes) -> tuple[int, int] | None:
    form = head[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    if form == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _ends(data: np.ndarray) -> bool:
    whole = data.tobytes()
    return whole.rfind(b"\xff\xd9") > whole.rfind(b"\xff\xda")


def _jpeg_size(data: np.ndarray) -> tuple[int, int] | None:
    view, at = data.tobytes(), 2
    while at + 9 <= len(view) and view[at] == 0xFF:
        marker = view[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _STARTS_NO_FRAME:
            height, width = struct.unpack_from(">HH", view, at + 5)
            return width, height
        elif marker in (0xD9, 0xDA):
            return None
        else:
            at += 2 + max(2, struct.unpack_from(">H", view, at + 2)[0])
    return None
