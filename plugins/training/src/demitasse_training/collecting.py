"""What each of several processes has, collected by the first: plain data, large bytes in parts."""

from __future__ import annotations

from typing import Any

from demitasse import Processes

LARGE = 1 << 12
"""Bytes from which on they are sent in parts."""
ROOM = 1 << 26
"""Bytes of all processes that each has room for at a time: whoever gathers has what all give."""


def collected(value: Any, processes: Processes) -> list[Any] | None:
    """What each gives, by rank (None of one that is lost), for the first; None for others. All call it,
    with values of the same size or not: numbers, text, bytes, lists and mappings by text or number."""
    large = list[bytes]()
    told = processes.gather([_outline(value, large), sum(map(len, large))])
    mine, first = b"".join(large), processes.rank == 0
    streams = [bytearray() for _ in told]
    step = max(1, ROOM // processes.size)
    for start in range(0, max(size for _, size in filter(None, told)), step):
        parts = processes.gather(mine[start : start + step])
        for stream, part in zip(streams, parts if first else (), strict=False):
            stream += part or b""
    if not first:
        return None
    return [
        None if each is None or len(stream) < each[1] else _filled(each[0], stream)
        for each, stream in zip(told, streams, strict=True)
    ]


def _outline(value: Any, large: list[bytes]) -> Any:
    """The value with the lengths of large bytes in their place; these are added to ``large``."""
    if type(value) is dict:
        return {key: _outline(item, large) for key, item in value.items()}
    if type(value) is list:
        return [None, *(_outline(item, large) for item in value)]
    if type(value) is bytes and len(value) >= LARGE:
        large.append(value)
        return [len(value)]
    return value


def _filled(outline: Any, stream: bytearray) -> Any:
    """The value that an outline is of, whose large bytes are in ``stream`` in order."""
    end = 0

    def fill(value: Any) -> Any:
        nonlocal end
        if type(value) is dict:
            return {key: fill(item) for key, item in value.items()}
        if type(value) is not list:
            return value
        if value[0] is None:
            return [fill(item) for item in value[1:]]
        start, end = end, end + value[0]
        return bytes(stream[start:end])

    return fill(outline)
