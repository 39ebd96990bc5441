"""Measuring how long a worker's own steps take, and delaying it by a multiple of that on request."""

from __future__ import annotations

import time
from collections.abc import Callable

from demitasse_parameter_server.board import PATIENCE


class Pace:
    """The pace of one worker, which is held up by ``delay`` times its own step before each step.
    ``check`` is called from time to time meanwhile, and raises if the run cannot continue."""

    def __init__(self, delay: float, check: Callable[[], None]) -> None:
        self._delay, self._check = delay, check
        self._began = self._waited = self._own = 0.0

    def now(self) -> float:
        """Return the seconds of the clock by which workers measure themselves."""
        return time.perf_counter()

    def begun(self) -> None:
        """Begin an iteration, after a straggler's delay."""
        until = self.now() + self._delay * self._own
        while (rest := until - self.now()) > 0:
            time.sleep(min(rest, PATIENCE * 1e-6))
            self._check()
        self._began, self._waited = self.now(), 0.0

    def ended(self) -> None:
        """Note the end of an iteration's work."""
        self._own = self.now() - self._began - self._waited

    def waited(self, since: float) -> None:
        """Note that the time since ``since`` was spent waiting for siblings."""
        self._waited += self.now() - since
