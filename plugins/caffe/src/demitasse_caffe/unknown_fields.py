"""Fields of binary files that Caffe's messages do not have. They belong to a fork; they are left out,
and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from demitasse_caffe.schema import FIRST_OWN_NUMBER, is_repeated, video_width

Counted = Counter[tuple[str, int]]
"""The number of such fields, by message and field number."""

_MOST = 5
"""The maximum number of field numbers that are listed for a message."""


def unknown_fields(message: Any) -> Counted:
    """Count the unknown fields of a message and all messages within it. What C3D stores in its blobs is
    read, and therefore not counted."""
    found: Counted = Counter()
    for each in _messages(message):
        name = each.DESCRIPTOR.name
        strange = [field.field_number for field in UnknownFieldSet(each)]
        if strange and name == "BlobProto" and video_width(each) is not None:
            strange.remove(5)
        # Numbers from there on belong to layer types that other packages add.
        found.update((name, number) for number in strange if number < FIRST_OWN_NUMBER)
    return found


def told(path: Path, found: Mapping[tuple[str, int], int]) -> tuple[str, ...]:
    """Return the sentence about the unknown fields, if there are any."""
    messages: dict[str, Counter[int]] = {}
    for (name, number), count in sorted(found.items()):
        messages.setdefault(name, Counter())[number] += count
    parts = []
    for name, numbers in messages.items():
        listed = ", ".join(map(str, [*numbers][:_MOST]))
        more = f" and {len(numbers) - _MOST} more" if len(numbers) > _MOST else ""
        parts.append(f"{name} {numbers.total()} (number{'s'[: len(numbers) - 1]} {listed}{more})")
    if not parts:
        return ()
    return (f"{path}: fields that Caffe does not have are left out: {', '.join(parts)}",)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for each in value if is_repeated(descriptor) else (value,):
                yield from _messages(each)
