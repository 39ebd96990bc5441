"""Messages between workers and servers: a msgpack header, then the numbers as they are in memory."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack
import numpy as np

from demitasse import WorkerError

HEADER, PAYLOAD = 1, 2
"""Tags of a message's two parts. Messages of one sender come in the order in which they were sent.
Other lanes of messages have the tags ``lane`` and ``lane + 1``."""

LENGTH = 256
"""Bytes of a header with its padding."""

POLLS = 2000
PAUSES = 50e-6, 1e-3
"""How often a request is polled without a pause, at about 1 us each; then the seconds of the first and
of the longest pause."""

NEWS = 30.0
"""Seconds after an MPI error within which it must become known which process's end caused it."""

NUMBERS, PULL, PUSH, END, REST = "numbers", "pull", "push", "end", "rest"
"""Kinds of messages: NUMBERS that the receiver expects; and messages of workers to a server that serves
each at its own pace: PULL requests parameters as soon as the worker may begin an iteration, PUSH has
gradients, END says that the iteration is done, and REST that the worker stops for now."""


@dataclass(frozen=True)
class Header:
    """The header before the numbers of a message: their iteration and shard, their type and count, and
    the CRC-32 of their bytes; the kind of message, its bucket and, for gradients, the ``numbers`` with
    which to update (rate, iteration)."""

    iteration: int
    shard: int
    dtype: str
    count: int
    crc: int
    kind: str = NUMBERS
    bucket: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        array: Any,
        iteration: int,
        shard: int,
        kind: str = NUMBERS,
        bucket: int = 0,
        numbers: Mapping[str, float] | None = None,
    ) -> Header:
        """Return the header for an array."""
        crc = zlib.crc32(array.view(np.uint8))
        about = array.dtype.name, array.size, crc, kind, bucket, numbers or {}
        return cls(iteration, shard, *about)

    def packed(self) -> Any:
        """Return the header as an array of LENGTH bytes, padded with zeros."""
        made = np.zeros(LENGTH, np.uint8)
        body: bytes = msgpack.packb(asdict(self))
        made[: len(body)] = np.frombuffer(body, np.uint8)
        return made

    @classmethod
    def unpacked(cls, body: Any) -> Header:
        """Return the header in these bytes. Raises ValueError or TypeError if they are not a header."""
        unpacker = msgpack.Unpacker()
        unpacker.feed(bytes(body))
        return cls(**unpacker.unpack())

    @classmethod
    def sent_by(cls, source: int, body: Any) -> Header:
        """Return the header that a rank has sent. If the bytes are not a header, raises WorkerError,
        which names the rank."""
        try:
            return cls.unpacked(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WorkerError(f"rank {source} sent something that is not a header: {error}") from error

    def check(self, source: int, right: Header) -> None:
        """Raise WorkerError, which names the sender and the differences, unless this is the ``right``
        header."""
        if self != right:
            pairs = zip(asdict(self).items(), asdict(right).values(), strict=True)
            told = ", ".join(f"{name} {got}, not {want}" for (name, got), want in pairs if got != want)
            raise WorkerError(f"rank {source} sent unexpected numbers: {told}")


def begin_to_send(communicator: Any, to: int, header: Header, array: Any, lane: int) -> list[Any]:
    """Begin to send a header and an array. Returns two mpi4py requests, each with the buffer that must
    be kept until it is done."""
    packed = header.packed()
    return [
        (communicator.Isend(packed, to, lane), packed),
        (communicator.Isend(array.view(np.uint8), to, lane + 1), array),
    ]


class Hearing:
    """Tests whether mpi4py requests are done. MPI reports the end of a process as an error of whichever
    call comes next, even one for another process's message. Such a request counts as not done until it
    is known which process ended: then ``lost`` has this process, or the waiting caller's ``check``
    raises. If no process is known to have ended within NEWS seconds, raises WorkerError."""

    def __init__(self, lost: Mapping[int, str] | None = None) -> None:
        self._lost: Mapping[int, str] = lost if lost is not None else {}
        self._error: RuntimeError | None = None
        self._since = 0.0

    def done(self, request: Any) -> bool:
        """Return whether a request is done."""
        if self._error is not None and not request:  # it was for the dead process; it is null now
            return self._doubt(self._error)
        try:
            return bool(request.Test())
        except RuntimeError as error:  # mpi4py's Exception is one
            return self._doubt(error)

    def _doubt(self, error: RuntimeError) -> bool:
        now = time.monotonic()
        if self._error is None:
            self._error, self._since = error, now
        if now - self._since > NEWS:
            if not self._lost:
                raise WorkerError(
                    f"MPI failed, but no process is known to have ended: {error}"
                ) from error
            self._since = now
        return False


class Post:
    """Sends and receives arrays over an mpi4py communicator that nothing else uses. All waits call
    ``check``, which raises once a process has failed. ``sent`` and ``received`` count payload bytes by
    shard, except those that ``rank``, this process, sends to itself. ``lost`` has the ranks that the
    run continues without."""

    def __init__(
        self,
        communicator: Any,
        check: Callable[[], None],
        rank: int | None = None,
        lost: Mapping[int, str] | None = None,
    ) -> None:
        self._comm, self._check, self._rank = communicator, check, rank
        self._hearing = Hearing(lost)
        self._going: list[tuple[Any, Any]] = []
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def send(
        self,
        to: int,
        iteration: int,
        shard: int,
        array: Any,
        kind: str = NUMBERS,
        bucket: int = 0,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        """Begin to send an array; after ``finish`` it may be written again."""
        header = Header.of(array, iteration, shard, kind, bucket, numbers)
        self._going += begin_to_send(self._comm, to, header, array, HEADER)
        if to != self._rank:
            self.sent[shard] = self.sent.get(shard, 0) + array.nbytes

    def receive(
        self, source: int, iteration: int, shard: int, into: Any, bucket: int = 0, lane: int = HEADER
    ) -> None:
        """Wait for an array of this iteration, shard and bucket. If something else comes, raises
        WorkerError, which names the sender and the differences."""
        self.expect(source, iteration, shard, into, bucket, lane)()

    def expect(
        self, source: int, iteration: int, shard: int, into: Any, bucket: int = 0, lane: int = HEADER
    ) -> Callable[[], None]:
        """Post the receive of an array that may come from now on. Returns a function that waits for it,
        as ``receive`` does."""
        body = np.empty(LENGTH, np.uint8)
        requests = [
            self._comm.Irecv(body, source, lane),
            self._comm.Irecv(into.view(np.uint8), source, lane + 1),
        ]

        def wait() -> None:
            for request in requests:
                self.wait(request)
            header = Header.sent_by(source, body)
            header.check(source, Header.of(into, iteration, shard, bucket=bucket))
            if source != self._rank:
                self.received[shard] = self.received.get(shard, 0) + into.nbytes

        return wait

    def finish(self) -> None:
        """Wait until everything that is being sent has left."""
        for request, _ in self._going:
            self.wait(request)
        self._going.clear()

    def wait(self, request: Any) -> None:
        """Wait for one of the communicator's requests."""
        polls, (pause, longest) = 0, PAUSES
        while not self._hearing.done(request):
            polls += 1
            self._check()
            if polls < POLLS:
                os.sched_yield()
                continue
            time.sleep(pause)
            pause = min(longest, pause * 1.2)
