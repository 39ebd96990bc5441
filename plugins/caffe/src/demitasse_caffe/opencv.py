"""OpenCV, which reads image files; it is installed apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, is_file, looks_like, nearest_path


def opencv(what: str) -> Any:
    """The module cv2. Raises DataError that says ``what`` needs it, and how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"{what} needs OpenCV (pip install opencv-python-headless)") from error
    return cv2


def decoded(path: Path, what: str, flags: str) -> np.ndarray:
    """An image file's pixels by one of OpenCV's ``flags`` (``IMREAD_COLOR``): (height, width) or
    (height, width, channels), blue first. Raises DataError for a file that is missing or no image."""
    opencv(what)
    if not is_file(path):
        raise DataError(f"no such image: {path}{nearest_path(path)}")
    return decoded_bytes(path.read_bytes(), str(path), what, flags)


def decoded_bytes(data: bytes, name: str, what: str, flags: str) -> np.ndarray:
    """As ``decoded``, of the content of an image file, which errors call ``name``."""
    cv2 = opencv(what)
    if not data:
        raise DataError(f"{name}: is empty (0 bytes)")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), getattr(cv2, flags))
    except cv2.error as error:
        raise DataError(f"{name}: cannot be decoded as an image: {error.err or error}") from error
    if pixels is None:
        told = looks_like(data[:512])
        raise DataError(f"{name}: is damaged, or not an image in a format that OpenCV reads; it {told}")
    return np.asarray(pixels)
