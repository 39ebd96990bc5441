"""The trainer: workers that step together, tests and snapshots at the solver's intervals."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    PRECISIONS,
    Entry,
    Event,
    NumericsError,
    Rooted,
    Runtime,
    SnapshotError,
    Solver,
    Weights,
    WeightsFiles,
    WorkerError,
)
from demitasse_training import agreement
from demitasse_training.accord import Accord
from demitasse_training.arguments import (
    at_least_one,
    check_asks,
    check_overrides,
    check_retain,
    check_scaling,
    check_statistics,
    chosen_precision,
    rate_of,
    whole_seed,
)
from demitasse_training.beginning import begun, in_common
from demitasse_training.crew import Crew, one_at_a_time
from demitasse_training.kept_by_levels import KEY, gathered_levels, restore_levels
from demitasse_training.listeners import listener_of, tell, tell_failure
from demitasse_training.making import Data, make_tests, make_workers
from demitasse_training.own_shapes import varying
from demitasse_training.pace import Ask, Pace
from demitasse_training.profiling import timed
from demitasse_training.result import Result
from demitasse_training.resume import saved_run, seed_of
from demitasse_training.saving import check_numbers, check_writable, gathered, keep, paths_of, write
from demitasse_training.scores import Scores
from demitasse_training.sizes import sizes
from demitasse_training.sole_writer import sole_writer
from demitasse_training.terms import loss_weights, nets_told, values
from demitasse_training.views import Views
from demitasse_training.watched import notes_of
from demitasse_training.weak_methods import weakly

BETWEEN = 0.5
"""Seconds from the start of a test until the first event about its batches, and between such events."""


class Trainer(Rooted):
    """Trains the net of a solver file on a runtime's workers; ``demitasse.TrainerOptions`` explains the
    keywords.

    Raises ModelError, ShapeError, DataError or SnapshotError before the first step if it cannot work.
    """

    elsewhere = "make another there (resume= continues from a snapshot, or from what weights() gives)"

    def __init__(
        self,
        runtime: Runtime,
        solver: str | Path | Solver,
        *,
        weights: WeightsFiles | None = None,
        resume: str | Path | Weights | None = None,
        overrides: Mapping[str, Any] | None = None,
        data: Data = None,
        scaling: str = "strong",
        statistics: str = "global",
        precision: str | None = None,
        retain: str | None = None,
        partial: bool = False,
    ) -> None:
        check_scaling(scaling)
        check_statistics(statistics)
        check_overrides(overrides)
        check_retain(retain)
        self.runtime, self.scaling, self.statistics = runtime, scaling, statistics
        self.processes = runtime.processes
        self.precision = chosen_precision(runtime, precision)
        self.dtype = PRECISIONS[self.precision]
        self.solver = solver if isinstance(solver, Solver) else runtime.read(solver).solver(overrides)
        self._retain = "all" if self.solver.debug else retain
        if weights is None and resume is None:
            weights = self.solver.weights
        saved, path = saved_run(runtime, resume)
        self.seed = whole_seed(seed_of(saved, self.solver.seed, path))
        # Only process 0 has listeners: what they hear is the same in all processes.
        observing = runtime.serving("observe") if self.processes.rank == 0 else ()
        found = (listener_of(plugin, hook) for plugin, hook in observing)
        self.listeners: list[Callable[[Event], None]] = [each for each in found if each is not None]
        self._recent: deque[float] = deque(maxlen=max(1, self.solver.average_loss))
        self._last_snapshot: Path | None = None
        self._saved, self._written, self._keeps = 0, 0, False
        self._next_told = 0.0  # when listeners next hear of a test's batches, by time.monotonic
        self._crew = Crew()
        self._workers = self._crew.workers
        self._accord = Accord(self.processes)
        self._tests = Scores(self.processes, self._workers, self._accord)
        listening = weakly(self._told), weakly(self._kept), weakly(self._keep)
        self._pace = Pace(self._crew, self._accord, self.processes, self.solver, *listening)
        try:
            self._begin(weights, partial, saved, path, data)
        except BaseException as error:
            self.processes.fail(error)
            self.close()
            raise

    # What a user calls.

    @property
    def net(self) -> Views:
        """The net being trained, as seen by the first worker: ``params`` and ``blobs``."""
        worker, show = self._workers[0], self._crew.show
        flat, keeps_all = worker.flat.parameters, self._retain == "all"
        return Views(worker.graph, worker.plan, flat, worker.array, keeps_all, show)

    @property
    def notes(self) -> list[str]:
        """How the first worker's gradients are synchronised, innermost level first."""
        levels = [*self._workers[0].levels, *self._workers[0].idle]
        return [f"{type(level).__name__}: {note}" for level in levels for note in notes_of(level)]

    @property
    def varying(self) -> list[str]:
        """The layers whose samples vary in shape. The net is planned anew for each new shape."""
        return varying(self._workers[0].graph)

    @property
    def stopped(self) -> bool:
        """Whether any process was asked to stop, after the last iteration or during a test of a run."""
        return self._pace.asked[0]

    @property
    def iteration(self) -> int:
        """The number of iterations done. You can set it: the next iterations then have the numbers that
        follow, with the random numbers and learning rate of those numbers and, if it is set before the
        first step, their samples."""
        return self._pace.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self._pace.iteration = iteration

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""
        return rate_of(self.solver, self.iteration)

    @one_at_a_time
    def step(self, iterations: int = 1) -> Result:
        """Train for ``iterations`` iterations. If a loss or parameter is not finite, raises
        NumericsError with layer, iteration and last snapshot; parameters are as before that step."""
        at_least_one(iterations)
        before = self._crew.clock()
        start = time.perf_counter()
        loss = math.nan
        end = self.iteration + iterations
        while self.iteration < end:
            loss = self._pace.advance(end)
        return Result(
            self.iteration, loss, time.perf_counter() - start, self._crew.clock().taken(before)
        )

    @one_at_a_time
    def test(self) -> dict[str, Any]:
        """Return the test nets' mean scores over their iterations, from the start of their data. Names
        of a second net's scores begin with its number. The iterations are divided among the workers of
        all processes or, if processes run at iterations of their own, among those of process 0. Raises
        WorkerError if the trainer is closed during the test."""
        return self._scores(None) or {}

    def _scores(self, stop: Ask | None) -> dict[str, Any] | None:
        def asked() -> bool:
            self._crew.check_open()
            return stop is not None and stop()

        self._crew.quiesce()
        self._next_told = time.monotonic() + BETWEEN
        try:
            return self._tests(self.solver.test_iterations, self._crew.run, self._testing, asked)
        except Exception as error:
            if not self._accord.stopped:
                raise
            ended = self._accord.ended(error, self._keep)
            self.processes.fail(ended)
            raise ended from None

    @one_at_a_time
    def snapshot(self, prefix: str | Path | None = None) -> Path:
        """Write weights, solver state and cursors to ``<prefix>_iter_<iteration>.demitasse``, and next
        to it any other formats that the solver requests, each whole or not at all. Returns the first
        path. All processes must call this; process 0 writes. Raises SnapshotError with path and reason,
        or NumericsError if parameters are not finite after the last update."""
        self._crew.quiesce()
        first, paths = self.processes.rank == 0, paths_of(self.solver, self.iteration, prefix)
        kept = gathered_levels(self._workers, self.processes)
        if first:
            self.processes.report(self.iteration, "a snapshot")
            weights = self._gathered(kept)
            for path in paths:
                write(self.runtime, path, weights)
                self._last_snapshot = paths[0]
        # All wait here until process 0 has written the snapshot, or has failed and says why.
        problem = self.processes.gather(None)[0]
        if problem is not None:
            raise SnapshotError(problem)
        self._last_snapshot = paths[0]
        if prefix is None:
            self._saved = self._written = self.iteration
        if first:
            self._tell("snapshot", {"path": paths[0], "paths": paths})
        return paths[0]

    @one_at_a_time
    def weights(self) -> Weights:
        """Return a copy, in memory, of what a snapshot contains. A run that gets it as ``resume``
        continues with the same bits. Raises WorkerError with several processes, NumericsError if
        parameters are not finite."""
        if self.processes.size > 1:
            raise WorkerError("no process has all weights of several: write a snapshot instead")
        self._crew.quiesce()
        return self._gathered(gathered_levels(self._workers, self.processes))

    def _gathered(self, kept: list[Any] | None) -> Weights:
        facts = {"seed": self.seed, **self._setting, **({} if kept is None else {KEY: kept})}
        weights = gathered(self._workers[0], self.iteration, facts)
        check_numbers(weights, self._kept())
        return weights

    def check_snapshots(self) -> None:
        """Raise an error now, rather than after hours of training, if a snapshot that the solver
        requests cannot be written: CompositionError if no plugin writes its format, SnapshotError if the
        format cannot hold the net's parameters or the folder is not writable. Creates the folder if it
        does not exist."""
        check_writable(self.runtime, self.solver, self._workers[0])

    @one_at_a_time
    def run(
        self,
        stop: Ask | None = None,
        save: Ask | None = None,
        until: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Result:
        """Train to the solver's last iteration, with tests and snapshots at its intervals.
        - ``stop`` is called after each iteration and between the batches of a test. Once it returns true
          in any process, a snapshot is written and the run ends; scores of an unfinished test are
          dropped. A later run continues there, after a test if the solver asks for an initial one.
        - ``save`` is called after each iteration; if it returns true, a snapshot is written and the run
          continues.
        - ``until`` is called with the scores after each test; once it returns true, the run ends as it
          would at its last iteration.

        If samples cannot be read in any process, or a listener fails, a snapshot keeps what was trained
        so far. Listeners are told of the end of a run even if it fails, then with its ``error``. Raises
        SnapshotError, before anything else, if another training writes snapshots with this prefix."""
        check_asks(stop=stop, save=save, until=until)
        first = self.processes.rank == 0
        if first:
            self.check_snapshots()
        with sole_writer(self.solver) if first else nullcontext():
            self._saved, self._keeps = self.iteration, True
            try:
                return self._run(stop, save, until)
            except BaseException as error:
                whole = self.processes.size == 1 and self._pace.whole
                others = NumericsError | SnapshotError | WorkerError  # nothing can be kept after these
                if whole and isinstance(error, Exception) and not isinstance(error, others):
                    self._keep(error)
                tell_failure(self.listeners, self.iteration, error)
                raise
            finally:
                self._keeps = False

    def _run(
        self,
        stop: Ask | None,
        save: Ask | None,
        until: Callable[[Mapping[str, Any]], bool] | None,
    ) -> Result:
        solver, start = self.solver, time.perf_counter()
        before = self._crew.clock()
        loss, tested, good = math.nan, -1, False
        about: dict[str, Any] = {"batch": self.batch, "workers": self.workers, "rate": self.rate}
        nets = nets_told(solver, self.runtime.layer_types)
        self._tell("start", {**about, **nets, "arrays": self.arrays})
        self._pace.asked = False, False
        if self.iteration < solver.max_iterations:
            self._crew.bind(self.iteration)  # if training cannot work, fail before a long test
        if solver.test_first and solver.test_interval and self._tests.nets:
            tested, good = self.iteration, self._run_test(stop, until)
        while self.iteration < solver.max_iterations and not (good or self.stopped):
            loss = self._pace.advance(self._next_pause(), stop, save)
            _, saving = self._pace.asked
            if solver.test_interval and self.iteration % solver.test_interval == 0 and not self.stopped:
                tested, good = self.iteration, self._run_test(stop, until)
            due = solver.snapshot_interval and self.iteration % solver.snapshot_interval == 0
            if due or saving or self.stopped:
                self.snapshot()
        if self._tests.nets and tested != self.iteration and not self.stopped:
            self._run_test(stop, until)
        # A run that is stopped also saves what ``step`` trained before it.
        kept = self._written if self.stopped else self._saved
        if (solver.snapshot_last or self.stopped) and kept != self.iteration:
            self.snapshot()
        result = Result(
            self.iteration, loss, time.perf_counter() - start, self._crew.clock().taken(before)
        )
        about |= {"loss": loss, "seconds": result.seconds, "phases": result.phases}
        self._tell("end", {**about, "arrays": self.arrays, "profile": self.profile})
        return result

    def arrays(self) -> Iterator[tuple[int, str, Any]]:
        """Yield (worker, name, array) for everything that this process's workers keep in memory: tensors
        by name, parameters, gradients and solver state."""
        for number, worker in enumerate(self._workers):
            for name, buffer in worker.plan.buffers.items():
                yield number, name, worker.array(buffer)
            yield number, "parameters", worker.flat.parameters
            yield number, "gradients", worker.flat.gradients
            yield from ((number, name, array) for name, array in worker.flat.state.items())

    def terms(self) -> dict[str, float]:
        """The value of each blob that counts in the loss, in the last pass. With several processes, it
        covers the samples of this process's workers."""
        weights = loss_weights(self.solver.train, self.runtime.layer_types)
        steps = [worker.step for worker in self._workers if worker.step is not None]
        return values(steps, weights, self.workers)

    @one_at_a_time
    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """Return the mean seconds of each entry of the first worker's plan, forward and backward, on the
        next iteration's samples. Nothing is updated, so training is unaffected."""
        at_least_one(iterations)
        worker = self._workers[0]
        step = worker.peek(self.iteration)
        self._crew.keep_statistics()
        try:
            return timed(step, iterations, engine=worker.engine)
        finally:
            self._crew.restore_statistics()

    def close(self) -> None:
        """End workers and reading. If another thread is training, this waits until its iteration ends;
        that thread then gets a WorkerError."""
        self._crew.close(self._end)

    def _end(self) -> None:
        self._crew.end()
        self._tests.close()

    def __del__(self) -> None:
        if hasattr(self, "_tests"):  # dropped without close(): end its threads; its nets may live on
            self._crew.end()

    def __repr__(self) -> str:
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return (
            f"<trainer of {self.solver.train.name or 'a net'} at iteration {self.iteration} of "
            f"{self.solver.max_iterations}, {workers}, batch {self.batch}>"
        )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # One iteration.

    def _next_pause(self) -> int:
        """The next iteration at which a test or snapshot is due, or at which training ends."""
        solver = self.solver
        intervals = [i for i in (solver.test_interval, solver.snapshot_interval) if i]
        due = [(self.iteration // interval + 1) * interval for interval in intervals]
        return min([*due, solver.max_iterations])

    def _told(self, loss: float, seconds: float, phases: Mapping[str, float]) -> float:
        """Tell listeners about the last iteration; return its smoothed loss."""
        self._recent.append(loss)
        smoothed = sum(self._recent) / len(self._recent)
        if self.listeners:
            self._tell(
                "iteration",
                {
                    "loss": loss,
                    "smoothed": smoothed,
                    "rate": rate_of(self.solver, self.iteration - 1),
                    "seconds": seconds,
                    "samples": self.batch,
                    "phases": phases,
                    "spans": self._crew.spans,
                    "terms": self.terms,
                    **({"sizes": sizes(self._workers[0])} if self._debugs() else {}),
                },
            )
        return smoothed

    def _debugs(self) -> bool:
        interval = self.solver.display_interval
        return self.solver.debug and interval > 0 and self.iteration % interval == 0

    def _kept(self) -> str:
        last = self._last_snapshot
        return f"the last snapshot is {last}" if last else "no snapshot has been written yet"

    def _keep(self, error: BaseException) -> None:
        """Within a run, write a snapshot of the iterations before the one that failed, and add a note of
        it to the error. All processes call this. If workers may be at different iterations, the snapshot
        also contains what those ahead have done."""
        if self._keeps and self._saved != self.iteration:
            keep(error, self.iteration, self.snapshot, self.processes)

    def _run_test(self, stop: Ask | None, until: Callable[[Mapping[str, Any]], bool] | None) -> bool:
        """Test; return whether the scores are those that end the run (``until``)."""
        if not self._tests.nets:
            return False
        scores, good = self._scores(stop), False
        if scores is not None:
            self._tell("test", {"scores": scores})
            good = until is not None and bool(scores) and until(scores)
        ended = scores is None
        if self.processes.size > 1:  # with independent processes, only the first has scores
            total = self.processes.total(np.array([good, ended], np.float64))
            good, ended = (total > 0).tolist()
        if ended:
            self._pace.asked = True, self._pace.asked[1]
        return good

    def _testing(self, done: int, total: int) -> None:
        """Tell listeners how many of a test's batches are done, every ``BETWEEN`` seconds."""
        if self.listeners and time.monotonic() >= self._next_told:
            self._next_told = time.monotonic() + BETWEEN
            self._tell("testing", {"done": done, "batches": total})

    def _tell(self, kind: str, values: Mapping[str, Any]) -> None:
        tell(self.listeners, Event(kind, self.iteration, values))

    @property
    def _setting(self) -> dict[str, Any]:
        """Settings in which a run that resumes from this run's snapshots must agree."""
        return {"precision": self.precision, "passes": self.solver.passes, "batch": self.batch}

    # Construction.

    def _begin(
        self,
        weights: WeightsFiles | None,
        partial: bool,
        saved: Weights | None,
        path: str | Path,
        data: Data,
    ) -> None:
        """Plan workers and test nets, and give them initial parameters or those of a snapshot. Before
        and after, processes compare what they must have in common."""
        agreement.agree(
            self.processes,
            agreement.composition(
                self.runtime, self.solver, self.precision, self.scaling, self.statistics, self.seed
            ),
        )
        self._make(saved, data)
        self.loaded = begun(
            self.runtime,
            self._workers,
            seed=self.seed,
            weights=weights,
            partial=partial,
            saved=saved,
            path=path,
            setting=self._setting,
        )
        if saved is not None:
            restore_levels(self._workers, self.processes, saved, path)
            self._pace.iteration = self._written = saved.iteration or 0
        if self.processes.size > 1:
            mine = in_common(self._workers[0], self.batch, self.iteration)
            for number, nets in enumerate(self._tests.nets):
                mine |= agreement.samples(nets[0].graph, f"test net {number}'s ")
            agreement.agree(self.processes, mine)

    def _make(self, saved: Weights | None, data: Data) -> None:
        joined, of = (self._crew, self._accord, self.processes), (self.runtime, self.solver)
        given: dict[str, Any] = {"data": data, "precision": self.precision, "seed": self.seed}
        about = given | {"weak": self.scaling == "weak", "statistics": self.statistics}
        make_workers(*joined, *of, saved=saved, retain=self._retain, **about)
        first = self._workers[0]
        self.plan, self.workers = first.plan, first.share.workers
        self.batch = first.graph.feeds[0].batch * self.solver.passes if first.graph.feeds else 0
        make_tests(self._tests, self._crew, *of, **given)
