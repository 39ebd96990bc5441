"""A net planned for the shapes at hand, in its memory, with its streams of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import (
    PRECISIONS,
    DataError,
    ModelError,
    NetDefinition,
    Plan,
    Runtime,
    SampleError,
    ShapeError,
    Slot,
    Step,
    Stream,
    Work,
    WorkerError,
    WorkerPlace,
)
from demitasse_training import parameters
from demitasse_training.arguments import check_backward
from demitasse_training.finite import Finite
from demitasse_training.folding import FOLD
from demitasse_training.graph import NetGraph
from demitasse_training.inputs import against
from demitasse_training.lent import Lent
from demitasse_training.memory_check import check_room
from demitasse_training.origins import origins, traced
from demitasse_training.own_shapes import (
    SampleShapes,
    coming,
    explained,
    made,
    makers,
    users,
    varying,
)
from demitasse_training.planner import Planner, Shapes
from demitasse_training.samples import Destination, close_stream, destinations, open_stream
from demitasse_training.statistics import changed_parameters, joined
from demitasse_training.users_layers import Run, forget, plan_through, run_through
from demitasse_training.views import Views


class PlannedNet:
    """A net's plan for the shapes that inputs and samples have, bound to memory at first use; another
    plan when they change. Memory that is not ``lent`` to it is its own."""

    def __init__(self, runtime: Runtime, planner: Planner, lent: Lent | None = None) -> None:
        self.runtime = runtime
        self.definition: NetDefinition = planner.definition
        self.worker: WorkerPlace = planner.worker
        self.phase, self.precision, self.seed = planner.phase, planner.precision, planner.seed
        self.dtype = PRECISIONS[self.precision]
        self._allocator = runtime.allocator(self.worker.space)
        self._arena: Any = lent.arena if lent is not None else None
        self._flat: Any = lent.flat if lent is not None else None
        self._gradients: Any = lent.gradients if lent is not None else None
        self._regions: dict[str, Any] = dict(lent.regions) if lent is not None else {}
        self._planner = planner
        self._once: Step | None = None
        self._first: int | None = None
        self._batch, self._every = 0, 1  # what the next forward pass is on
        self._walked = 0  # iterations
        self._streams: list[Stream] = []
        self.closed = False
        self._made = planner.planned({})
        self._declared = self._made.shapes
        self._follows, self._usual = bool(varying(self.graph)), made(self.graph)
        self._within = any(part.bottoms for _, part in users(self.graph))
        self._finite = Finite(self.graph)

    # What it is now.

    @property
    def graph(self) -> NetGraph:
        """The operations that its layers are at the present shapes."""
        return self._made.graph

    @property
    def plan(self) -> Plan:
        """The plan for the present shapes."""
        return self._made.plan

    @property
    def backward(self) -> str | None:
        """What gradients the plan computes."""
        return self._planner.backward

    @property
    def varying(self) -> list[str]:
        """The layers whose samples have shapes of their own; the plan is for the last ones."""
        return varying(self.graph)

    # Its memory.

    @property
    def step(self) -> Step:
        """The plan bound to memory, at first use."""
        if self._made.step is None:
            self._made.step = step = Step(self.plan, self._memory())
            for tensor, value in self.graph.constants.items():
                if tensor.name in self.plan.buffers:
                    step.array(self.plan.buffers[tensor.name])[...] = value
            self._do_once(step)
            self._made.outs = self._outs(step)
        return self._made.step

    def _do_once(self, step: Step) -> None:
        """What depends on parameters alone, whose results lie in the arena that all plans have."""
        for work in step.once:
            work()
        self._once = step

    def _memory(self) -> dict[str, Any]:
        """The regions of the plan; all plans have one arena, as large as any of them has needed yet."""
        plan, allocate = self.plan, self._allocator.allocate
        if self._arena is None or self._arena.nbytes < plan.arena_bytes:
            # First, so that the old one and the new one need no room beside each other.
            self._planner.unbind()
            self._once = self._arena = None
            check_room(
                self._allocator,
                {"activations and scratch memory": plan.arena_bytes},
                self.definition.location,
            )
            self._arena = allocate(max(1, plan.arena_bytes))
        memory = {"arena": self._arena, "fixed": allocate(max(1, plan.fixed_bytes))}
        memory["parameters"] = _Elements(self._flat)
        if self.backward:
            memory["gradients"] = _Elements(self._gradients_of(plan))
        return memory | self._regions

    def _gradients_of(self, plan: Plan) -> Any:
        if self._gradients is None:
            count = max(1, plan.parameters)
            memory = self._allocator.allocate(count * np.dtype(self.dtype).itemsize)
            self._gradients = memory.view(0, (count,), self.dtype)
        return self._gradients

    def _own_parameters(self) -> None:
        count, item = max(1, self.plan.parameters), np.dtype(self.dtype).itemsize
        needed = {"activations and scratch memory": self.plan.arena_bytes, "parameters": count * item}
        needed["inputs and constants"] = self.plan.fixed_bytes
        check_room(self._allocator, needed, self.definition.location)
        memory = self._allocator.allocate(count * item)
        self._flat = memory.view(0, (count,), self.dtype)
        self._planner.slots = self.plan.slots

    def _input(self, name: str) -> Any:
        """The memory of an input."""
        return self.step.array(self.plan.buffers[self.graph.inputs[name].name])

    def _inputs(self) -> dict[str, np.ndarray]:
        if self._made.step is None:
            return {}
        return {name: np.asarray(self._input(name)) for name in self.graph.inputs}

    def _taken(self) -> dict[tuple[str, str], Any]:
        """The memory of samples by layer and field, once there is some."""
        fed = zip(self.graph.feeds, self._made.outs, strict=False)
        return {(feed.layer, key): array for feed, out in fed for key, array in out.arrays.items()}

    def _views(self) -> Views:
        return Views(self.graph, self.plan, self._flat, self.step.array, self._planner.retain == "all")

    # Samples.

    @property
    def streams(self) -> list[Stream]:
        """The streams of samples, opened at first use."""
        if not self._streams and self.graph.feeds:
            self.rewind()
        return self._streams

    @property
    def reads(self) -> bool:
        """Whether all of its streams of samples are open."""
        return len(self._streams) == len(self.graph.feeds)

    def begin(self, batch: int) -> None:
        """Read samples from batch number ``batch`` on, unless they are being read."""
        if not self._streams:
            self.rewind(batch)

    def rewind(self, batch: int = 0, every: int = 1) -> None:
        """Read samples and draw random numbers from the start again, or from batch number ``batch`` on,
        every so many."""
        self._check_open()
        self._batch, self._every = batch, every
        self.pause()
        feeds = self.graph.feeds
        self._streams = [
            open_stream(feed, batch * feed.batch + feed.offset, every * feed.batch) for feed in feeds
        ]

    def pause(self) -> None:
        """End the reading ahead; samples are read again where somebody says from where."""
        for stream in self._streams:
            close_stream(stream)
        self._streams = []
        self._made.forget()

    def read(self, ahead: bool = False) -> None:
        """Take the next samples; with ``ahead`` those after them are then on their way."""
        for stream, out in zip(self.streams, self._made.outs, strict=True):
            out.take(stream, ahead)

    def _origins(self, error: SampleError) -> list[str]:
        """Where a sample of the batch that was read last is from; not where others are on their way,
        which the streams have moved on for."""
        if any(out.expects for out in self._made.outs):
            return []
        feeds = zip(self.graph.feeds, self._streams, strict=False)
        return origins(error, ((f, s.cursor - self._every * f.batch) for f, s in feeds))

    def _read(self, number: int) -> None:
        self._made.outs[number].take(self.streams[number])

    def _outs(self, step: Step) -> list[Destination]:
        engine = self.runtime.engine(self.worker)
        return destinations(self.graph, self.plan, step.array, engine, self._allocator)

    def _check_samples(self) -> None:
        """Raise DataError for samples that were read and are NaN, or infinite where that has no meaning;
        those that went to a device are not looked at."""
        for feed, out in zip(self.graph.feeds, self._made.outs, strict=True):
            for field, array in out.arrays.items():
                if not isinstance(array, np.ndarray):
                    continue
                if told := self._finite.problem((feed.layer, field), array):
                    raise DataError(f"layer {feed.layer!r}: {field}: {told}")

    def _check_open(self) -> None:
        """Raise WorkerError for one that reads samples and was closed: it has old ones alone."""
        if self.closed and self.graph.feeds:
            raise WorkerError("this net reads samples and was closed with its runtime; make another")

    # Other shapes.

    def coming(self, layers: bool = True) -> SampleShapes:
        """The shapes of the next samples where they are not those that the net was first planned for: of
        streams that tell and, with ``layers``, of what layers make by a user's code, which then have it
        ready. Waits until samples are there."""
        if not self._follows:
            return {}
        told = coming(self.graph, self.streams)
        if layers and self._usual:
            for _, part in makers(self.graph):
                part.reshaped()
            told = {**told, **dict(made(self.graph).items() - self._usual.items())}
        return told

    def follow(self, samples: SampleShapes) -> Step:
        """The step for samples of these shapes. Raises DataError that names them where the net cannot
        take them."""
        if samples != self._made.samples:
            with explained(self.graph, self.streams, samples):
                self._prepare(self._made.shapes, samples)
        return self.step

    def run_through(self, samples: SampleShapes, run: Run) -> None:
        """A forward pass on samples of these shapes, by ``run``; see users_layers.run_through, which
        serves nets whose layers run a user's code."""
        with traced(self._origins):
            if self._within:
                run_through(self, samples, run)
            else:
                self.follow(samples)
                run(False)

    def plan_through(self, samples: SampleShapes, run: Run) -> bool:
        """Plan for samples of these shapes, running what has to run for it; whether that was so: then
        users' layers have made what their next forward gives, until ``end_through``."""
        if self._within:
            return plan_through(self, samples, run)
        self.follow(samples)
        return False

    def end_through(self) -> None:
        """Have users' layers keep nothing they made: the pass that ``plan_through`` began is over."""
        forget(self)

    def follow_first(self, samples: SampleShapes, first: int | None) -> None:
        """As ``follow``, with only that many of the layers, or with all of them for None. Plans that
        were made are forgotten, samples that were taken are kept. Raises DataError, and is then as it
        was."""
        before, self._first = (self._planner, self._first), first
        self._planner = replace(self._planner, tries=False)
        try:
            with explained(self.graph, self.streams, samples):
                self._prepare(self._made.shapes, samples, again=True)
        except DataError:
            self._planner, self._first = before
            raise

    @contextmanager
    def or_as_it_was(self) -> Iterator[None]:
        """What is planned and run meanwhile is undone where it fails: plans, inputs, and what forward
        passes change of parameters are as they were."""
        before, inputs = (self._planner, self._first, self._made), self._inputs()
        restore = self.statistics_kept()
        try:
            yield
        except BaseException:
            self._made.forget()
            self._planner, self._first, self._made = before
            self._planner.unbind()
            self._made.unbind()  # the arena may be another by now
            for name, array in inputs.items():
                self._input(name)[...] = array
            restore()
            raise

    def statistics_kept(self) -> Work:
        """Remember what forward passes change of parameters, as running means. What is given has them as
        they were then."""
        starts = {b.offset for b in changed_parameters(self.graph, self.plan)}
        item = np.dtype(self.dtype).itemsize
        spans = [slot.span for slot in self.plan.slots if slot.span.start * item in starts]
        arrays = [self._flat[span.start : span.stop] for span in joined(spans)]
        kept = [(array, array.copy()) for array in arrays]

        def restore() -> None:
            for now, before in kept:
                now[...] = before

        return restore

    def plan_again(self, backward: str | None = None) -> None:
        """Forget all plans and make one for the present shapes, ``backward`` too where asked: for
        layers that have changed their shapes themselves, and may do so often. Inputs and samples are
        kept. With ``backward`` views of blobs that were taken before keep their values."""
        check_backward(backward, self._planner.retain)
        made, again = backward or self.backward, backward is None
        self._planner = replace(self._planner, backward=made, tries=not again)
        self._prepare(self._made.shapes, self._made.samples, again=True, anew=not again)

    def adopt(self, slots: Sequence[Slot], flat: Any) -> None:
        """Have the parameters in common with another net, where they lie in ``flat``. Raises ShapeError
        for one that the other lacks; this net is then as it was."""
        mine = self._planner, self._flat
        self._planner = replace(self._planner, slots=tuple(slots), owns_parameters=False)
        self._flat = flat
        try:
            self._prepare(self._made.shapes, self._made.samples)
        except ModelError:
            self._planner, self._flat = mine
            raise

    def _replan(self, shapes: Shapes, given: Shapes) -> None:
        try:
            self._prepare(shapes, self._made.samples)
        except ModelError as error:
            asked = "; ".join(
                against(name, shape, self._declared[name]) for name, shape in given.items()
            )
            raise ShapeError(f"{self.definition.location}: {asked}: {error}") from error

    def _prepare(
        self, shapes: Shapes, samples: SampleShapes, again: bool = False, anew: bool = False
    ) -> None:
        """Plan for shapes of inputs and samples; parameters stay where they are, and so do inputs that
        keep their shape, and samples that were taken, for a pass ``again`` on them. The arena is left to
        whoever has views of it for one ``anew``."""
        made = self._planner.planned(shapes, self._first, samples)
        self._made.forget()
        before, taken = self._inputs(), self._taken() if again else {}
        if self._made.walk is not None:
            self._walked = self._made.walk.iteration
        self._made = made
        if made.walk is not None:
            made.walk.iteration = self._walked
        if anew:
            self._planner.unbind()
            self._once = self._arena = None
        elif before and self.backward:
            self._arena.view(0, (self._arena.nbytes,), "uint8")[...] = 0  # what others left in gradients
        for name, array in before.items():
            if name in self.graph.inputs and array.shape == (mine := self._input(name)).shape:
                mine[...] = array
        for key, array in self._taken().items() if taken and self.step else ():
            if key in taken and array.shape == taken[key].shape:
                array[...] = taken[key]

    def _unfold(self) -> None:
        """Where layers are folded into the weights before them: plan without that, parameters laid as
        the kernels like them. Who may write to parameters should not wait at each forward until weights
        are folded anew."""
        if not any(entry.operation == FOLD.name for entry in self.plan.entries):
            return
        values, seen = parameters.by_layer(self.graph, self.plan, self._flat), dict[str, np.ndarray]()
        if self._made.step is not None:  # what the last forward has left to look at stays
            kept = [name for name, tensor in self.graph.blobs.items() if tensor.kind == "input"]
            views = self._views()
            seen = {name: np.array(views.values(name, name)) for name in {*kept, *self.plan.outputs}}
        self._planner = replace(self._planner, slots=(), folds=False)
        self._made = self._planner.planned(self._made.shapes, self._first, self._made.samples)
        self._own_parameters()
        parameters.load(self.graph, self.plan, self._flat, values, self.definition.location)
        for name, value in seen.items():
            buffer = self.plan.outputs.get(name, self.plan.buffers[name])
            self.step.array(buffer)[...] = buffer.spec.layout.pack(value)


class _Elements:
    """A flat array as a region of memory."""

    def __init__(self, array: Any) -> None:
        self._bytes = array.view(np.uint8)
        self.nbytes = int(self._bytes.size)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)

    def close(self) -> None:
        """Nothing: the array is somebody else's."""
