"""A worker as its server sees it: receiving its messages and sending to it, without waiting."""

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
    """The worker of a rank, over an mpi4py communicator. Its messages have at most ``longest`` elements
    of type ``dtype``. ``asks`` is the iteration that it has asked to begin; ``rests`` is true after its
    last iteration for now; ``lost`` has the ranks that the run continues without."""

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
        """Return the next message if all of it has come, else None. If it does not match its header,
        raises WorkerError, which names the rank."""
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
        """Begin to send an array, which must not change until ``sent`` returns True."""
        self._going += begin_to_send(self._comm, self.rank, header, array, lane)

    def sent(self) -> bool:
        """Return whether everything has left."""
        self._going = [each for each in self._going if not self._hearing.done(each[0])]
        return not self._going

    def close(self) -> None:
        """Stop receiving. A message of which only a part has come is left alone: its sender may have
        died meanwhile."""
        if self._header is None:
            with suppress(RuntimeError):  # mpi4py's error for a process that has just ended
                self._request.Cancel()
                self._request.Wait()
