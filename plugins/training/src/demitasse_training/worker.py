"""One worker of a training run: its share of the samples, its plan, memory, streams and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from demitasse import (
    Buffer,
    DataSource,
    DataSpec,
    FlatMemory,
    GradientSync,
    Group,
    ModelError,
    Plan,
    Runtime,
    Solver,
    Span,
    Step,
    Work,
    WorkerPlace,
    make_plan,
)
from demitasse_training.across_workers import Add, Exchange, meetings, over_all_workers, own_statistics
from demitasse_training.agreement import planned_alike
from demitasse_training.clipping import clip_normalisations
from demitasse_training.entrance import Entrance
from demitasse_training.graph import NetGraph
from demitasse_training.guarded import GuardedStep, MakeGuard
from demitasse_training.lent import Lent
from demitasse_training.memory_check import check_room
from demitasse_training.net import Net
from demitasse_training.norms import Norms
from demitasse_training.own_shapes import varying
from demitasse_training.passes import Passes, around, at_work
from demitasse_training.planner import TOGETHER
from demitasse_training.reading import Reading, fed_buffers
from demitasse_training.recomputing import recompute
from demitasse_training.shared_parameters import SharedParameters
from demitasse_training.shares import Share
from demitasse_training.statistics import Statistics, changed_parameters
from demitasse_training.update import Update, flat_work
from demitasse_training.watched import Meeting, Watched, check_level

WORTH_A_LAUNCH = 1 << 22
"""How many bytes of neighbouring layers' gradients a lone worker on streams gathers before it updates
them all at once. Launching a kernel takes some microseconds, in which a device reads and writes 20 MB:
as much as a momentum update moves for this many bytes of gradients."""


class Worker:
    """Plans a solver's training net at a place, with memory from the place's allocator. ``others`` are
    the workers made before it; a synchronisation may let it share their parameters. ``add`` returns the
    sum of all workers' numbers; without it, statistics are each worker's own."""

    def __init__(
        self,
        runtime: Runtime,
        place: WorkerPlace,
        solver: Solver,
        update: Update,
        others: Sequence[Worker],
        *,
        open_source: Callable[[DataSpec], DataSource],
        dtype: str,
        precision: str,
        weak: bool,
        seed: int,
        retain: str | None,
        add: Add | None = None,
    ) -> None:
        self.runtime, self.place, self.solver = runtime, place, solver
        self.update, self.dtype = update, dtype
        # Not if an iteration reads several times, a user looks at samples that were read, or samples
        # vary.
        self._may_read_ahead = solver.passes == 1 and retain is None
        self._step: Step | None = None
        self.passes: Passes | None = None  # replaces the step if samples vary in shape
        self.whole = False  # whether all updates are one work, which an interrupt cannot break off
        self._finished: Any = None  # if ``whole``: one number, not 0 once that work is done
        self.agree: Work | None = None  # after the last forward pass: raises if others cannot continue
        self.engine = runtime.engine(place)
        self.levels: list[GradientSync] = []
        self.watched: list[Watched] = []  # the same levels, wrapped for calling
        self.idle: list[GradientSync] = []  # levels without siblings
        self._groups: list[Group] = []
        self._join_levels()
        index, count = 0, 1
        for level in reversed(self.levels):
            index, count = index * level.size + level.index, count * level.size
        self.share = Share(index, count, weak, runtime.processes.size > 1)
        self._exchange = Exchange(add) if add is not None and self.share.workers > 1 else None
        self.kernels = runtime.kernels(place)
        if self._exchange is not None:
            offers = [*self.kernels.offers, ("training", self._exchange.offer)]
            self.kernels = replace(self.kernels, offers=offers)
        self.lacking: dict[str, str] = {}  # by layer: an operation for statistics over all workers
        self.allocator = runtime.allocator(place.space)
        self.enter = Entrance(self.allocator)
        self._graph = self._training_graph(open_source, seed, retain)
        self.follows = bool(varying(self._graph))
        self._may_read_ahead &= not self.follows
        self._measures = bool(solver.clip) or update.needs_squares
        self._plan: Plan = (
            self._planned(precision, retain, others[0].plan)
            if others
            else planned_alike(
                runtime.processes, self.kernels.tuner, partial(self._planned, precision, retain)
            )
        )
        self.meetings = meetings(self._plan, solver.passes)
        self.portion = self._portion()
        self._sizes = {"scale": np.full(1, 1 / self.portion)} if self.portion != 1.0 else {}
        self.norms = (
            Norms(runtime, solver, self.plan, self.watched, self.allocator, 1 / self.portion)
            if self._measures
            else None
        )
        self._take_memory(others)
        array = partial(_array, self.memory)
        self.reading = Reading(
            self._graph, self._plan, solver.passes, array, self.engine, self.allocator
        )
        self._make_net = partial(
            Net,
            runtime,
            solver.train,
            open_source=open_source,
            precision=precision,
            retain=retain,
            seed=seed,
        )

    @property
    def graph(self) -> NetGraph:
        """The worker's share of the net; if samples vary in shape, for the latest shapes."""
        return self.passes.net.graph if self.passes is not None else self._graph

    @property
    def plan(self) -> Plan:
        """The plan of that graph."""
        return self.passes.net.plan if self.passes is not None else self._plan

    @property
    def step(self) -> Step | None:
        """The plan, bound to memory; None before it is."""
        return self.passes.step if self.passes is not None else self._step

    def _join_levels(self) -> None:
        """Create the synchronisations of the place's levels; those without siblings are kept apart."""
        composition = self.runtime.composition
        for plugin, group in self.place.groups:
            given = composition.offered("collectives") if group.remote else {}
            group = replace(group, engine=self.engine, collectives=given)
            meeting = Meeting.of(group.team) if group.team is not None else None
            level = composition.modules[plugin].gradient_sync(group=group)
            check_level(plugin, level, group, self.place.place.simulated)
            if level.size > 1:
                self.levels.append(level)
                self.watched.append(Watched(plugin, level, meeting))
                self._groups.append(group)
            else:
                self.idle.append(level)
                level.close()

    def _training_graph(
        self, open_source: Callable[[DataSpec], DataSource], seed: int, retain: str | None
    ) -> NetGraph:
        """The worker's share of the net, forward and backward."""
        net = self.solver.train
        graph = NetGraph(
            self.runtime.vocabulary,
            phase="train",
            dtype=self.dtype,
            open_source=open_source,
            share=self.share,
            seed=seed,
            retain=retain,
        ).build(net, self.runtime.layer_types)
        if not graph.objective and retain is None:  # where all is kept, a script may give gradients
            raise ModelError(
                f"{net.location}: the net has no loss to train; add a loss layer or a loss_weight"
            )
        if retain is None:
            clip_normalisations(graph, self.kernels, self.place.place)
        graph.differentiate(self.solver.passes, every_blob=not graph.objective)
        self.own = own_statistics(graph) if self.share.workers > 1 else []
        if self.own and self.adds and not varying(graph):
            self.lacking = over_all_workers(graph, self.kernels, self.place.place)
            self.own = own_statistics(graph)
        # Not if another worker may write parameters between forward and backward.
        if retain is None and not any(level.asynchronous for level in self.levels):
            recompute(graph, self.kernels, self.place.place, self.place.streams)
        return graph

    def _planned(self, precision: str, retain: str | None, like: Plan | None) -> Plan:
        """Plan the graph; with ``like``, flat memory is laid out as in that plan."""
        # Without siblings to agree with, an update follows as soon as its gradients are final.
        adding = any(node.operation.name == "accumulate" for node in self.graph.nodes)
        kept = self._measures or self.solver.snapshot_gradients or self.follows
        alone = WORTH_A_LAUNCH if self.engine is not None else 0
        return make_plan(
            self.graph,
            self.kernels,
            self.place.place,
            name=self.solver.train.name,
            retain=retain,
            precision=precision,
            bucket_bytes=max((level.bucket_bytes for level in self.levels), default=alone),
            brief_gradients=not (self.levels or adding or kept) and retain is None,
            # Not if forward begins before all parameters have arrived.
            parameters_first=TOGETHER if self.place.streams and not self.levels else 0,
            like=like,
        )

    @property
    def adds(self) -> bool:
        """Whether workers may add numbers within a pass: not if each is at an iteration of its own, or
        has parameters of its own."""
        alike = not any(level.asynchronous or level.apart for level in self.levels)
        return self._exchange is not None and alike

    @property
    def why_own(self) -> str:
        """Say which layers take statistics of each worker's own samples, and why."""
        first, *others = self.own
        more = f" (and {len(others)} more)" if others else ""
        if first in self.lacking:
            why = f"no composed plugin computes {self.lacking[first]}"
        elif self.adds:
            why = "samples vary in shape"
        elif any(level.asynchronous for level in self.levels):
            why = "each worker is at an iteration of its own"
        else:
            why = "workers' parameters differ"
        return (
            f"layer {first!r}{more}: each of the {self.share.workers} workers has statistics of its own "
            f"samples, as with Caffe, because {why}; results depend on the number of workers"
        )

    def _portion(self) -> float:
        """The fraction of the learning rate at which the worker's gradients count. At asynchronous
        levels, each worker takes steps of its own, by the mean gradient over its own samples and this
        fraction of the rate; together, the workers' steps make the step of the whole batch. Otherwise
        the fraction is 1."""
        if not any(level.asynchronous for level in self.levels):
            return 1.0
        feeds = self.graph.feeds
        portion = feeds[0].count / feeds[0].batch if feeds else 1 / self.share.workers
        word = self.update.operation
        if portion != 1.0 and all(operand.name != "scale" for operand in word.inputs):
            raise ModelError(
                f"{self.solver.location}: workers cannot each update at their own pace by "
                f"{word.name!r}, which has no operand 'scale'"
            )
        return portion

    def array(self, buffer: Buffer) -> Any:
        """The memory of a buffer, in its layout."""
        if self.passes is not None:
            return self.passes.step.array(buffer)
        return _array(self.memory, buffer)

    @property
    def bound(self) -> bool:
        """Whether the step is bound and its streams are open."""
        if self.passes is not None:
            return self.passes.net.reads
        return self.step is not None and self.reading.is_open

    def bind(self, iteration: int) -> Step | Passes:
        """Return the step, bound at first use, with streams that continue at ``iteration``."""
        if self.follows:
            if self.passes is None:
                self.passes = Passes(self, self._net(), self._bind(around(self._plan)))
            self.passes.begin(iteration)
            return self.passes
        if self._step is None:
            self._step = self._bind()
            if self._exchange is not None:
                self._exchange.phases = self._step.phases
        self.reading.open(iteration)
        return self._step

    def begin(self) -> None:
        """Mark the beginning of an iteration."""
        if self.whole:
            self._finished[0] = 0

    @property
    def finished(self) -> bool:
        """Whether the iteration begun last is known to have made all of its updates."""
        return self.whole and bool(self._finished[0])

    @property
    def borrows(self) -> bool:
        """Whether its parameters belong to another worker."""
        return isinstance(self.memory["parameters"], SharedParameters)

    def rewind(self) -> None:
        """Close the streams; the next ``bind`` opens them at its iteration."""
        if self.passes is not None:
            self.passes.net.pause()
        self.reading.close()

    def peek(self, iteration: int) -> Step:
        """Read the iteration's first samples without moving the streams; return the step for them."""
        runs = self.bind(iteration)
        if isinstance(runs, Passes):
            self.rewind()
            runs.begin(iteration)
            step = runs.next(runs.net.coming(), iteration, 0.0)
            runs.net.read()
            self.rewind()
            return step
        runs.scalars(iteration, 0.0)
        self.reading.peek(iteration)
        return runs

    def close(self) -> None:
        """End reading and synchronisation."""
        self.rewind()
        if self.passes is not None:
            self.passes.net.close()
        for level in self.watched:
            level.close()

    @property
    def _waiting_bytes(self) -> int:
        """Bytes of the samples that are read ahead and wait on an accelerator."""
        if self.engine is None:
            return 0
        return sum(buffer.spec.nbytes for buffer in fed_buffers(self.graph, self.plan))

    def _take_memory(self, others: Sequence[Worker]) -> None:
        plan, item, take = self.plan, np.dtype(self.dtype).itemsize, self.allocator.allocate
        changed = changed_parameters(self._graph, plan)
        space = next((level.space for level in self.levels if level.space is not None), None)
        take_flat = take if space is None else self.runtime.allocator(space).allocate
        lender = self._sharing(others, lambda level: level.shares_parameters)
        keeper = self._sharing(others, lambda level: level.shares_parameters or level.asynchronous)
        needed = {
            "activations and scratch memory": plan.arena_bytes,
            "samples and constants": plan.fixed_bytes + self._waiting_bytes,
            "parameters": 0 if lender else plan.parameters * item,
            "their gradients": 0 if plan.brief else plan.trainable * item,
            "the solver's state": 0 if keeper else plan.trainable * item * len(self.update.state),
        }
        check_room(self.allocator, needed, self.solver.train.location)
        self.memory = {
            "arena": take(max(1, plan.arena_bytes)),
            "fixed": take(max(1, plan.fixed_bytes)),
        }
        if not plan.brief:
            self.memory["gradients"] = take_flat(max(1, plan.trainable * item))
        if lender is not None:
            own = {buffer.offset: take(buffer.spec.nbytes) for buffer in changed}
            self.memory["parameters"] = SharedParameters(lender.memory["parameters"], own)
        else:
            self.memory["parameters"] = take_flat(max(1, plan.parameters * item))
        self.flat: FlatMemory = FlatMemory(
            lender.flat.parameters
            if lender is not None
            else self.memory["parameters"].view(0, (plan.parameters,), self.dtype),
            np.empty(0, self.dtype)
            if plan.brief
            else self.memory["gradients"].view(0, (plan.trainable,), self.dtype),
            keeper.flat.state
            if keeper is not None
            else {
                name: take(max(1, plan.trainable * item)).view(0, (plan.trainable,), self.dtype)
                for name in self.update.state
            },
            slots=tuple(slot for slot in plan.slots if slot.trainable),
        )
        self.statistics = Statistics(
            changed, self.memory["parameters"], self.flat.parameters, [s.span for s in plan.slots], take
        )
        for group in self._groups:
            if group.team is not None:
                group.team.memory.append(self.flat)

    def _sharing(
        self, others: Sequence[Worker], shares: Callable[[GradientSync], bool]
    ) -> Worker | None:
        """Return the first of ``others`` with which a level lets this worker share something."""
        teams = [
            group.team
            for group, level in zip(self._groups, self.levels, strict=True)
            if shares(level) and group.team is not None
        ]
        return next((w for w in others for group in w._groups if group.team in teams), None)

    def _net(self) -> Net:
        """Return a net over the worker's memory, to be planned for samples as they come."""
        parameters, gradients = self.memory["parameters"], self.memory["gradients"]
        return self._make_net(
            phase="train",
            backward="objective",
            passes=self.solver.passes,
            lent=Lent(
                self.place,
                self._plan.slots,
                self.flat.parameters,
                gradients=self.flat.gradients,
                arena=self.memory["arena"],
                regions={"parameters": parameters, "gradients": gradients},
                share=self.share,
            ),
        )

    def _bind(self, outer: Plan | None = None) -> Step:
        """Bind the plan as a step, or ``outer``: the plan around passes that are planned separately."""
        if self.place.index and self.graph.inputs:
            raise ModelError(
                f"{self.solver.train.location}: the caller can fill the inputs "
                f"{', '.join(self.graph.inputs)} of the first worker only, but there are several: use a "
                f"layer that reads samples, which may be arrays (data=), or one worker"
            )
        plan, flat, vocabulary = outer or self._plan, self.flat, self.runtime.vocabulary
        numbers = {name: self.array(buffer) for name, buffer in plan.scalars.items()} | self._sizes
        flat.numbers = numbers
        if self._may_read_ahead:
            for level in self.levels:
                if hasattr(level, "meanwhile"):
                    level.meanwhile = self.reading.ahead
        for level in self.watched:
            flat = level.update_memory(flat)
        numbers = {**numbers, **flat.numbers}  # a master's updates may belong to other iterations
        sizes = {name: numbers[name] for name in self._sizes}
        about = plan, self.kernels, self.allocator
        main = self.graph.feeds[0] if self.graph.feeds else None
        norms = self.norms
        finish = norms.works() if norms is not None else []
        for tensor, value in self.graph.constants.items():
            if tensor.name in plan.buffers:
                self.array(plan.buffers[tensor.name])[...] = value
        guard: MakeGuard | None = getattr(self.allocator, "guard", None)
        lone = not self.levels and (self.solver.passes == 1 or outer is not None)
        make = partial(GuardedStep, guard) if guard is not None and lone and outer is None else Step
        if lone and norms is None and isinstance(flat.parameters, np.ndarray):
            # After all updates, and as one work with them if the kernels support that.
            self._finished = np.zeros(1, self.dtype)
            finish = [flat_work(vocabulary["fill"], {"value": 1.0}, [self._finished], *about)]
        step = make(
            plan,
            self.memory,
            self.reading.works() if outer is None else [],
            levels=self.watched,
            update=lambda span: self.update.bind(
                span,
                flat,
                flat.gradients[span.start : span.stop] if not plan.brief else self._brief(span),
                numbers,
                *about,
                norms.sizes(span) if norms else sizes,
            ),
            measure=None
            if norms is None
            else lambda span: norms.measure(span, flat, self.kernels, self.allocator),
            measured=finish,
            clear=None
            if plan.brief
            else flat_work(vocabulary["fill"], {"value": 0.0}, [self.flat.gradients], *about),
            passes=self.solver.passes,
            batch=main.batch if main else 0,
            offset=main.offset if main else 0,
        )
        if self.agree is not None:
            step.last.insert(0, self.agree)
        if outer is not None:
            at_work(step)
        self.whole = (
            self._finished is not None and len(step.last) == 1 and getattr(step.last[0], "whole", False)
        )
        return step

    def _brief(self, span: Span) -> Any:
        """The memory that holds a span's gradients briefly, once they are final."""
        buckets = self.plan.buckets  # a large one is computed in stretches
        (bucket,) = (b for b in buckets if b.span.start <= span.start < b.span.stop)
        return self.memory["arena"].view(self.plan.brief[bucket.index], (len(span),), self.dtype)


def _array(memory: Mapping[str, Any], buffer: Buffer) -> Any:
    """A buffer, in its layout, in the memory of its region."""
    region = memory[buffer.region]
    return region.view(buffer.offset, buffer.spec.physical, buffer.spec.array_type)
