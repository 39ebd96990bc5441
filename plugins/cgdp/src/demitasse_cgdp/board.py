"""What the replicas of a team share, and how they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from demitasse import PlanError, Team, process_lock

PATIENCE = 0.05
"""Seconds between checks for the failure of a sibling during a wait."""

B = TypeVar("B", bound="Board")


class Board:
    """Siblings wait for each other here, as long as none of them fails."""

    def __init__(self, team: Team) -> None:
        self.barrier, self.size = team.barrier, team.size
        self.changed = threading.Condition()

    def wait(self, there: Callable[[], bool], idle: Callable[[], None] | None = None) -> None:
        """Wait until ``there`` returns true; it is called whenever the board changes. ``idle`` is called
        when nothing has changed for a while, to look for other failures. Raises
        threading.BrokenBarrierError once a sibling has failed."""
        while True:
            with self.changed:
                if self.changed.wait_for(there, PATIENCE):
                    return
            if self.barrier.broken:
                raise threading.BrokenBarrierError
            if idle is not None:
                idle()


def check_all(final: int, scheduled: int) -> None:
    """Raise PlanError unless as many buckets were final at the end of an iteration as were scheduled. If
    an outer level puts buckets off to its own end, they would be left behind."""
    if final != scheduled:
        raise PlanError(
            f"plugin 'cgdp': {scheduled - final} of {scheduled} buckets of gradients are not final when "
            f"backward has ended: the sync of an outer level delays them to its own end, and would "
            f"exchange them before the accelerators here have; let it exchange each bucket at once"
        )


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Any] = WeakKeyDictionary()


def board_of(team: Team, make: Callable[[], B]) -> B:
    """Return a team's board. ``make`` makes it for the first caller."""
    with _LOCK:
        if team not in _TEAMS:
            _TEAMS[team] = make()
        board: B = _TEAMS[team]
        return board
