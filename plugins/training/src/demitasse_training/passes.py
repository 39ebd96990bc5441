"""Iterations of a lone worker whose samples have shapes of their own: passes that are each planned for
what they are given, and then the updates."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from demitasse import NumericsError, Phases, Step, Work
from demitasse_training.net import Net
from demitasse_training.own_shapes import SampleShapes

if TYPE_CHECKING:
    from demitasse_training.worker import Worker


class Updates:
    """The updates of all of a lone worker's parameters, by the gradients that they have: ``works``."""

    def __init__(self, worker: Worker) -> None:
        plan, flat, norms = worker.plan, worker.flat, worker.norms
        self._scalars = {name: worker.array(buffer) for name, buffer in plan.scalars.items()}
        spans, about = [bucket.span for bucket in plan.buckets], (worker.kernels, worker.allocator)
        self.works = list[Work]()
        if norms is not None:
            self.works += [norms.measure(span, flat, *about) for span in spans] + norms.works()
        for span in spans:
            gradient = flat.gradients[span.start : span.stop]
            known = norms.sizes(span) if norms is not None else {}
            self.works.append(
                worker.update.bind(span, flat, gradient, self._scalars, plan, *about, known)
            )

    def __call__(self, iteration: int, rate: float) -> None:
        """Make those of an iteration."""
        self._scalars["iteration"][0], self._scalars["rate"][0] = iteration, rate
        for work in self.works:
            work()


class Passes:
    """What stands for a worker's step: its ``net``, over the worker's parameters and gradients, is
    planned for each pass's samples. ``step`` is that of the last."""

    def __init__(self, worker: Worker, net: Net) -> None:
        self.net, self.phases, self.step = net, Phases(), net.step
        self._updates = Updates(worker)
        self._flat, self._solver = worker.flat, worker.solver

    def begin(self, iteration: int) -> None:
        """Have samples come from an iteration on, unless they are coming."""
        self.net.begin(iteration * self._solver.passes)

    def run(self, iteration: int, rate: float) -> float:
        """As ``Step.run``."""
        clock, phases, passes, loss = time.perf_counter, self.phases, self._solver.passes, 0.0
        self._flat.gradients[...] = 0
        for number in range(passes):
            start = clock()
            samples = self.net.coming()
            waited = clock()
            step = self.next(samples, iteration, rate, number)
            planned = clock()
            self.net.read()
            read = clock()
            for work in step.forward:
                work()
            loss += step.loss() / passes
            forward = clock()
            if not math.isfinite(loss):
                raise NumericsError(f"iteration {iteration}: the loss is {loss}")
            for work in step.backward:
                work()
            phases.read += waited - start + read - planned
            phases.forward += forward - read + planned - waited
            phases.backward += clock() - forward
        start = clock()
        self._updates(iteration, rate)
        phases.backward += clock() - start
        return loss

    def next(self, samples: SampleShapes, iteration: int, rate: float, number: int = 0) -> Step:
        """The step of an iteration's pass of that ``number``, planned for its ``samples``."""
        self.step = step = self.net.follow(samples)
        step.phases = self.phases
        step.scalars(iteration, rate)
        step.tell("sample", number)
        return step
