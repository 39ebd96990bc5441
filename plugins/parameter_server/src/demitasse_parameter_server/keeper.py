"""A server across processes under SSP and ASP: a thread that holds a shard of the parameters."""

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
"""Lanes of what a server sends: state and the word that all rest, and from PULLED on two tags a
bucket."""

TURNS = 10
PAUSES = 50e-6, 1e-3
"""Times that all guests are looked at in vain without a pause, some 1 us a guest; seconds of the first
and the longest pause then."""

CLOSED = 0.05
"""Seconds between looks at whether to end, while nobody is served."""


class Keeper:
    """The server of process ``rank`` for all of a communicator. Its own are its shard of the parameters,
    the master, that of the solver's state, which lies in the ``memory`` of its process's worker, and an
    inbox: arrays like the worker's flat memory, of which only the shard is touched, so that the rest
    takes no memory.

    Its thread takes each message as it comes. A push is put into the inbox, and the bucket's update done
    by the numbers (rate, iteration) that come with it;
    a pull is answered with a copy of the shard when ``progress`` lets the worker begin. When all that
    are left rest, process 0 is sent the shard with its state, and nobody is served until ``open``. Ranks
    that come into ``lost`` are dropped. What goes wrong is in ``error``."""

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
        self._gone: list[Guest] = []  # with what MPI may still read or write
        self._serving, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"demitasse-server-{self.rank}", daemon=True
        )

    # For the worker's thread.

    def read_numbers(self) -> None:
        """Have places for the numbers that updates read, as the worker has them."""
        self.memory.numbers = {name: np.array(value) for name, value in self._mine.numbers.items()}

    def keep(self, bucket: int, part: Span, update: Work) -> None:
        """Have a bucket's part in the shard, which ``update`` updates by what is in the inbox."""
        self._buckets[bucket] = slice(part.start, part.stop), update

    def open(self) -> None:
        """Serve, from the parameters that this process's worker has."""
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
        """When all rest: the worker has the newest of the shard."""
        self._copy(self._mine.parameters, self.memory.parameters)

    def told(self) -> str:
        """How far ahead workers have been."""
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
        """The buckets that the shard has parts of, in their order, and those parts."""
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
        """Take a message of each guest that has sent one, and whether there was any."""
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
        """All rest: process 0 gets what it has not, and each the word."""
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
