"""What siblings share, and how they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from demitasse import FlatMemory, Team, process_lock

T = TypeVar("T")

PATIENCE = 50_000
"""Microseconds of waiting after which a worker checks whether a sibling failed."""

WAITED, LEFT, SUMMED, SINCE = range(4)
SPENT = 4
"""Words of a worker's record of times, in nanoseconds: waiting until the last sibling came to a gate,
leaving the gate afterwards, summing; and the time at which it last came to a gate."""


class Shared:
    """What siblings have shared since the last failure: a gate, and objects that one of them makes."""

    def __init__(self, siblings: int) -> None:
        from demitasse_parameter_server.loops import LINE, TURNS

        self.gate = np.zeros(TURNS + siblings * LINE, np.int64)
        self._making, self._kept = threading.Lock(), dict[Hashable, Any]()

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object that is kept under a key; it is made for the first who asks."""
        with self._making:
            if key not in self._kept:
                self._kept[key] = make()
            found: T = self._kept[key]
            return found


class Board:
    """The board of a team: what siblings share, which is made anew after each failure, and the master
    parameters under SSP and ASP."""

    def __init__(self, team: Team) -> None:
        self.barrier = team.barrier
        self._lock, self._size = threading.Lock(), team.size
        self._shared = -1, Shared(team.size)
        self._master: Any = None
        self._following = False

    def shared(self, failures: int) -> Shared:
        """Return what is shared after a number of failures. It is the same for all siblings, which read
        this number when all of them have stopped."""
        with self._lock:
            if self._shared[0] != failures:
                self._shared = failures, Shared(self._size)
            return self._shared[1]

    def check(self) -> None:
        """Raise threading.BrokenBarrierError if a sibling has failed."""
        if self.barrier.broken:
            raise threading.BrokenBarrierError

    def master(self, first: FlatMemory) -> Any:
        """Return the master parameters, which pushes update. There are as many as gradients in
        ``first``, the first sibling's memory."""
        with self._lock:
            if self._master is None:
                self._master = np.empty(first.gradients.size, first.parameters.dtype)
            return self._master

    def follow(self, first: FlatMemory) -> None:
        """Before an iteration: copy the first sibling's parameters to the master, unless it is in use
        already."""
        with self._lock:
            if not self._following:
                np.copyto(self._master, first.parameters[: self._master.size])
                self._following = True

    def settle(self, first: FlatMemory) -> None:
        """When all siblings have stopped: copy the master to the first sibling's memory."""
        with self._lock:
            if self._following:
                np.copyto(first.parameters[: self._master.size], self._master)
                self._following = False


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Board] = WeakKeyDictionary()


def board_of(team: Team) -> Board:
    """Return the board of a team; it is made for the first who asks."""
    with _LOCK:
        return _TEAMS.setdefault(team, Board(team))
