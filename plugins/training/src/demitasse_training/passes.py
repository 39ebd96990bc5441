"""Iterations whose samples have shapes of their own: passes that are each planned for what they are
given."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from demitasse import Candidate, Entry, NumericsError, Plan, Step, Work
from demitasse_training.net import Net
from demitasse_training.own_shapes import SampleShapes

if TYPE_CHECKING:
    from demitasse_training.worker import Worker


def around(plan: Plan) -> Plan:
    """A plan that computes nothing. Its step has what ``plan``'s has besides: all that is waited for
    before the first pass, and that becomes of gradients behind the last."""
    buckets = len(plan.buckets)
    about = "training", "nothing", "around passes that are planned by themselves"
    sizes: tuple[Any, ...] = (), (), None, False, 0.0, 0.0, Candidate("nothing", _nothing)
    entries = tuple(Entry("nothing", "", phase, *about, *sizes) for phase in ("forward", "backward"))
    first, last = (0,) * buckets, (1,) * buckets
    return replace(plan, entries=entries, objective=(), first_read=first, final=last)


def _nothing(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    return _idle


def _idle() -> None:
    """What the entries of a plan ``around`` others do."""


def at_work(step: Step) -> None:
    """Take what does nothing out of the step of such a plan."""
    for row in (step.first, step.last):
        row[:] = [work for work in row if not any(a is _idle for a in getattr(work, "args", ()))]


class Passes:
    """What stands for a worker's step: its ``net``, over the worker's parameters and gradients, is
    planned for each pass's samples; ``outer`` is the step of what is ``around`` them. ``step`` is that
    of the last pass."""

    def __init__(self, worker: Worker, net: Net, outer: Step) -> None:
        self.net, self.outer, self.phases, self.step = net, outer, outer.phases, net.step
        self._solver, self._gradients = worker.solver, worker.flat.gradients
        self._adds = any(entry.operation == "accumulate" for entry in net.plan.entries)
        main = net.graph.feeds[0] if net.graph.feeds else None
        self._batch, self._offset = (main.batch, main.offset) if main else (0, 0)

    def begin(self, iteration: int) -> None:
        """Have samples come from an iteration on, unless they are coming."""
        self.net.begin(iteration * self._solver.passes)

    def run(self, iteration: int, rate: float) -> float:
        """As ``Step.run``. Raises DataError for a sample of a shape that the net cannot take."""
        net, outer, clock, phases = self.net, self.outer, time.perf_counter, self.phases
        passes, loss = self._solver.passes, 0.0
        outer.scalars(iteration, rate)
        for work in outer.begin:
            work()
        if self._adds:
            self._gradients[...] = 0
        for number in range(passes):
            start, before, reading = clock(), phases.synchronise, 0.0
            samples = net.coming()
            come, first = clock(), [] if number else [*outer.first]

            def run(again: bool, number: int = number, first: list[Work] = first) -> None:
                nonlocal reading
                step, at = self._ready(iteration, rate, number), clock()
                if not again:
                    net.read()
                    reading += clock() - at
                while first:
                    first.pop(0)()
                for work in step.forward:
                    work()

            net.run_through(samples, run)
            step = self.step
            loss += step.loss() / passes
            forward, waited = clock(), phases.synchronise
            if not math.isfinite(loss):
                raise NumericsError(f"iteration {iteration}: the loss is {loss}")
            for work in (*step.backward, *(outer.last if number == passes - 1 else ())):
                work()
            phases.read += come - start + reading
            phases.forward += forward - come - reading - (waited - before)
            phases.backward += clock() - forward - (phases.synchronise - waited)
        for work in outer.end:
            work()
        return loss

    def next(self, samples: SampleShapes, iteration: int, rate: float, number: int = 0) -> Step:
        """The step of an iteration's pass of that ``number``, planned for its ``samples``."""
        self.net.follow(samples)
        return self._ready(iteration, rate, number)

    def _ready(self, iteration: int, rate: float, number: int) -> Step:
        """The step that is planned, told its numbers."""
        self.step = step = self.net.step
        step.phases = self.phases
        step.scalars(iteration, rate)
        step.tell("sample", number * self._batch + self._offset)
        return step
