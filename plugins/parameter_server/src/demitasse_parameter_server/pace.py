"""How long a worker's own steps take, and holding it up by so many of them where that is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from demitasse_parameter_server.board import PATIENCE


class Pace:
    """Of one worker that is held up ``delay`` times its own step before each. ``check`` is called now
    and then meanwhile, and raises when there is nothing to go on for."""

    def __init__(self, delay: float, check: Callable[[], None]) -> None:
        self._delay, self._check = delay, check
        self._began = self._waited = self._own = 0.0

    def now(self) -> float:
        """Seconds of the clock that workers measure themselves by."""
        return time.perf_counter()

    def begun(self) -> None:
        """The start of an iteration: a straggler's delay."""
        until = self.now() + self._delay * self._own
        while (rest := until - self.now()) > 0:
            time.sleep(min(rest, PATIENCE * 1e-6))
            self._check()
        self._began, self._waited = self.now(), 0.0

    def ended(self) -> None:
        """The end of an iteration's work."""
        self._own = self.now() - self._began - self._waited

    def waited(self, since: float) -> None:
        """Time since then was spent waiting for siblings."""
        self._waited += self.now() - since
