"""Encoded images: checked before memory is allocated for them, then decoded and resized as in Caffe.

Caffe itself decodes and resizes with OpenCV, so we get the same pixels: blue, green, red, rows from the
top. OpenCV releases the interpreter's lock while it works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse import DataError, check_image, image_size

MODES = ("color", "gray", "native")
LARGEST_IMAGE = 1 << 15
"""The largest number of rows or columns to which an image may be resized."""
QUICK = 48 * 48
"""Up to this many pixels, one thread decodes images faster than two: 24,000 instead of 17,000 images of
32 x 32 per second. For 64 x 64, two are faster: 13,000 instead of 11,000."""
SPOTS = 8
"""About how many images are examined for their size."""
INTERPOLATIONS = ("LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4")


@functools.cache
def opencv() -> Any:
    """Return the module cv2. Raises DataError that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f'images need OpenCV, which cannot be imported ({error}); pip install "opencv-python-'
            f'headless<5" (or demitasse-datasets[images])'
        ) from error
    return cv2


def decode(data: memoryview | bytes, mode: str = "color") -> np.ndarray:
    """Decode an image file's bytes to pixels (height, width, channels) uint8: with three channels for
    ``color``, one for ``gray``, and the file's own for ``native``. Raises DataError."""
    cv2 = opencv()
    check_image(data)
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
        raise DataError(
            f"its image has {pixels.dtype} pixels, but Caffe takes images of 8 bits a channel"
        )
    return np.asarray(pixels[:, :, None] if pixels.ndim == 2 else pixels)


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an image by bilinear interpolation."""
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = opencv()
    made = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(made[:, :, None] if made.ndim == 2 else made)


def resize_nearest(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an image; each pixel becomes a copy of the nearest."""
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = opencv()
    made = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.asarray(made[:, :, None] if made.ndim == 2 else made)


def encode(pixels: np.ndarray, ending: str) -> bytes:
    """Encode an image in the format that a suffix such as ``.png`` names. Raises DataError."""
    cv2 = opencv()
    try:
        done, data = cv2.imencode(ending, pixels)
    except cv2.error as error:
        raise DataError(f"OpenCV cannot write images as {ending!r}: {error.err or error}") from error
    if not done:
        raise DataError(f"OpenCV cannot write images as {ending!r}")
    return bytes(data)


def planes(pixels: np.ndarray) -> np.ndarray:
    """Return an image (height, width, channels) as a view (channels, height, width)."""
    return pixels.transpose(2, 0, 1)


def are_quick(encoded: Callable[[int], memoryview | bytes], count: int) -> bool:
    """Whether images are as small as ``QUICK``, judging by a few of the ``count``, because the first may
    be an exception. False if one cannot be read; its error is raised when it is requested."""
    try:
        sizes = (image_size(encoded(number)) for number in range(0, count, max(1, count // SPOTS)))
        return all(found is not None and found[0] * found[1] <= QUICK for found in sizes)
    except DataError:
        return False
