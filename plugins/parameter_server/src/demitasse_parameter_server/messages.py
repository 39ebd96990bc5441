"""Messages between workers and servers: a header by msgpack, then the numbers as they lie in memory."""

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
"""Tags of a message's two parts. Those of one sender come in the order in which they were sent. Other
lanes of messages have the tags ``lane`` and ``lane + 1``."""

LENGTH = 256
"""Bytes of a header with its padding."""

POLLS = 2000
PAUSES = 50e-6, 1e-3
"""Times that a request is asked for without a pause, some 1 us each; seconds of the first and the
longest pause then."""

NEWS = 30.0
"""Seconds from an error of MPI's in which it must be known which process's end is behind it."""

NUMBERS, PULL, PUSH, END, REST = "numbers", "pull", "push", "end", "rest"
"""What messages are: numbers that somebody expects; and what workers tell a server that serves each at
its own pace: to give it parameters once it may begin an iteration, gradients, that the iteration is
done, that it does no more for now."""


@dataclass(frozen=True)
class Header:
    """What stands before numbers: of which iteration and shard they are, their type, how many, and the
    CRC-32 of their bytes; what the message is, of which bucket, and of gradients the ``numbers`` by
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
        """What stands before an array."""
        crc = zlib.crc32(array.view(np.uint8))
        about = array.dtype.name, array.size, crc, kind, bucket, numbers or {}
        return cls(iteration, shard, *about)

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

    @classmethod
    def sent_by(cls, source: int, body: Any) -> Header:
        """The header that a rank has sent. Raises WorkerError that names the rank for bytes that are no
        header."""
        try:
            return cls.unpacked(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WorkerError(f"rank {source} sent something that is not a header: {error}") from error

    def check(self, source: int, right: Header) -> None:
        """Raises WorkerError that names the sender and what differs from the right one."""
        if self != right:
            pairs = zip(asdict(self).items(), asdict(right).values(), strict=True)
            told = ", ".join(f"{name} {got}, not {want}" for (name, got), want in pairs if got != want)
            raise WorkerError(f"rank {source} sent unexpected numbers: {told}")


def begin_to_send(communicator: Any, to: int, header: Header, array: Any, lane: int) -> list[Any]:
    """Two requests of mpi4py's, each with what must be kept until it is done."""
    packed = header.packed()
    return [
        (communicator.Isend(packed, to, lane), packed),
        (communicator.Isend(array.view(np.uint8), to, lane + 1), array),
    ]


class Hearing:
    """Looks whether requests of mpi4py's are done. Of a process's end MPI tells by an error of whichever
    call comes next, be it for another process's message: such a request is not done, until those who
    watch the processes know whose end it was, and ``lost`` has it or who waits is told otherwise. Raises
    WorkerError where nobody knows within NEWS."""

    def __init__(self, lost: Mapping[int, str] | None = None) -> None:
        self._lost: Mapping[int, str] = lost if lost is not None else {}
        self._error: RuntimeError | None = None
        self._since = 0.0

    def done(self, request: Any) -> bool:
        """Whether it is."""
        if self._error is not None and not request:  # it was the dead process's, and is none any more
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
    """Sends and receives arrays over a communicator of mpi4py's, which is for it alone. ``check`` raises
    once a process has failed, and is called by all that waits. ``sent`` and ``received`` count payload
    bytes by shard, but those of ``rank``, this process, to itself; ``lost`` has the ranks that the run
    goes on without."""

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
        """Begin to send; ``finish`` waits until all of it may be written again."""
        header = Header.of(array, iteration, shard, kind, bucket, numbers)
        self._going += begin_to_send(self._comm, to, header, array, HEADER)
        if to != self._rank:
            self.sent[shard] = self.sent.get(shard, 0) + array.nbytes

    def receive(
        self, source: int, iteration: int, shard: int, into: Any, bucket: int = 0, lane: int = HEADER
    ) -> None:
        """Wait for an array of that iteration, shard and bucket. Raises WorkerError that names the
        sender and what differs."""
        self.expect(source, iteration, shard, into, bucket, lane)()

    def expect(
        self, source: int, iteration: int, shard: int, into: Any, bucket: int = 0, lane: int = HEADER
    ) -> Callable[[], None]:
        """What waits for an array that may come from now on, as ``receive`` does."""
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
        """Wait until all that is being sent has left."""
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
