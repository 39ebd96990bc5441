"""What siblings have in common, and how they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from demitasse import FlatMemory, Team, process_lock

T = TypeVar("T")

PATIENCE = 50_000
"""Microseconds between looks at whether a sibling failed, while one waits."""

WAITED, LEFT, SUMMED, SINCE = range(4)
SPENT = 4
"""A worker's nanoseconds: waiting until the last one came to a gate, leaving it from then on, summing;
and when it came to a gate last."""


class Shared:
    """What siblings have in common since the last failure: a gate, and what else one of them makes."""

    def __init__(self, siblings: int) -> None:
        from demitasse_parameter_server.loops import LINE, TURNS

        self.gate = np.zeros(TURNS + siblings * LINE, np.int64)
        self._making, self._kept = threading.Lock(), dict[Hashable, Any]()

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept by a key, made for the first who asks."""
        with self._making:
            if key not in self._kept:
                self._kept[key] = make()
            found: T = self._kept[key]
            return found


class Board:
    """A team's: what is shared, made anew after each failure, and the master under SSP and ASP."""

    def __init__(self, team: Team) -> None:
        self.barrier = team.barrier
        self._lock, self._size = threading.Lock(), team.size
        self._shared = -1, Shared(team.size)
        self._master: Any = None
        self._following = False

    def shared(self, failures: int) -> Shared:
        """What is shared since as many failures: the same for all siblings, who read the number when
        all of them have stopped."""
        with self._lock:
            if self._shared[0] != failures:
                self._shared = failures, Shared(self._size)
            return self._shared[1]

    def check(self) -> None:
        """Raise threading.BrokenBarrierError when a sibling has failed."""
        if self.barrier.broken:
            raise threading.BrokenBarrierError

    def master(self, first: FlatMemory) -> Any:
        """The parameters that pushes update: as many as ``first``, the first sibling's memory, has
        gradients."""
        with self._lock:
            if self._master is None:
                self._master = np.empty(first.gradients.size, first.parameters.dtype)
            return self._master

    def follow(self, first: FlatMemory) -> None:
        """Before an iteration: a master that nobody has pushed to takes the first one's parameters."""
        with self._lock:
            if not self._following:
                np.copyto(self._master, first.parameters[: self._master.size])
                self._following = True

    def settle(self, first: FlatMemory) -> None:
        """When all have stopped: the first sibling's memory is the newest again."""
        with self._lock:
            if self._following:
                np.copyto(first.parameters[: self._master.size], self._master)
                self._following = False


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Board] = WeakKeyDictionary()


def board_of(team: Team) -> Board:
    """The board of a team, made for the first who asks."""
    with _LOCK:
        return _TEAMS.setdefault(team, Board(team))
