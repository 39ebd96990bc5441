"""The trainer: workers that step together, tests and snapshots at the solver's intervals."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demitasse import (
    PRECISIONS,
    Entry,
    Event,
    ModelError,
    NumericsError,
    Phases,
    Runtime,
    Solver,
    Weights,
    Workers,
    arrange,
)
from demitasse_training import parameters
from demitasse_training.arguments import (
    at_least_one,
    check_retain,
    check_scaling,
    chosen_precision,
    listed,
)
from demitasse_training.diagnosis import diagnose
from demitasse_training.listeners import listener_of
from demitasse_training.look import Look
from demitasse_training.net import Net
from demitasse_training.profiling import timed
from demitasse_training.resume import resume, seed_of
from demitasse_training.samples import opener
from demitasse_training.saving import check_writable, gathered, paths_of, write
from demitasse_training.sizes import sizes
from demitasse_training.update import Update
from demitasse_training.worker import Worker


@dataclass(frozen=True)
class Result:
    """What some iterations came to: the loss of the last (its mean over ``average_loss``), the
    seconds they took, and by phase (read, forward, backward, synchronise) on the first worker."""

    iteration: int
    loss: float
    seconds: float
    phases: Mapping[str, float]


class Trainer:
    """Trains the net of a solver file on a runtime's workers. See the plugin's README for options.

    Raises ModelError, ShapeError, DataError or SnapshotError before the first step for whatever
    cannot work.
    """

    def __init__(
        self,
        runtime: Runtime,
        solver: str | Path | Solver,
        *,
        weights: str | Path | Sequence[str | Path] | None = None,
        resume: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        data: Mapping[str, Mapping[str, Any]] | None = None,
        scaling: str = "strong",
        precision: str | None = None,
        retain: str | None = None,
        partial: bool = False,
    ) -> None:
        check_scaling(scaling)
        check_retain(retain)
        self.runtime, self.scaling = runtime, scaling
        self.precision = chosen_precision(runtime, precision)
        self.dtype = PRECISIONS[self.precision]
        self.solver = solver if isinstance(solver, Solver) else runtime.read(solver).solver(overrides)
        self._retain = "all" if self.solver.debug else retain
        if weights is None and resume is None:
            weights = self.solver.weights
        saved = runtime.read(resume).weights() if resume is not None else None
        self.seed = seed_of(saved, self.solver.seed, resume)
        self.iteration = 0
        self.loaded: dict[str, parameters.Loaded] = {}
        self.listeners: list[Callable[[Event], None]] = [
            listener_of(plugin, hook) for plugin, hook in runtime.composition.serving("observe")
        ]
        self._recent: deque[float] = deque(maxlen=max(1, self.solver.average_loss))
        self._last_snapshot: Path | None = None
        self._crew: Workers | None = None
        self._workers: list[Worker] = []
        self._tests: list[Net] = []
        try:
            self._make(data, saved)
            self._fill(weights, saved, resume, partial)
        except BaseException:
            self.close()
            raise

    # What a user calls.

    @property
    def net(self) -> Look:
        """The net being trained, as the first worker has it: ``params`` and ``blobs``."""
        worker = self._workers[0]
        keeps_all = self._retain == "all"
        return Look(worker.graph, worker.plan, worker.flat.parameters, worker.array, keeps_all)

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""
        return self.solver.rate(self.iteration)

    def step(self, iterations: int = 1) -> Result:
        """Train for some iterations. Raises NumericsError that names the layer, the iteration and
        the last snapshot, with the parameters as they were before the bad step."""
        at_least_one(iterations)
        before = self._clock()
        start = time.perf_counter()
        loss = math.nan
        for _ in range(iterations):
            loss = self._iterate()
        return Result(self.iteration, loss, time.perf_counter() - start, self._clock().taken(before))

    def test(self) -> dict[str, Any]:
        """The mean scores of the test nets over their iterations, from the start of their data; a
        second net's scores have its number in front."""
        self._quiesce()
        scores: dict[str, Any] = {}
        for number, net in enumerate(self._tests):
            iterations = self.solver.test_iterations[number]
            for name, value in net.test(iterations).items():
                scores[name if number == 0 else f"{number}.{name}"] = value
        return scores

    def snapshot(self, prefix: str | Path | None = None) -> Path:
        """Write weights, solver state and cursors to ``<prefix>_iter_<iteration>.demitasse``, and what
        the solver asks for in other formats beside it, each whole or not at all; the first one's path.
        Raises SnapshotError that names it and the reason."""
        self._quiesce()
        weights = gathered(self._workers[0], self.iteration, {"seed": self.seed, **self._setting})
        written = list[Path]()
        for path in paths_of(self.solver, self.iteration, prefix):
            written.append(write(self.runtime, path, weights))
            self._last_snapshot = written[0]
        self._tell("snapshot", {"path": written[0], "paths": written})
        return written[0]

    def check_snapshots(self) -> None:
        """Raise now, not after hours, when a snapshot that the solver asks for could not be written:
        CompositionError when no plugin writes it, SnapshotError when its folder cannot be made (it is)
        or written."""
        check_writable(self.runtime, self.solver)

    def run(self, stop: Callable[[], bool] | None = None) -> Result:
        """Train to the solver's last iteration, with tests and snapshots at its intervals. ``stop``
        is asked after each iteration; once it is true, a snapshot is written and the run ends."""
        solver, start = self.solver, time.perf_counter()
        before = self._clock()
        loss, saved, tested = math.nan, self.iteration, -1
        self.check_snapshots()
        self._tell("start", {"batch": self.batch, "workers": self.workers, "rate": self.rate})
        if solver.test_first and solver.test_interval and self._tests:
            tested = self._run_test()
        while self.iteration < solver.max_iterations:
            loss = self._iterate()
            stopping = stop is not None and stop()
            if solver.test_interval and self.iteration % solver.test_interval == 0 and not stopping:
                tested = self._run_test() if self._tests else tested
            due = solver.snapshot_interval and self.iteration % solver.snapshot_interval == 0
            if due or stopping:
                self.snapshot()
                saved = self.iteration
            if stopping:
                break
        else:
            if self._tests and tested != self.iteration:
                self._run_test()
            if solver.snapshot_last and saved != self.iteration:
                self.snapshot()
        result = Result(self.iteration, loss, time.perf_counter() - start, self._clock().taken(before))
        self._tell("end", {"loss": loss, "seconds": result.seconds, "phases": result.phases})
        return result

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the first worker's plan, forward and backward, on the next
        iteration's samples. Nothing is updated, and the training goes on as if it had not been."""
        at_least_one(iterations)
        worker = self._workers[0]
        step = worker.bind(self.iteration)
        step.scalars(self.iteration, 0.0)
        worker.peek(self.iteration)
        before = _copies([worker])
        try:
            return timed(step, iterations)
        finally:
            _restore([worker], before)

    def close(self) -> None:
        """End workers and reading."""
        self._end_workers()
        for net in self._tests:
            net.close()

    def _end_workers(self) -> None:
        if self._crew is not None:
            self._crew.close()
        for worker in self._workers:
            worker.close()

    def __del__(self) -> None:
        if hasattr(self, "_tests"):  # dropped without a word: its threads end; its nets may live on
            self._end_workers()

    def __repr__(self) -> str:
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return (
            f"<trainer of {self.solver.train.name} at iteration {self.iteration} of "
            f"{self.solver.max_iterations}, {workers}, batch {self.batch}>"
        )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # One iteration.

    def _iterate(self) -> float:
        iteration, rate = self.iteration, self.solver.rate(self.iteration)
        steps = [worker.bind(iteration) for worker in self._workers]
        before, start, kept = self._clock(), time.perf_counter(), _copies(self._workers)
        try:
            if len(steps) == 1:
                loss = steps[0].run(iteration, rate)
            else:
                self._crew = self._crew or Workers(tuple(worker.place for worker in self._workers))
                loss = sum(self._crew.run(lambda w: steps[w].run(iteration, rate)))
        except BaseException as error:
            for worker in self._workers:
                worker.rewind()
            if isinstance(error, NumericsError):
                _restore(self._workers, kept)
                found = self._diagnosis(rate)
                _restore(self._workers, kept)
                raise NumericsError(f"{error}; {found}") from None
            raise
        self.iteration += 1
        self._recent.append(loss)
        smoothed = sum(self._recent) / len(self._recent)
        if self.listeners:
            self._tell(
                "iteration",
                {
                    "loss": loss,
                    "smoothed": smoothed,
                    "rate": rate,
                    "seconds": time.perf_counter() - start,
                    "samples": self.batch,
                    "phases": self._clock().taken(before),
                    **({"sizes": sizes(self._workers[0])} if self._debugs() else {}),
                },
            )
        return smoothed

    def _debugs(self) -> bool:
        interval = self.solver.display_interval
        return self.solver.debug and interval > 0 and self.iteration % interval == 0

    def _diagnosis(self, rate: float) -> str:
        found = [
            diagnose(worker.step, worker.flat.parameters)
            for worker in self._workers
            if worker.step is not None and not math.isfinite(worker.step.loss())
        ]
        last = self._last_snapshot
        kept = f"the last snapshot is {last}" if last else "no snapshot has been written yet"
        return "; ".join([*found, f"learning rate {rate:g}", kept])

    def _run_test(self) -> int:
        self._tell("test", {"scores": self.test()})
        return self.iteration

    def _tell(self, kind: str, values: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            try:
                listener(Event(kind, self.iteration, values))
            except Exception as error:
                error.add_note(f"raised by a listener, told of event {kind!r} at {self.iteration}")
                raise

    def _clock(self) -> Phases:
        step = self._workers[0].step
        return replace(step.phases) if step is not None else Phases()

    @property
    def _setting(self) -> dict[str, Any]:
        """What a run that goes on from this one's snapshots must agree with."""
        return {"precision": self.precision, "passes": self.solver.passes, "batch": self.batch}

    def _quiesce(self) -> None:
        for worker in self._workers:
            for level in worker.levels:
                level.quiesce()

    # How it comes to be.

    def _make(self, data: Mapping[str, Mapping[str, Any]] | None, saved: Weights | None) -> None:
        runtime, solver = self.runtime, self.solver
        update = Update.named(
            solver.update, solver.update_attributes, runtime.vocabulary, solver.location
        )
        open_source = opener(runtime, data, "train")
        if "test" in (data or {}) and not solver.tests:
            raise ModelError(
                f"{solver.train.location}: data is given for phase 'test'; there is no test net"
            )
        for place in arrange(runtime.machine, self.dtype):
            if saved is not None and (tuner := runtime.kernels(place).tuner) is not None:
                tuner.prefer(saved.record.get("kernels", {}))
            self._workers.append(
                Worker(
                    runtime,
                    place,
                    solver,
                    update,
                    self._workers,
                    open_source=open_source,
                    dtype=self.dtype,
                    precision=self.precision,
                    weak=self.scaling == "weak",
                    seed=self.seed,
                    retain=self._retain,
                )
            )
        for worker in self._workers:
            for level in worker.levels:
                level.bind(worker.flat)
        first = self._workers[0]
        if "train" in (data or {}) and not first.graph.feeds:
            raise ModelError(
                f"{solver.train.location}: data is given for phase 'train', where the net has no layer "
                f"that reads samples"
            )
        self.plan, self.workers = first.plan, first.share.workers
        self.batch = first.graph.feeds[0].batch * solver.passes if first.graph.feeds else 0
        for definition in solver.tests:
            self._tests.append(
                Net(
                    runtime,
                    definition,
                    phase="test",
                    precision=self.precision,
                    data=data,
                    seed=self.seed,
                    worker=first.place,
                    slots=self.plan.slots,
                    flat=first.flat.parameters,
                    arena=first.memory["arena"],
                )
            )

    def _fill(
        self,
        weights: str | Path | Sequence[str | Path] | None,
        saved: Weights | None,
        path: str | Path | None,
        partial: bool,
    ) -> None:
        loaded = [(each, self.runtime.read(each).weights()) for each in listed(weights)]
        for worker in self._workers:
            flat = worker.flat.parameters
            parameters.fill(worker.graph, worker.plan, flat, self.seed)
            for each, record in loaded:
                self.loaded[str(each)] = parameters.load(
                    worker.plan, flat, record.parameters, each, partial=partial
                )
            if saved is not None:
                resume(worker, saved, path, self._setting)
                self.iteration = saved.iteration or 0


def _copies(workers: Sequence[Worker]) -> list[list[Any]]:
    """What forward passes change besides activations, as it is now."""
    return [[array.copy() for array in worker.statistics] for worker in workers]


def _restore(workers: Sequence[Worker], copies: Sequence[Sequence[Any]]) -> None:
    for worker, values in zip(workers, copies, strict=True):
        for array, value in zip(worker.statistics, values, strict=True):
            array[...] = value
