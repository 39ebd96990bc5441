"""The trainer: workers that step together, tests and snapshots at the solver's intervals."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    Buffer,
    CompositionError,
    Entry,
    Event,
    FlatMemory,
    GradientSync,
    ModelError,
    NumericsError,
    Phases,
    Plan,
    Runtime,
    SnapshotError,
    Solver,
    Step,
    Stream,
    Weights,
    WorkerPlace,
    Workers,
    arrange,
    make_plan,
    unknown,
)
from demitasse_training import parameters
from demitasse_training.diagnosis import diagnose
from demitasse_training.graph import NetGraph, Share
from demitasse_training.look import Look
from demitasse_training.net import Net, listed, opener, real_type, timed
from demitasse_training.update import Update, flat_work

SCALINGS = ("strong", "weak")
SNAPSHOT = ".demitasse"


@dataclass(frozen=True)
class Result:
    """What some iterations came to: the loss of the last (its mean over ``average_loss``), the
    seconds they took, and by phase (read, forward, backward, synchronise) on the first worker."""

    iteration: int
    loss: float
    seconds: float
    phases: Mapping[str, float]


@dataclass
class _Worker:
    """One worker: its place, its part of the batch, its plan, memory and step."""

    place: WorkerPlace
    levels: list[GradientSync]
    share: Share
    graph: NetGraph
    plan: Plan
    flat: FlatMemory
    memory: dict[str, Any]
    step: Step | None = None
    streams: list[Stream] | None = None

    def array(self, buffer: Buffer) -> Any:
        """The memory of a buffer."""
        region = self.memory[buffer.region]
        return region.view(buffer.offset, buffer.spec.physical, buffer.spec.dtype)


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
        precision: str = "f32",
        retain: str | None = None,
    ) -> None:
        if scaling not in SCALINGS:
            raise CompositionError(unknown("scaling", scaling, SCALINGS))
        self.runtime, self.scaling = runtime, scaling
        self.dtype, self.precision, self._retain = real_type(precision), precision, retain
        self.solver = solver if isinstance(solver, Solver) else runtime.read(solver).solver(overrides)
        resumed = runtime.read(resume).weights() if resume is not None else None
        saved_seed = resumed.record.get("seed") if resumed is not None else None
        self.seed = self.solver.seed if self.solver.seed is not None else int(saved_seed or 0)
        if saved_seed is not None and saved_seed != self.seed:
            raise SnapshotError(
                f"{resume} was made with random seed {saved_seed}, the solver says {self.seed}: "
                f"set random_seed to {saved_seed} to go on with the same random numbers"
            )
        self.iteration = 0
        self.listeners: list[Callable[[Event], None]] = [
            hook() for _, hook in runtime.composition.serving("observe")
        ]
        self._data = data
        self._recent: deque[float] = deque(maxlen=max(1, self.solver.average_loss))
        self._last_snapshot: Path | None = None
        self._update = Update.named(
            self.solver.update,
            self.solver.update_attributes,
            runtime.vocabulary,
            self.solver.location,
        )
        places = arrange(runtime.machine, self.dtype)
        self._workers = self._make_workers(places)
        first = self._workers[0]
        self.plan, self._crew = first.plan, Workers(places)
        self.batch = first.graph.feeds[0].batch * self.solver.passes if first.graph.feeds else 0
        self.workers = first.share.workers
        self._tests = [
            Net(
                runtime,
                definition,
                phase="test",
                precision=precision,
                data=data,
                seed=self.seed,
                worker=first.place,
                slots=self.plan.slots,
                flat=first.flat.parameters,
                arena=first.memory["arena"],
            )
            for definition in self.solver.tests
        ]
        self._fill(weights, resumed, resume)

    # What a user calls.

    @property
    def net(self) -> Look:
        """The net being trained, as the first worker has it: ``params`` and ``blobs``."""
        worker = self._workers[0]
        self._bind()
        return Look(
            worker.graph,
            worker.plan,
            worker.flat.parameters,
            self._step(worker).array,
            self._retain == "all",
        )

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""
        return self.solver.rate(self.iteration)

    def step(self, iterations: int = 1) -> Result:
        """Train for some iterations. Raises NumericsError that names the layer, the iteration and
        the last snapshot, with the parameters as they were before the bad step."""
        before = self._clock()
        start = time.perf_counter()
        loss = math.nan
        for _ in range(iterations):
            loss = self._iterate()
        return Result(self.iteration, loss, time.perf_counter() - start, self._phases(before))

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
        """Write weights, solver state and cursors to ``<prefix>_iter_<iteration>.demitasse``, whole or
        not at all; the path."""
        self._quiesce()
        stem = prefix or self.solver.snapshot_prefix or "snapshot"
        path = Path(f"{stem}_iter_{self.iteration}{SNAPSHOT}")
        self._last_snapshot = self.runtime.write(path, self._gather())
        self._tell("snapshot", {"path": self._last_snapshot})
        return self._last_snapshot

    def run(self, stop: Callable[[], bool] | None = None) -> Result:
        """Train to the solver's last iteration, with tests and snapshots at its intervals. ``stop``
        is asked after each iteration; once it is true, a snapshot is written and the run ends."""
        solver, start = self.solver, time.perf_counter()
        before = self._clock()
        loss, saved, tested = math.nan, self.iteration, -1
        self._check_snapshots()
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
        result = Result(self.iteration, loss, time.perf_counter() - start, self._phases(before))
        self._tell("end", {"loss": loss, "seconds": result.seconds, "phases": result.phases})
        return result

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the first worker's plan, forward and backward. Parameters
        are not updated."""
        self._bind()
        worker = self._workers[0]
        step = self._step(worker)
        step.scalars(self.iteration, 0.0)
        assert worker.streams is not None
        for read in step.reads:
            read()
        return timed(step, iterations)

    def close(self) -> None:
        """End workers and reading."""
        self._crew.close()
        for worker in self._workers:
            for level in worker.levels:
                level.close()
            for stream in worker.streams or ():
                stream.close()
        for net in self._tests:
            net.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # One iteration.

    def _iterate(self) -> float:
        if self._workers[0].step is None:
            self._bind()
        iteration, rate = self.iteration, self.solver.rate(self.iteration)
        before, start = self._clock(), time.perf_counter()
        try:
            if len(self._workers) == 1:
                loss = self._step(self._workers[0]).run(iteration, rate)
            else:
                loss = sum(self._crew.run(lambda w: self._step(self._workers[w]).run(iteration, rate)))
        except NumericsError as error:
            kept = (
                f"the last snapshot is {self._last_snapshot}"
                if self._last_snapshot
                else ("no snapshot has been written yet")
            )
            found = "; ".join(
                diagnose(self._step(worker), worker.flat.parameters)
                for worker in self._workers
                if not math.isfinite(self._step(worker).loss())
            )
            raise NumericsError(f"{error}; {found}; learning rate {rate:g}; {kept}") from None
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
                    "phases": self._phases(before),
                },
            )
        return smoothed

    def _run_test(self) -> int:
        self._tell("test", {"scores": self.test()})
        return self.iteration

    def _tell(self, kind: str, values: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener(Event(kind, self.iteration, values))

    def _step(self, worker: _Worker) -> Step:
        assert worker.step is not None
        return worker.step

    def _clock(self) -> Phases:
        step = self._workers[0].step
        return replace(step.phases) if step is not None else Phases()

    def _phases(self, before: Phases) -> dict[str, float]:
        return self._clock().taken(before)

    def _check_snapshots(self) -> None:
        """Raise CompositionError now, not after hours, when nobody could write a snapshot."""
        writers = [
            m.roles["model_writer"]
            for m in self.runtime.composition.plugins
            if "model_writer" in m.roles
        ]
        if not any(SNAPSHOT in writer.get("suffixes", ()) for writer in writers):
            if self.solver.snapshot_interval or self.solver.snapshot_last:
                raise CompositionError(
                    f"no composed plugin writes {SNAPSHOT} snapshots, which the solver asks for; add "
                    f"the plugin 'snapshots', or set snapshot and snapshot_after_train to nothing"
                )

    def _quiesce(self) -> None:
        for worker in self._workers:
            for level in worker.levels:
                level.quiesce()

    # How it comes to be.

    def _make_workers(self, places: Sequence[WorkerPlace]) -> list[_Worker]:
        runtime, workers = self.runtime, list[_Worker]()
        open_source = opener(runtime, self._data, "train")
        for place in places:
            levels = [
                runtime.composition.modules[plugin].gradient_sync(group=group)
                for plugin, group in place.groups
            ]
            index, count = 0, 1
            for level in reversed(levels):
                index, count = index * level.size + level.index, count * level.size
            share = Share(index, count, self.scaling == "weak")
            graph = NetGraph(
                runtime.vocabulary,
                phase="train",
                dtype=self.dtype,
                open_source=open_source,
                share=share,
                seed=self.seed,
            ).build(self.solver.train, runtime.layer_types)
            if not graph.objective:
                raise ModelError(
                    f"{self.solver.train.location}: the net has no loss to train; add a loss layer or "
                    f"a loss_weight"
                )
            graph.differentiate(self.solver.passes)
            plan = make_plan(
                graph,
                runtime.kernels(place),
                place.place,
                name=self.solver.train.name,
                retain=self._retain,
            )
            workers.append(self._give_memory(place, levels, share, graph, plan, workers))
        for worker in workers:
            for level in worker.levels:
                level.bind(worker.flat)
        return workers

    def _give_memory(
        self,
        place: WorkerPlace,
        levels: list[GradientSync],
        share: Share,
        graph: NetGraph,
        plan: Plan,
        others: Sequence[_Worker],
    ) -> _Worker:
        allocate = self.runtime.allocator(place.place.space).allocate
        item = np.dtype(self.dtype).itemsize
        memory = {
            "arena": allocate(max(1, plan.arena_bytes)),
            "fixed": allocate(max(1, plan.fixed_bytes)),
            "gradients": allocate(max(1, plan.trainable * item)),
        }
        lender = next(
            (
                other
                for (_, group), level in zip(place.groups, levels, strict=True)
                if level.shares_parameters and group.team is not None
                for other in others
                if any(theirs.team is group.team for _, theirs in other.place.groups)
            ),
            None,
        )
        if lender is not None:
            memory["parameters"] = lender.memory["parameters"]
        else:
            memory["parameters"] = allocate(max(1, plan.parameters * item))
        state = {
            name: allocate(max(1, plan.trainable * item)).view(0, (plan.trainable,), self.dtype)
            for name in self._update.state
        }
        flat = FlatMemory(
            memory["parameters"].view(0, (plan.parameters,), self.dtype),
            memory["gradients"].view(0, (plan.trainable,), self.dtype),
            state,
        )
        for _, group in place.groups:
            if group.team is not None:
                group.team.memory.append(flat)
        return _Worker(place, levels, share, graph, plan, flat, memory)

    def _bind(self) -> None:
        """Bind every worker's plan and start reading at the iteration's first sample."""
        for worker in self._workers:
            if worker.step is None:
                self._bind_worker(worker)

    def _bind_worker(self, worker: _Worker) -> None:
        plan, graph, passes = worker.plan, worker.graph, self.solver.passes
        worker.streams, reads = [], []
        for feed in graph.feeds:
            first = self.iteration * passes * feed.batch + feed.offset
            stream = feed.source.stream(first, feed.count, feed.batch)
            out = {}
            for key in feed.tensors:
                buffer = plan.buffers[f"{feed.layer}.{key}"]
                out[key] = worker.array(buffer)
            worker.streams.append(stream)
            reads.append(lambda stream=stream, out=out: stream.read(out))
        main = graph.feeds[0] if graph.feeds else None
        kernels, flat = self.runtime.kernels(worker.place), worker.flat
        scalars = {name: worker.array(plan.buffers[name]) for name in ("iteration", "sample", "rate")}
        fill = self.runtime.vocabulary["fill"]
        worker.step = Step(
            plan,
            worker.memory,
            reads,
            levels=worker.levels,
            update=lambda span: self._update.bind(span, plan, flat, scalars, kernels),
            clear=flat_work(fill, {"value": 0.0}, [flat.gradients], plan, kernels),
            passes=passes,
            batch=main.batch if main else 0,
            offset=main.offset if main else 0,
        )
        for tensor, value in graph.constants.items():
            if tensor.name in plan.buffers:
                worker.step.array(plan.buffers[tensor.name])[...] = value

    def _fill(
        self,
        weights: str | Path | Sequence[str | Path] | None,
        resumed: Weights | None,
        resume: str | Path | None,
    ) -> None:
        loaded = [(path, self.runtime.read(path).weights()) for path in listed(weights)]
        for worker in self._workers:
            flat = worker.flat.parameters
            parameters.fill(worker.graph, worker.plan, flat, self.seed)
            for path, record in loaded:
                parameters.load(worker.plan, flat, record.parameters, path)
            if resumed is not None:
                self._resume(worker, resumed, resume)

    def _resume(self, worker: _Worker, saved: Weights, path: object) -> None:
        mine = parameters.by_layer(worker.plan, worker.flat.parameters)
        theirs = {k: [a.shape for a in v] for k, v in saved.parameters.items()}
        ours = {k: [a.shape for a in v] for k, v in mine.items()}
        if theirs != ours:
            differing = sorted(k for k in {*theirs, *ours} if theirs.get(k) != ours.get(k))
            listed = "; ".join(
                f"layer {k!r}: {theirs.get(k, 'absent')} there, {ours.get(k, 'absent')} here"
                for k in differing[:4]
            )
            raise SnapshotError(f"{path} is of another net: {listed}")
        if saved.iteration is None:
            raise SnapshotError(
                f"{path} has weights but no iteration and solver state; give it as weights instead"
            )
        if saved.state and set(saved.state) != set(worker.flat.state):
            raise SnapshotError(
                f"{path} has solver state {', '.join(saved.state)}; {self.solver.update} keeps "
                f"{', '.join(worker.flat.state)}"
            )
        record = saved.record
        for name, here in (("precision", self.precision), ("passes", self.solver.passes)):
            if name in record and record[name] != here:
                raise SnapshotError(f"{path} was made with {name} {record[name]}; this run has {here}")
        if record.get("batch", self.batch) != self.batch:
            raise SnapshotError(
                f"{path} was made with {record['batch']} samples an iteration; this run has {self.batch}"
            )
        parameters.load(worker.plan, worker.flat.parameters, saved.parameters, path)
        for name, arrays in saved.state.items():
            self._load_state(worker, name, arrays)
        self.iteration = saved.iteration

    def _load_state(self, worker: _Worker, name: str, arrays: Mapping[str, Any]) -> None:
        for slot in worker.plan.slots:
            if slot.trainable:
                layer, _ = slot.owners[0]
                trained = [s for s in worker.plan.slots if s.trainable]
                numbers = sorted(n for s in trained for owner, n in s.owners if owner == layer)
                value = arrays[layer][numbers.index(slot.owners[0][1])]
                parameters.assign(slot, worker.flat.state[name], value)

    def _gather(self) -> Weights:
        worker = self._workers[0]
        result = parameters.gather(worker.plan, worker.flat.parameters, worker.flat.state)
        result.iteration = self.iteration
        result.record = {
            "seed": self.seed,
            "batch": self.batch,
            "passes": self.solver.passes,
            "precision": self.precision,
            "net": self.solver.train.name,
            "plugins": self.runtime.composition.versions,
            "cursors": {
                feed.layer: self.iteration * self.solver.passes * feed.batch
                for feed in worker.graph.feeds
            },
        }
        return result
