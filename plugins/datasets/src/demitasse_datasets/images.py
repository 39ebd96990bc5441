"""Encoded images: checked before anything is allocated for them, decoded and resized as Caffe does.

OpenCV is what Caffe itself decodes and resizes with, so the pixels are its: blue, green, red, rows from
the top. It releases the interpreter's lock while it works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse import DataError, check_image, image_size

MODES = ("color", "gray", "native")
LARGEST_IMAGE = 1 << 15
"""Rows or columns that an image may be resized to."""
QUICK = 48 * 48
"""Pixels of an image that one thread decodes sooner than two: of 32 x 32 24,000 a second, not 17,000; of
64 x 64 two have 13,000, not 11,000."""
SPOTS = 8
"""Images, about, that are looked at for their size."""
INTERPOLATIONS = ("LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4")


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
        sizes = (image_size(encoded(number)) for number in range(0, count, max(1, count // SPOTS)))
        return all(found is not None and found[0] * found[1] <= QUICK for found in sizes)
    except DataError:
        return False
