"""A step whose loss is checked where it is computed, in memory that a host does not read at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from demitasse import NumericsError, Step, Work, in_rows


class Guard(Protocol):
    """What an accelerator checks a loss by. ``work``, between forward and backward, adds the losses up
    and, where that is no finite number, makes the rate negative, by which updates change nothing."""

    work: Work

    def read(self) -> float:
        """The loss, once the step is done."""


MakeGuard = Callable[[Sequence[tuple[Any, float]], Any], Guard]
"""A guard of losses (with their weights) and the rate, both in the accelerator's memory."""


class GuardedStep(Step):
    """The step of one worker alone, in one pass, as one row of works: nobody waits in its middle."""

    def __init__(self, make: MakeGuard, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._guard = make(self.losses, self.numbers["rate"])
        self._works = in_rows([*self.begin, *self.first, self._guard.work, *self.last])

    def run(self, iteration: int, rate: float) -> float:
        """One iteration; the loss. Raises NumericsError for one that is not finite, parameters as they
        were."""
        self.scalars(iteration, rate)
        clock, phases = time.perf_counter, self.phases
        start = clock()
        for work in self.reads:
            work()
        read = clock()
        for work in self._works:
            work()
        loss = self._guard.read()
        phases.read += read - start
        phases.backward += clock() - read  # and forward: the host knows no border
        if not math.isfinite(loss):
            self.told.clear()  # the rate is what the guard has made it
            raise NumericsError(f"iteration {iteration}: the loss is {loss}")
        return loss
