"""Iterations whose samples vary in shape: each pass is planned for the samples that it is given."""

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
    """Return a plan that computes nothing. Its step has the rest of ``plan``'s step: everything that is
    waited for before the first pass, and all that happens to gradients after the last."""
    buckets = len(plan.buckets)
    about = "training", "nothing", "around passes that are planned by themselves"
    sizes: tuple[Any, ...] = (), (), None, False, 0.0, 0.0, Candidate("nothing", _nothing)
    entries = tuple(Entry("nothing", "", phase, *about, *sizes) for phase in ("forward", "backward"))
    first, last = (0,) * buckets, (1,) * buckets
    return replace(plan, entries=entries, objective=(), first_read=first, final=last)


def _nothing(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    return _idle


def _idle() -> None:
    """Do nothing: the work of the entries in a plan ``around`` others."""


def at_work(step: Step) -> None:
    """Remove the work that does nothing from the step of a plan made by ``around``."""
    for row in (step.first, step.last):
        row[:] = [work for work in row if not any(a is _idle for a in getattr(work, "args", ()))]


class Passes:
    """Replaces a worker's step if samples vary in shape. Its ``net``, over the worker's parameters and
    gradients, is planned for each pass's samples; ``outer`` is the step of the plan ``around`` them;
    ``step`` is that of the last pass."""

    def __init__(self, worker: Worker, net: Net, outer: Step) -> None:
        self.net, self.outer, self.phases, self.step = net, outer, outer.phases, net.step
        self._solver, self._gradients = worker.solver, worker.flat.gradients
        self._adds = any(entry.operation == "accumulate" for entry in net.plan.entries)
        main = net.graph.feeds[0] if net.graph.feeds else None
        self._batch, self._offset = (main.batch, main.offset) if main else (0, 0)

    def begin(self, iteration: int) -> None:
        """Start reading samples at an iteration, unless reading has begun."""
        self.net.begin(iteration * self._solver.passes)

    def run(self, iteration: int, rate: float) -> float:
        """Like ``Step.run``. Raises DataError if the net does not support a sample's shape."""
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
        """Return the step of pass ``number`` of an iteration, planned for its ``samples``."""
        self.net.follow(samples)
        return self._ready(iteration, rate, number)

    def _ready(self, iteration: int, rate: float, number: int) -> Step:
        """Return the current step, with its scalars set."""
        self.step = step = self.net.step
        step.phases = self.phases
        step.scalars(iteration, rate)
        step.tell("sample", number * self._batch + self._offset)
        return step
