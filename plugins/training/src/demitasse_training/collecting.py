"""Collecting plain data from all processes in process 0; large bytes are sent in parts."""

from __future__ import annotations

from typing import Any

from demitasse import Processes

LARGE = 1 << 12
"""Bytes objects of at least this size are sent in parts."""
ROOM = 1 << 26
"""Bytes of all processes that a process can hold at a time: a gather gives each what all others sent."""


def collected(value: Any, processes: Processes) -> list[Any] | None:
    """Return in process 0 the values of all processes by rank, with None for a lost one; None in the
    others. All must call this. Values may differ in size; they are numbers, text, bytes, lists, and
    mappings whose keys are text or numbers."""
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
    """Return the value with large bytes replaced by their lengths; these bytes are appended to
    ``large``."""
    if type(value) is dict:
        return {key: _outline(item, large) for key, item in value.items()}
    if type(value) is list:
        return [None, *(_outline(item, large) for item in value)]
    if type(value) is bytes and len(value) >= LARGE:
        large.append(value)
        return [len(value)]
    return value


def _filled(outline: Any, stream: bytearray) -> Any:
    """Return the value of an outline, whose large bytes are in ``stream`` in order."""
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
