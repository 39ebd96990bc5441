"""A worker as its server sees it: what it sends and what it is being sent, without waiting for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from demitasse import WorkerError
from demitasse_parameter_server.messages import (
    HEADER,
    LENGTH,
    PAYLOAD,
    Header,
    Hearing,
    begin_to_send,
)


class Guest:
    """The worker of a rank, over a communicator of mpi4py's. Messages of more than ``longest`` elements
    of type ``dtype`` are none of its. ``asks`` is the iteration that it would like to begin; ``rests``
    after its last one for now; ``lost`` has the ranks that the run goes on without."""

    def __init__(
        self,
        communicator: Any,
        rank: int,
        dtype: str,
        longest: int,
        lost: Mapping[int, str] | None = None,
    ) -> None:
        self.rank, self.rests = rank, False
        self.asks: int | None = None
        self._comm, self._dtype, self._longest = communicator, dtype, longest
        self._hearing = Hearing(lost)
        self._body = np.empty(LENGTH, np.uint8)
        self._room: Any = None
        self._header: Header | None = None
        self._request = communicator.Irecv(self._body, rank, HEADER)
        self._going: list[tuple[Any, Any]] = []

    def message(self) -> tuple[Header, Any] | None:
        """The next message if all of it is there. Raises WorkerError that names the rank for one that is
        not as it says."""
        if not self._hearing.done(self._request):
            return None
        if self._header is None:
            header = self._header = Header.sent_by(self.rank, self._body)
            if header.dtype != self._dtype or not 0 <= header.count <= self._longest:
                raise WorkerError(
                    f"rank {self.rank} sent {header.count} numbers of type {header.dtype} (valid: up to "
                    f"{self._longest} of {self._dtype})"
                )
            self._room = np.empty(header.count, self._dtype)
            self._request = self._comm.Irecv(self._room.view(np.uint8), self.rank, PAYLOAD)
            if not self._hearing.done(self._request):
                return None
        header, numbers, self._header = self._header, self._room, None
        said = header.iteration, header.shard, header.kind, header.bucket, header.numbers
        right = Header.of(numbers, *said)
        header.check(self.rank, right)
        self._request = self._comm.Irecv(self._body, self.rank, HEADER)
        return header, numbers

    def send(self, header: Header, array: Any, lane: int) -> None:
        """Begin to send it an array, which must stay as it is until ``sent``."""
        self._going += begin_to_send(self._comm, self.rank, header, array, lane)

    def sent(self) -> bool:
        """Whether all has left that was to be sent."""
        self._going = [each for each in self._going if not self._hearing.done(each[0])]
        return not self._going

    def close(self) -> None:
        """Expect nothing more. What is half here stays so: whoever sent it may have died meanwhile."""
        if self._header is None:
            with suppress(RuntimeError):  # mpi4py's: of a process that has ended just now
                self._request.Cancel()
                self._request.Wait()
