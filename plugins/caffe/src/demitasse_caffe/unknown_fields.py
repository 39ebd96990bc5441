"""Fields of binary files that Caffe's messages do not have: a fork's, which are left out, and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from demitasse_caffe.schema import FIRST_OWN_NUMBER, is_repeated, video_width

Counted = Counter[tuple[str, int]]
"""How many there are, by message and number."""

_MOST = 5
"""As many numbers of a message are told."""


def unknown_fields(message: Any) -> Counted:
    """Those in a message and all within it; what C3D has in its blobs is read, and so does not count."""
    found: Counted = Counter()
    for each in _messages(message):
        name = each.DESCRIPTOR.name
        strange = [field.field_number for field in UnknownFieldSet(each)]
        if strange and name == "BlobProto" and video_width(each) is not None:
            strange.remove(5)
        # Those from there on are of layer types that other packages add.
        found.update((name, number) for number in strange if number < FIRST_OWN_NUMBER)
    return found


def told(path: Path, found: Mapping[tuple[str, int], int]) -> tuple[str, ...]:
    """The sentence about them, if there are any."""
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
