"""Messages between workers and servers: a header by msgpack, then the numbers as they lie in memory."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgpack
import numpy as np

from demitasse import WorkerError

HEADER, PAYLOAD = 1, 2
"""Tags of a message's two parts. Those of one sender come in the order in which they were sent."""

LENGTH = 128
"""Bytes of a header with its padding."""

POLLS = 2000
PAUSES = 50e-6, 1e-3
"""Times that a request is asked for without a pause, some 1 us each; seconds of the first and the
longest pause then."""


@dataclass(frozen=True)
class Header:
    """What stands before numbers: of which iteration and shard they are, their type, how many, and the
    CRC-32 of their bytes."""

    iteration: int
    shard: int
    dtype: str
    count: int
    crc: int

    def packed(self) -> Any:
        """As bytes, filled up to LENGTH."""
        made = np.zeros(LENGTH, np.uint8)
        body: bytes = msgpack.packb(asdict(self))
        made[: len(body)] = np.frombuffer(body, np.uint8)
        return made

    @classmethod
    def unpacked(cls, body: Any) -> Header:
        """Raises ValueError or TypeError for bytes that are no header."""
        unpacker = msgpack.Unpacker()
        unpacker.feed(bytes(body))
        return cls(**unpacker.unpack())


class Post:
    """Sends and receives arrays over a communicator of mpi4py's, which is for it alone. ``check`` raises
    once a process has failed, and is called by all that waits. ``sent`` and ``received`` count payload
    bytes by shard."""

    def __init__(self, communicator: Any, check: Callable[[], None]) -> None:
        self._comm, self._check = communicator, check
        self._going: list[tuple[Any, Any]] = []
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def send(self, to: int, iteration: int, shard: int, array: Any) -> None:
        """Begin to send; ``finish`` waits until all of it may be written again."""
        crc = zlib.crc32(array.view(np.uint8))
        header = Header(iteration, shard, array.dtype.name, array.size, crc).packed()
        self._going.append((self._comm.Isend(header, to, HEADER), header))
        self._going.append((self._comm.Isend(array.view(np.uint8), to, PAYLOAD), array))
        self.sent[shard] = self.sent.get(shard, 0) + array.nbytes

    def receive(self, source: int, iteration: int, shard: int, into: Any) -> None:
        """Wait for an array of that iteration and shard. Raises WorkerError that names the sender and
        what differs."""
        body = np.empty(LENGTH, np.uint8)
        self._wait(self._comm.Irecv(body, source, HEADER))
        self._wait(self._comm.Irecv(into.view(np.uint8), source, PAYLOAD))
        try:
            header = Header.unpacked(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WorkerError(f"rank {source} sent what is no header: {error}") from error
        crc = zlib.crc32(into.view(np.uint8))
        right = Header(iteration, shard, into.dtype.name, into.size, crc)
        if header != right:
            pairs = zip(asdict(header).items(), asdict(right).values(), strict=True)
            told = ", ".join(f"{name} {got}, not {want}" for (name, got), want in pairs if got != want)
            raise WorkerError(f"rank {source} sent numbers that are not those expected: {told}")
        self.received[shard] = self.received.get(shard, 0) + into.nbytes

    def finish(self) -> None:
        """Wait until all that is being sent has left."""
        for request, _ in self._going:
            self._wait(request)
        self._going.clear()

    def _wait(self, request: Any) -> None:
        polls, (pause, longest) = 0, PAUSES
        while not request.Test():
            polls += 1
            self._check()
            if polls < POLLS:
                os.sched_yield()
                continue
            time.sleep(pause)
            pause = min(longest, pause * 1.2)
