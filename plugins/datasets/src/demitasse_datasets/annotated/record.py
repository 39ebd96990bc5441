"""AnnotatedDatum, the record of databases with boxes, in protobuf's wire format: read without trust.

An AnnotatedDatum has a Datum (field 1), a type (2; 0 means boxes) and groups (3), one for each class. A
group has its class (1) and annotations (2); an annotation has the object's number (1) and its box (2); a
box has xmin, ymin, xmax, ymax (1 to 4, float) and whether it is difficult (6). The fields are those of
SSD's fork.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError
from demitasse_datasets.datum import Datum, as_varint, parse, serialize, tag, varint

BOX = 7
"""The numbers of a box: class, number of the object, xmin, ymin, xmax, ymax, and 1 if difficult."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class Annotated:
    """An image's record and its boxes (objects, ``BOX``); None if the record gives no type, so that its
    Datum has an ordinary label."""

    datum: Datum
    boxes: NDArray[np.float64] | None


def parse_annotated(record: memoryview | bytes, boxed: bool = False) -> Annotated:
    """Parse an AnnotatedDatum; unknown fields are skipped. With ``boxed``, a record without a type
    counts as one with boxes. Raises DataError."""
    datum: Datum | None = None
    kind: int | None = 0 if boxed else None
    rows: list[list[float]] = []
    for number, value in _fields(memoryview(record), "AnnotatedDatum"):
        if number == 1 and isinstance(value, memoryview):
            datum = parse(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 3 and isinstance(value, memoryview):
            rows += _group(value)
    if datum is None:
        plain = parse(record)
        is_datum = len(plain.data) or plain.floats is not None
        what = "a Datum without boxes, which Data layers read" if is_datum else "not an AnnotatedDatum"
        raise DataError(f"it is {what}; demitasse convert_annoset writes images with boxes")
    if kind is None:
        return Annotated(datum, None)
    if kind != 0:
        raise DataError(f"its AnnotatedDatum is of type {kind} (valid: 0, boxes)")
    boxes = np.array(rows, np.float64).reshape(-1, BOX)
    if not np.isfinite(boxes).all():
        at = int((~np.isfinite(boxes).all(1)).argmax())
        raise DataError(
            f"box {at} of its AnnotatedDatum has corners that are not finite: {rows[at][2:6]}"
        )
    return Annotated(datum, boxes)


def _group(view: memoryview) -> Iterator[list[float]]:
    found = list(_fields(view, "AnnotationGroup"))
    label = next((_signed(value) for number, value in found[::-1] if number == 1), 0)
    for number, value in found:
        if number == 2 and isinstance(value, memoryview):
            instance, box = 0, [0.0] * 4 + [0.0]
            for inner, part in _fields(value, "Annotation"):
                if inner == 1:
                    instance = _signed(part)
                elif inner == 2 and isinstance(part, memoryview):
                    box = _box(part)
            yield [label, instance, *box]


def _box(view: memoryview) -> list[float]:
    box = [0.0] * 5
    for number, value in _fields(view, "NormalizedBBox"):
        if 1 <= number <= 4 and isinstance(value, memoryview) and len(value) == 4:
            box[number - 1] = float(np.frombuffer(value, "<f4")[0])
        elif number == 6 and isinstance(value, int):
            box[4] = float(bool(value))
    return box


def _signed(value: int | memoryview) -> int:
    """Convert an int32; negative ones are stored as 64 bits in two's complement."""
    if not isinstance(value, int):
        return 0
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _fields(view: memoryview, what: str) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message: a field's number, and a whole number or bytes. Raises DataError."""
    at, end = 0, len(view)
    while at < end:
        start = at
        key, at = varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = varint(view, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = varint(view, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise DataError(f"it is not a valid {what}: byte {start} begins a field of wire type {kind}")
        if length > end - at:
            raise DataError(
                f"its {what} is cut short: field {number} at byte {start} promises {length:,} bytes, "
                f"but {end - at:,} are there"
            )
        yield number, view[at : at + length]
        at += length


def serialize_annotated(datum: Datum, boxes: NDArray[np.float64]) -> bytes:
    """Return the bytes of an image's record with boxes (objects, ``BOX``), grouped by class in the order
    of their first objects."""
    groups = [
        b"".join(_written_annotation(box) for box in boxes[boxes[:, 0] == label])
        for label in dict.fromkeys(boxes[:, 0])
    ]
    labels = [tag(1, _VARINT) + as_varint(int(label)) for label in dict.fromkeys(boxes[:, 0])]
    parts = [_bytes(1, serialize(datum)), tag(2, _VARINT) + as_varint(0)]
    parts += [_bytes(3, label + group) for label, group in zip(labels, groups, strict=True)]
    return b"".join(parts)


def _written_annotation(box: NDArray[np.float64]) -> bytes:
    corners = b"".join(
        tag(number, _FIXED32) + np.float32(corner).tobytes() for number, corner in enumerate(box[2:6], 1)
    )
    difficult = tag(6, _VARINT) + as_varint(int(box[6]))
    return _bytes(2, tag(1, _VARINT) + as_varint(int(box[1])) + _bytes(2, corners + difficult))


def _bytes(number: int, value: bytes) -> bytes:
    return tag(number, _BYTES) + as_varint(len(value)) + value
