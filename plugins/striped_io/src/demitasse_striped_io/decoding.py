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
LARGEST = 1 << 26
"""Pixels of an image: 8,192 squared."""
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
    """Raise DataError for what has no image's header or end, or claims too many pixels: before a decoder
    takes memory for them."""
    head = data[:32].tobytes()
    if head.startswith(b"\xff\xd8\xff"):
        size = _jpeg_size(data)
        # libjpeg fills with gray what is missing, and goes on.
        if b"\xff\xd9" not in data[-(1 << 10) :].tobytes() and not _ends(data):
            raise DataError(f"its image is cut off after {len(data):,} bytes: a JPEG without its end")
    elif head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = struct.unpack_from(">II", head, 16) if len(head) >= 24 else None
        if b"IEND" not in data[-64:].tobytes():
            raise DataError(f"its image is cut off after {len(data):,} bytes: a PNG without its end")
    elif head.startswith((b"BM", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")) or (
        head[:1] == b"P" and head[1:2] in b"123456"
    ):
        size = (1, 1)  # OpenCV has bounds of its own for these
    else:
        raise DataError(f"it is no image: it begins with {head[:8].hex(' ')} (read are {FORMATS})")
    if size is None or not 0 < size[0] * size[1] <= LARGEST:
        raise DataError(f"its image has no header that can be believed: {size} pixels")


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
