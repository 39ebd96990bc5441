"""OpenCV, which reads image files and is installed separately."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, is_file, looks_like, nearest_path


def opencv(what: str) -> Any:
    """Return the module cv2. Raise DataError that says that ``what`` needs it, and how to install it."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(f"{what} needs OpenCV (pip install opencv-python-headless)") from error
    return cv2


def decoded(path: Path, what: str, flags: str) -> np.ndarray:
    """Return an image file's pixels, decoded with one of OpenCV's ``flags`` (such as ``IMREAD_COLOR``):
    (height, width) or (height, width, channels) with blue first. Raise DataError if the file is missing
    or not an image."""
    opencv(what)
    if not is_file(path):
        raise DataError(f"no such image: {path}{nearest_path(path)}")
    return decoded_bytes(path.read_bytes(), str(path), what, flags)


def decoded_bytes(data: bytes, name: str, what: str, flags: str) -> np.ndarray:
    """Decode the content of an image file like ``decoded``. ``name`` stands for the file in errors."""
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
