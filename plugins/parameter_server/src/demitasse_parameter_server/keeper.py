"""A server under SSP and ASP across processes: a thread that holds a shard of the parameters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse import FlatMemory, Span, Work, WorkerError
from demitasse_parameter_server.guest import Guest
from demitasse_parameter_server.messages import END, PULL, PUSH, REST, Header
from demitasse_parameter_server.progress import Progress

log = logging.getLogger("demitasse.parameter_server")

RESTED, PULLED = 3, 5
"""Lanes (tags) of what a server sends: RESTED for state and for the message that all workers rest; from
PULLED on, two tags for each bucket."""

TURNS = 10
PAUSES = 50e-6, 1e-3
"""How often all guests are polled in vain without a pause, at about 1 us per guest; then the seconds of
the first and of the longest pause."""

CLOSED = 0.05
"""Seconds between checks whether to end, while no worker is served."""


class Keeper:
    """The server of process ``rank`` for all processes of a communicator. It owns its shard of the
    parameters, which is the master copy, its shard of the solver's state, which is in the ``memory`` of
    its process's worker, and an inbox for gradients. Master and inbox are arrays like the worker's flat
    memory, of which only the shard is touched, so the rest takes no memory.

    Its thread handles each message as it comes. A push is copied to the inbox, and the bucket is
    updated with the numbers (rate, iteration) that come with it. A pull is answered with a copy of the
    shard when ``progress`` lets the worker begin. When all remaining workers rest, process 0 is sent
    the shard with its state, and no worker is served until ``open``. Ranks that appear in ``lost`` are
    dropped. If the thread fails, ``error`` has the exception."""

    def __init__(
        self,
        communicator: Any,
        memory: FlatMemory,
        staleness: int | None,
        lost: Mapping[int, str],
    ) -> None:
        self._comm, self._lost = communicator, lost
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self._mine = memory
        trained = memory.gradients.size
        self.memory = FlatMemory(
            np.empty(trained, memory.parameters.dtype),
            np.empty(trained, memory.gradients.dtype),
            memory.state,
        )
        self.progress = Progress(range(self.size), staleness)
        self.sent = self.received = 0
        self.error: BaseException | None = None
        self._buckets: dict[int, tuple[slice, Work]] = {}
        self._guests: dict[int, Guest] = {}
        self._gone: list[Guest] = []  # dropped guests, whose buffers MPI may still read or write
        self._serving, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"demitasse-server-{self.rank}", daemon=True
        )

    # For the worker's thread.

    def read_numbers(self) -> None:
        """Make arrays for the numbers that updates read, like those of the worker."""
        self.memory.numbers = {name: np.array(value) for name, value in self._mine.numbers.items()}

    def keep(self, bucket: int, part: Span, update: Work) -> None:
        """Add a bucket's part to the shard. ``update`` updates it with the gradients in the inbox."""
        self._buckets[bucket] = slice(part.start, part.stop), update

    def open(self) -> None:
        """Start to serve, with the parameters that this process's worker has."""
        self._copy(self.memory.parameters, self._mine.parameters)
        if self._thread.ident is None:
            dtype = self.memory.gradients.dtype.name
            longest = max((part.stop - part.start for part, _ in self._buckets.values()), default=0)
            ranks = range(self.size)
            about = dtype, longest, self._lost
            self._guests = {rank: Guest(self._comm, rank, *about) for rank in ranks}
            self._thread.start()
        self._serving.set()

    def settle(self) -> None:
        """When all workers rest: copy the shard to this process's worker."""
        self._copy(self._mine.parameters, self.memory.parameters)

    def told(self) -> str:
        """Return a line about how far ahead workers have been."""
        return f"a worker was at most {self.progress.widest} iterations ahead when it began another"

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for guest in self._guests.values():
            guest.close()
        self._guests.clear()

    def parts(self) -> list[tuple[int, slice]]:
        """Return (bucket, part) for all parts of the shard, in the order of buckets."""
        return [(bucket, part) for bucket, (part, _) in sorted(self._buckets.items())]

    def _copy(self, to: Any, source: Any) -> None:
        for _, part in self.parts():
            np.copyto(to[part], source[part])

    # The thread.

    def _run(self) -> None:
        turns, (pause, longest) = 0, PAUSES
        try:
            while not self._stopping.is_set():
                if not self._serving.wait(CLOSED):
                    continue
                turns = 0 if self._turn() else turns + 1
                if turns > TURNS:
                    time.sleep(pause)
                pause = min(longest, pause * 1.2) if turns > TURNS else PAUSES[0]
        except BaseException as error:  # noqa: BLE001 - the worker's thread raises it
            self.error = error

    def _turn(self) -> bool:
        """Handle one message of each guest that has sent any; return whether there was one."""
        self._drop()
        worked = False
        for guest in self._guests.values():
            guest.sent()
            if not guest.rests and (message := guest.message()) is not None:
                self._take(guest, *message)
                worked = True
        for guest in self._guests.values():
            if guest.asks is not None and self.progress.begins(guest.rank):
                self._give(guest, guest.asks)
                guest.asks = None
        if all(guest.rests for guest in self._guests.values()):
            self._rest()
        return worked

    def _drop(self) -> None:
        for rank in [rank for rank in self._guests if rank in self._lost]:
            self._gone.append(self._guests.pop(rank))
            self.progress.drop(rank)
            if self.rank == 0:
                log.warning(
                    "%s: dropped; %d of %d processes continue, without its share of each batch",
                    self._lost[rank],
                    len(self._guests),
                    self.size,
                )

    def _take(self, guest: Guest, header: Header, numbers: Any) -> None:
        if header.kind == PULL:
            guest.asks = header.iteration
        elif header.kind == END:
            self.progress.ends(guest.rank)
        elif header.kind == REST:
            guest.rests = True
        elif header.kind == PUSH and header.bucket in self._buckets:
            part, update = self._buckets[header.bucket]
            room = self.memory.gradients[part]
            if numbers.size != room.size:
                raise WorkerError(
                    f"rank {guest.rank} pushed {numbers.size} gradients of bucket {header.bucket}, but "
                    f"shard {self.rank} has {room.size} of them"
                )
            np.copyto(room, numbers)
            for name, number in header.numbers.items():
                self.memory.numbers[name][...] = number
            self.received += 0 if guest.rank == self.rank else numbers.nbytes
            update()
        else:
            raise WorkerError(
                f"rank {guest.rank} sent a message of kind {header.kind!r} for bucket {header.bucket}, "
                f"which shard {self.rank} does not know"
            )

    def _give(self, guest: Guest, iteration: int) -> None:
        for bucket, part in self.parts():
            self._send(
                guest, self.memory.parameters[part].copy(), iteration, bucket, PULLED + 2 * bucket
            )

    def _rest(self) -> None:
        """All workers rest: send process 0 the shard that it does not have, and tell all workers."""
        first = self._guests[0]
        for bucket, part in self.parts() if self.rank > 0 else ():
            for array in (self.memory.parameters, *self.memory.state.values()):
                self._send(first, array[part], 0, bucket, RESTED)
        while not first.sent():
            if self._stopping.is_set():
                return
            time.sleep(PAUSES[1])
        self._serving.clear()
        for guest in self._guests.values():
            guest.rests = False
        for guest in self._guests.values():
            self._send(guest, self.memory.parameters[:0], 0, 0, RESTED)

    def _send(self, guest: Guest, array: Any, iteration: int, bucket: int, lane: int) -> None:
        guest.send(Header.of(array, iteration, self.rank, bucket=bucket), array, lane)
        self.sent += 0 if guest.rank == self.rank else array.nbytes
