"""Random samples of given shapes, in place of those that are not here: to time a net, or to see its
plan."""

from __future__ import annotations

import math
import re

import numpy as np

from demitasse import DataError, RandomStream
from demitasse_datasets.samples import ArraySamples

PREFIX = "random:"
FORM = f"{PREFIX}3x227x227 (images, with labels), or {PREFIX}data=3x227x227,label=1"
MEMORY, MOST = 64 << 20, 256
"""Bytes that samples may take, and how many there are at most: the endless order repeats them."""
LONGEST = 1 << 20


class StandIns(ArraySamples):
    """Samples of which only the shapes count: ``data`` of three axes is of any bytes, as images are;
    ``data`` of others of numbers below 1; all other fields of ones and zeros, which are classes too."""

    stands_in = True

    def __init__(self, name: str) -> None:
        """Raises DataError for what names no shapes."""
        shapes = _shapes(name)
        each = max(math.prod(shape) * (1 if _image(n, shape) else 4) for n, shape in shapes.items())
        if each > MEMORY << 6:
            raise DataError(f"{name}: a sample would take {each:,} bytes")
        count, random = max(1, min(MOST, MEMORY // each)), RandomStream(0, dtype="float32")
        columns = {}
        for field, shape in shapes.items():
            numbers = random.uniform((count, *shape))
            if _image(field, shape):
                columns[field] = (256 * numbers).astype(np.uint8)
            else:
                columns[field] = numbers if field == "data" else np.float32(numbers < 0.5)
        super().__init__(name, columns)


def _image(field: str, shape: tuple[int, ...]) -> bool:
    return field == "data" and len(shape) == 3


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes by field. Raises DataError."""
    found: dict[str, tuple[int, ...]] = {}
    for part in name.removeprefix(PREFIX).split(","):
        field, sign, extents = part.strip().rpartition("=")
        words = extents.split("x") if extents else []
        if not all(
            re.fullmatch("[0-9]{1,7}", word) and 0 < int(word) < LONGEST for word in words
        ) or not (field if sign else words):
            raise DataError(f"{name!r}: {part!r} is no shape; write {FORM}")
        shape = tuple(map(int, words))
        found |= {field: shape} if sign else {"data": shape, "label": ()}
    return found
