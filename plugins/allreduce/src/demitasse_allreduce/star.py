"""Exchanges between processes of which some may be lost meanwhile. Each process gives its part to
process 0, which gives all parts to the remaining processes. So all have the same parts, whenever a
process is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from demitasse import WorkerError

SIZE, BODY, SIZES, BODIES = range(4)
"""Message tags: SIZE and BODY are sent to process 0, SIZES and BODIES come from it."""

ABSENT = -1
"""The size of a lost process's part."""


class Star:
    """Exchanges by way of process 0, over a communicator that nothing else uses. ``wait(request,
    peer)`` waits for a request and returns False once the run continues without that peer. ``lost`` has
    the ranks that the run already continues without."""

    def __init__(
        self, communicator: Any, wait: Callable[[Any, int | None], bool], lost: Mapping[int, str]
    ) -> None:
        self._comm, self._wait, self._lost = communicator, wait, lost
        self._kept: list[Any] = []  # buffers that MPI may still read or write, for a lost peer

    def gather(self, kind: bytes, part: bytes) -> list[bytes | None]:
        """Return each process's part, by rank, and None for a lost process. All remaining processes call
        it with the same ``kind``, one byte. If a process has another kind, raises a WorkerError that
        names it."""
        mine, me = np.frombuffer(kind + part, np.uint8), self._comm.Get_rank()
        found = self._collect(mine) if me == 0 else self._hand_in(mine)
        for rank, other in enumerate(found):
            if other is not None and other[:1] != kind:
                raise WorkerError(
                    f"rank {rank} of {len(found)} exchanges {other[:1]!r}, but rank {me} exchanges "
                    f"{kind!r}: the processes have diverged"
                )
        return [None if other is None else other[1:] for other in found]

    def _collect(self, mine: Any) -> list[bytes | None]:
        ranks = range(1, self._comm.Get_size())
        parts = {0: mine}
        for rank in ranks:
            size = np.empty(1, np.int64)
            if rank in self._lost or not self._receive(size, rank, SIZE):
                continue
            body = np.empty(int(size[0]), np.uint8)
            if self._receive(body, rank, BODY):
                parts[rank] = body
        empty = np.empty(0, np.uint8)
        sizes = np.array([parts[r].size if r in parts else ABSENT for r in (0, *ranks)], np.int64)
        bodies = np.concatenate([parts.get(rank, empty) for rank in (0, *ranks)])
        going = [
            (self._comm.Isend(array, rank, tag), rank)
            for rank in ranks
            if rank in parts and rank not in self._lost
            for array, tag in ((sizes, SIZES), (bodies, BODIES))
        ]
        arrived = [self._wait(request, rank) for request, rank in going]
        if not all(arrived):
            self._kept += [sizes, bodies]
        return _apart(sizes, bodies)

    def _hand_in(self, mine: Any) -> list[bytes | None]:
        size, sizes = np.array([mine.size], np.int64), np.empty(self._comm.Get_size(), np.int64)
        for request in (self._comm.Isend(size, 0, SIZE), self._comm.Isend(mine, 0, BODY)):
            self._wait(request, 0)
        self._receive(sizes, 0, SIZES)
        bodies = np.empty(int(np.maximum(sizes, 0).sum()), np.uint8)
        self._receive(bodies, 0, BODIES)
        return _apart(sizes, bodies)

    def _receive(self, room: Any, rank: int, tag: int) -> bool:
        there = self._wait(self._comm.Irecv(room, rank, tag), rank)
        if not there:
            self._kept.append(room)
        return there


def _apart(sizes: Any, bodies: Any) -> list[bytes | None]:
    starts = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))])
    return [
        None if size == ABSENT else bodies[start : start + size].tobytes()
        for start, size in zip(starts, sizes, strict=False)
    ]
