"""Random samples of given shapes that replace unavailable ones, in order to time a net or see its
plan."""

from __future__ import annotations

import math
import re

import numpy as np

from demitasse import DataError, DataSpec, RandomStream
from demitasse_datasets.samples import ArraySamples

PREFIX = "random:"
FORM = f"{PREFIX}3x227x227 (images, with labels), or {PREFIX}data=3x227x227,label=1"
MEMORY, MOST = 64 << 20, 256
"""How many bytes samples may take, and how many there are at most: the endless order repeats them."""
LONGEST = 1 << 20
ROW, SHOWN = 8, 4
"""The numbers of an object, as in ``annotated`` samples, and how many objects an image has at most."""


class StandIns(ArraySamples):
    """Samples of which only the shapes matter. ``data`` with three axes has random bytes, as images do;
    other ``data`` has numbers below 1. All other fields have zeros and ones, which are also valid
    classes. If they replace images with boxes, labels are boxes of class 1."""

    stands_in = True

    def __init__(self, name: str, instead_of: DataSpec | None = None) -> None:
        """``instead_of`` determines the labels of a shape without a name. Raises DataError if ``name``
        does not contain shapes."""
        shapes = _shapes(name, instead_of)
        each = max(math.prod(shape) * (1 if _image(n, shape) else 4) for n, shape in shapes.items())
        if each > MEMORY << 6:
            raise DataError(f"{name}: a sample would take {each:,} bytes")
        count, random = max(1, min(MOST, MEMORY // each)), RandomStream(0, dtype="float32")
        boxed = instead_of is not None and instead_of.kind == "annotated"
        columns = {}
        for field, shape in shapes.items():
            numbers = random.uniform((count, *shape))
            if _image(field, shape):
                columns[field] = (256 * numbers).astype(np.uint8)
            elif boxed and field == "label" and shape[-1:] == (ROW,):
                columns[field] = _objects(numbers)
            else:
                columns[field] = numbers if field == "data" else np.float32(numbers < 0.5)
        super().__init__(name, columns)


def _image(field: str, shape: tuple[int, ...]) -> bool:
    return field == "data" and len(shape) == 3


def _objects(numbers: np.ndarray) -> np.ndarray:
    """Return rows (..., ROW) of the objects in images: some of class 1, followed by unused rows (-1).
    Random ``numbers`` determine the boxes' corners, which are at least a tenth of the image apart."""
    rows = np.full(numbers.shape, -1, np.float32)
    first, drawn = rows[..., :SHOWN, :], numbers[..., :SHOWN, :]
    first[..., 0], first[..., 1], first[..., 7] = 0, 1, 0
    first[..., 2] = np.arange(first.shape[-2])
    for low, high in ((3, 5), (4, 6)):
        first[..., low] = 0.5 * drawn[..., low]
        first[..., high] = first[..., low] + 0.1 + 0.4 * drawn[..., high]
    return rows


def _shapes(name: str, instead_of: DataSpec | None) -> dict[str, tuple[int, ...]]:
    """Return shapes by field. Raises DataError."""
    found: dict[str, tuple[int, ...]] = {}
    for part in name.removeprefix(PREFIX).split(","):
        field, sign, extents = part.strip().rpartition("=")
        words = extents.split("x") if extents else []
        if not all(
            re.fullmatch("[0-9]{1,7}", word) and 0 < int(word) < LONGEST for word in words
        ) or not (field if sign else words):
            raise DataError(f"{name!r}: {part!r} is not a shape; write {FORM}")
        shape = tuple(map(int, words))
        found |= {field: shape} if sign else {"data": shape, **_labels(shape, instead_of)}
    return found


def _labels(image: tuple[int, ...], instead_of: DataSpec | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the other fields for an image of this shape, by the kind of samples: a class,
    boxes, or a class for each pixel."""
    kind = None if instead_of is None else instead_of.kind
    options = {} if instead_of is None else instead_of.options
    if kind == "annotated":
        return {"label": (1, int(options.get("objects", SHOWN)), ROW)}
    if kind == "image_pairs" and len(image) == 3:
        divide = int(options.get("divide", 1))
        return {"label": (1, *(max(1, side // divide) for side in image[1:])), "data_dim": (1, 1, 2)}
    return {"label": ()}
