"""Decoding images, with the fastest decoder that produces the same pixels as Caffe.

Caffe decodes and resizes with OpenCV, which works without the interpreter's lock, in vector code.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from demitasse import DataError, check_image


@functools.cache
def opencv() -> Any:
    """Return the module cv2. Raises DataError that says how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"images need OpenCV, which cannot be imported ({error}); pip install "
            f'"opencv-python-headless<5" (or demitasse-striped_io[images])'
        ) from error
    return cv2


def decode(data: np.ndarray, gray: bool, resized: tuple[int, int] | None) -> np.ndarray:
    """Decode an image file's bytes (uint8) to pixels (height, width, channels) uint8, blue first,
    resized to (height, width) by bilinear interpolation. Raises DataError if it is not an image, or
    truncated."""
    cv2 = opencv()
    check_image(data.data)
    try:
        pixels = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR)
        if pixels is None or not pixels.size:
            raise DataError(f"its image is damaged: {len(data):,} bytes that OpenCV cannot decode")
        if resized is not None and pixels.shape[:2] != resized:
            pixels = cv2.resize(pixels, resized[::-1], interpolation=cv2.INTER_LINEAR)
    except cv2.error as error:
        raise DataError(f"its image is damaged: {error.err or error}") from error
    return np.asarray(pixels[:, :, None] if pixels.ndim == 2 else pixels)
