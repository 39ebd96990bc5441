"""What the replicas of a team have in common, and how they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from demitasse import PlanError, Team, process_lock

PATIENCE = 0.05
"""Seconds between looks at whether a sibling failed, while one waits."""

B = TypeVar("B", bound="Board")


class Board:
    """Siblings wait here for each other, as long as none of them fails."""

    def __init__(self, team: Team) -> None:
        self.barrier, self.size = team.barrier, team.size
        self.changed = threading.Condition()

    def wait(self, there: Callable[[], bool], idle: Callable[[], None] | None = None) -> None:
        """Wait until ``there`` is true, looking whenever the board changes. ``idle`` is called when
        nothing has for a while, for what else may have failed. Raises threading.BrokenBarrierError once
        a sibling has."""
        while True:
            with self.changed:
                if self.changed.wait_for(there, PATIENCE):
                    return
            if self.barrier.broken:
                raise threading.BrokenBarrierError
            if idle is not None:
                idle()


def check_all(final: int, scheduled: int) -> None:
    """Raise PlanError unless as many buckets are final when an iteration ends as were scheduled: a level
    outside this one that puts them off to its own end would leave them behind."""
    if final != scheduled:
        raise PlanError(
            f"plugin 'cgdp': {scheduled - final} of {scheduled} buckets of gradients are not final when "
            f"backward has ended: the sync of an outer level delays them to its own end, and would "
            f"exchange them before the accelerators here have; let it exchange each bucket at once"
        )


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Any] = WeakKeyDictionary()


def board_of(team: Team, make: Callable[[], B]) -> B:
    """The board of a team, made for the first who asks."""
    with _LOCK:
        if team not in _TEAMS:
            _TEAMS[team] = make()
        board: B = _TEAMS[team]
        return board
