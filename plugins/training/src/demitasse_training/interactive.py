"""A trainer that is stepped by hand: its net is run layer by layer, and updates on request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from demitasse import CompositionError, NumericsError, Runtime, Solver, WeightsFiles, Work
from demitasse_training.crew import one_at_a_time
from demitasse_training.lent import Lent
from demitasse_training.net import Net
from demitasse_training.resume import resume
from demitasse_training.trainer import Trainer

Following = Callable[[Callable[..., None]], None]
"""Runs a forward pass by calling its argument, which takes two things: whether to use the same samples
again and, to run only some layers, the numbers of the first and the last."""

Returning = Callable[[Callable[..., None]], None]
"""Runs a backward pass by calling its argument, which takes, to run only some layers, the numbers of the
first and the last."""


class InteractiveTrainer(Trainer):
    """A trainer on one worker for a user who reads and writes its nets' blobs between layers, changes
    their shapes, and runs the parts of an iteration himself.

    The worker holds the parameters, their gradients and the solver's state. ``trained`` and
    ``test_nets`` are nets over that memory that keep every blob.
    """

    def __init__(
        self,
        runtime: Runtime,
        solver: str | Path | Solver,
        *,
        weights: WeightsFiles | None = None,
        overrides: Mapping[str, Any] | None = None,
        backward: str = "objective",
    ) -> None:
        record = solver if isinstance(solver, Solver) else runtime.read(solver).solver(overrides)
        super().__init__(runtime, replace(record, tests=()), weights=weights, retain="all")
        self._updates: list[Work] = []
        try:
            if self.workers > 1:
                raise CompositionError(
                    f"an interactive trainer has one worker; {runtime.machine.name} has {self.workers}"
                )
            gradients = self._workers[0].flat.gradients
            about = {"backward": backward, "gradients": gradients, "passes": record.passes}
            self.trained = self._over_parameters(record.train, **about)
            self._tests.nets += [[self._over_parameters(definition)] for definition in record.tests]
        except BaseException:
            self.close()
            raise
        self.solver = record

    @property
    def net(self) -> Any:
        """The net being trained."""
        return self.trained

    @property
    def test_nets(self) -> Sequence[Net]:
        """The nets that are tested."""
        return tuple(nets[0] for nets in self._tests.nets)

    @one_at_a_time
    def iterate(
        self,
        before: Sequence[Callable[[], None]] = (),
        after: Sequence[Callable[[], None]] = (),
        prepare: Callable[[], None] = lambda: None,
        following: Following = lambda run: run(False),
        returning: Returning = lambda run: run(),
    ) -> float:
        """Run one iteration; return the smoothed loss. ``before`` is called once gradients are zero,
        before the first forward pass; ``prepare`` before each forward pass; ``after`` once gradients are
        complete, before they are used. ``following`` runs each forward pass, and may repeat it on the
        same samples; ``returning`` runs each backward pass; both may do it layer by layer. Raises
        NumericsError before a loss that is not finite reaches a parameter."""
        self.trained.walk.clear()
        for call in before:
            call()
        start, rate, loss = time.perf_counter(), self.rate, 0.0
        for number in range(self.solver.passes):
            prepare()
            loss += self.forward(number, following) / self.solver.passes
            if not math.isfinite(loss):
                raise NumericsError(f"iteration {self.iteration}: the loss is {loss}")
            returning(self.trained.walk.backward)
        for call in after:
            call()
        self._crew.run(self._end_iteration, interrupted=list)
        self._recent.append(loss)
        smoothed = sum(self._recent) / len(self._recent)
        if self.listeners:
            about = {"loss": loss, "smoothed": smoothed, "rate": rate, "samples": self.batch}
            seconds = time.perf_counter() - start
            self._tell("iteration", {**about, "seconds": seconds, "phases": {}})
        return smoothed

    def forward(self, number: int = 0, following: Following = lambda run: run(False)) -> float:
        """Run forward pass ``number`` of the current iteration; return its loss."""
        first = number * self.batch // self.solver.passes

        def run(again: bool, start: int = 0, last: int | None = None) -> None:
            walk = self.trained.walk
            if start == 0:
                walk.iteration = self.iteration + again
            walk.forward(start, last, sample=first, again=again)

        following(run)
        return self.trained.step.loss()

    def _end_iteration(self, worker: int) -> None:
        self.apply_update()
        self.iteration += 1

    def apply_update(self) -> None:
        """Update all parameters by their gradients, at the current iteration's learning rate."""
        if not self._updates:
            self._bind_updates()
        self._scalars["iteration"][0], self._scalars["rate"][0] = self.iteration, self.rate
        for work in self._updates:
            work()

    @one_at_a_time
    def restore(self, path: str | Path) -> None:
        """Continue from a snapshot: parameters, solver state and iteration. Raises SnapshotError."""
        saved = self.runtime.read(path).weights()
        resume(self._workers[0], saved, path, self._setting)
        self.iteration = saved.iteration or 0
        self.trained.rewind(self.iteration * self.solver.passes)

    def _end(self) -> None:
        super()._end()
        if hasattr(self, "trained"):
            self.trained.close()

    def _bind_updates(self) -> None:
        worker, plan = self._workers[0], self.plan
        self._scalars = {name: worker.array(buffer) for name, buffer in plan.scalars.items()}
        spans, about = [bucket.span for bucket in plan.buckets], (worker.kernels, worker.allocator)
        norms, scalars = worker.norms, self._scalars
        if norms is not None:
            self._updates = [norms.measure(span, worker.flat, *about) for span in spans] + norms.works()
        for span in spans:
            gradient = worker.flat.gradients[span.start : span.stop]
            known = norms.sizes(span) if norms is not None else {}
            self._updates.append(
                worker.update.bind(span, worker.flat, gradient, scalars, plan, *about, known)
            )

    def _over_parameters(self, definition: Any, gradients: Any = None, **options: Any) -> Net:
        worker = self._workers[0]
        return Net(
            self.runtime,
            definition,
            phase=definition.phase,
            retain="all",
            seed=self.seed,
            lent=Lent(worker.place, self.plan.slots, worker.flat.parameters, gradients),
            **options,
        )
