"""Datum, the record of Caffe's databases, in protobuf's wire format: reading it without trust, and
writing it.

Fields by number: channels 1, height 2, width 3, data 4 (uint8, or a whole image file), label 5 (several
in forks with CTC), float_data 6 (single numbers or packed), encoded 7. A claimed length never causes an
allocation: every array is a view of bytes that exist, or made from as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demitasse import DataError

LONGEST_VARINT = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBERS = {1: "channels", 2: "height", 3: "width", 7: "encoded"}
_DATA, _LABEL, _FLOATS, _WRAPPED = 4, 5, 6, 1


@dataclass(slots=True)
class Datum:
    """One record. It has either ``data`` (bytes) or ``floats`` (float32)."""

    channels: int = 0
    height: int = 0
    width: int = 0
    data: memoryview | bytes = b""
    label: int = 0
    floats: np.ndarray | None = None
    encoded: bool = False
    wraps: bool = False
    """Whether the field of a Datum's channels holds bytes: an AnnotatedDatum has its Datum there."""
    more: tuple[int, ...] = ()
    """Labels after the first."""

    @property
    def labels(self) -> int | tuple[int, ...]:
        """All labels as a tuple, or the only one as a number."""
        return (self.label, *self.more) if self.more else self.label

    def pixels(self) -> np.ndarray:
        """Return the array (channels, height, width) of a record that is not encoded: uint8, or float32
        if it has float_data. It is a view of the record. Raises DataError if the sizes do not fit."""
        shape = self.channels, self.height, self.width
        if len(self.data):
            values = np.frombuffer(self.data, np.uint8)
        elif self.floats is not None:
            values = self.floats
        else:
            raise DataError(f"its Datum (shape {shape}) has neither data nor float_data")
        if min(shape) < 1 or self.channels * self.height * self.width != values.size:
            raise DataError(
                f"its Datum says shape {shape} (channels, height, width), "
                f"but holds {values.size:,} {values.dtype} values"
            )
        return values.reshape(shape)


def parse(record: memoryview | bytes) -> Datum:
    """Parse a Datum; unknown fields are skipped. Raises DataError with the byte at which parsing
    fails."""
    view = memoryview(record)
    datum = Datum()
    floats: list[np.ndarray] = []
    labels: list[int] = []
    at, end = 0, len(view)
    while at < end:
        start = at
        tag, at = varint(view, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = varint(view, at)
            if number == _LABEL:
                labels.append(_signed(value))
            elif number in _NUMBERS:
                setattr(datum, _NUMBERS[number], bool(value) if number == 7 else _signed(value))
        elif kind == _BYTES:
            length, at = varint(view, at)
            if length > end - at:
                raise DataError(
                    f"its Datum is cut short: field {number} at byte {start} promises {length:,} bytes, "
                    f"but {end - at:,} are there"
                )
            if number == _DATA:
                datum.data = view[at : at + length]
            elif number == _WRAPPED:
                datum.wraps = True
            elif number == _LABEL:
                labels += _packed(view[at : at + length])
            elif number == _FLOATS:
                if length % 4:
                    raise DataError(
                        f"its Datum's packed float_data has {length:,} bytes, not 4 a number"
                    )
                floats.append(np.frombuffer(view[at : at + length], "<f4"))
            at += length
        elif kind == _FIXED32 and number == _FLOATS and tag < 128:
            run = _run_of_floats(view, start)
            floats.append(run)
            at = start + 5 * len(run)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise DataError(f"it is not a Datum: byte {start} begins a field of wire type {kind}")
        if at > end:
            raise DataError(f"its Datum is cut short within field {number} at byte {start}")
    if labels:
        datum.label, datum.more = labels[0], tuple(labels[1:])
    if floats:
        datum.floats = floats[0] if len(floats) == 1 else np.concatenate(floats)
    return datum


def _signed(value: int) -> int:
    """Convert an int32 of Caffe's schema: negative ones are stored as 64 bits in two's complement."""
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def _packed(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        value, at = varint(view, at)
        yield _signed(value)


def _run_of_floats(view: memoryview, start: int) -> np.ndarray:
    """Return consecutive numbers of float_data, each of which has its tag in front."""
    whole = (len(view) - start) // 5
    if not whole:
        raise DataError(f"its Datum is cut short within float_data at byte {start}")
    rows = np.frombuffer(view[start : start + 5 * whole], np.uint8).reshape(whole, 5)
    others = np.flatnonzero(rows[:, 0] != view[start])
    count = int(others[0]) if len(others) else whole
    return np.ascontiguousarray(rows[:count, 1:]).view("<f4").reshape(-1)


def varint(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return a base-128 number at byte ``at``, and the position after it. Raises DataError."""
    if at < len(view) and view[at] < 128:  # most have one byte
        return view[at], at + 1
    value = shift = 0
    for place in range(at, min(at + LONGEST_VARINT, len(view))):
        byte = view[place]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise DataError(f"a number at byte {at} of {len(view):,} has no end")


def serialize(datum: Datum) -> bytes:
    """Return the bytes of a Datum, in the order and form in which Caffe writes them."""
    return b"".join(_pieces(datum))


def _pieces(datum: Datum) -> Iterator[bytes]:
    for number, value in ((1, datum.channels), (2, datum.height), (3, datum.width)):
        yield tag(number, _VARINT) + as_varint(value)
    if len(datum.data):
        yield tag(_DATA, _BYTES) + as_varint(len(datum.data))
        yield bytes(datum.data)
    for label in (datum.label, *datum.more):
        yield tag(_LABEL, _VARINT) + as_varint(label)
    if datum.floats is not None and not len(datum.data):
        rows = np.empty((datum.floats.size, 5), np.uint8)
        rows[:, 0] = _FLOATS << 3 | _FIXED32
        rows[:, 1:] = np.ascontiguousarray(datum.floats, "<f4").reshape(-1, 1).view(np.uint8)
        yield rows.tobytes()
    if datum.encoded:
        yield tag(7, _VARINT) + as_varint(1)


def tag(number: int, kind: int) -> bytes:
    return bytes([number << 3 | kind])


def as_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    parts = bytearray()
    while value > 127:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
