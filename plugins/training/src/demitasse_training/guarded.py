"""A step whose loss is checked on the accelerator, in memory that the host cannot read at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from demitasse import NumericsError, Step, Work, in_rows


class Guard(Protocol):
    """An accelerator's check of a loss. ``work``, between forward and backward, sums the losses. If the
    sum is not finite, it makes the learning rate negative, which lets updates change nothing."""

    work: Work

    def read(self) -> float:
        """Return the loss, once the step is done."""


MakeGuard = Callable[[Sequence[tuple[Any, float]], Any], Guard]
"""Makes a guard for losses (with their weights) and the rate, both in the accelerator's memory."""


class GuardedStep(Step):
    """The step of a lone worker with one pass, as one sequence of works: nobody waits in its middle."""

    def __init__(self, make: MakeGuard, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._guard = make(self.losses, self.numbers["rate"])
        self._works = in_rows([*self.begin, *self.first, self._guard.work, *self.last])

    def run(self, iteration: int, rate: float) -> float:
        """Run one iteration; return the loss. Raises NumericsError if it is not finite; parameters are
        then unchanged."""
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
        phases.backward += clock() - read  # includes forward: the host cannot tell where it ends
        if not math.isfinite(loss):
            self.told.clear()  # the guard has changed the rate
            raise NumericsError(f"iteration {iteration}: the loss is {loss}")
        return loss
