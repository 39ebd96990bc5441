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
    """A net's plan for the current shapes of inputs and samples, bound to memory at first use. When the
    shapes change, another plan takes its place. Memory that is not ``lent`` to the net is its own."""

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
        self._batch, self._every = 0, 1  # the next pass's batch; the step after it
        self._walked = 0  # iterations
        self._streams: list[Stream] = []
        self.closed = False
        self._made = planner.planned({})
        self._declared = self._made.shapes
        self._follows, self._usual = bool(varying(self.graph)), made(self.graph)
        self._within = any(part.bottoms for _, part in users(self.graph))
        self._finite = Finite(self.graph)

    # Its present state.

    @property
    def graph(self) -> NetGraph:
        """The operations of its layers at the current shapes."""
        return self._made.graph

    @property
    def plan(self) -> Plan:
        """The plan for the current shapes."""
        return self._made.plan

    @property
    def backward(self) -> str | None:
        """Which gradients the plan computes; None for none."""
        return self._planner.backward

    @property
    def varying(self) -> list[str]:
        """The layers whose samples vary in shape; the plan is for the latest shapes."""
        return varying(self.graph)

    # Its memory.

    @property
    def step(self) -> Step:
        """The plan, bound to memory at first use."""
        if self._made.step is None:
            self._made.step = step = Step(self.plan, self._memory())
            for tensor, value in self.graph.constants.items():
                if tensor.name in self.plan.buffers:
                    step.array(self.plan.buffers[tensor.name])[...] = value
            self._do_once(step)
            self._made.outs = self._outs(step)
        return self._made.step

    def _do_once(self, step: Step) -> None:
        """Compute whatever depends on parameters alone; its results lie in the arena that all plans
        share."""
        for work in step.once:
            work()
        self._once = step

    def _memory(self) -> dict[str, Any]:
        """The regions of the plan. All plans share one arena, as large as any of them has needed so
        far."""
        plan, allocate = self.plan, self._allocator.allocate
        if self._arena is None or self._arena.nbytes < plan.arena_bytes:
            # Unbind first, so that the old arena and the new one need not exist at the same time.
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
        """The memory of samples by layer and field; empty until some was allocated."""
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
        """Whether all of its sample streams are open."""
        return len(self._streams) == len(self.graph.feeds)

    def begin(self, batch: int) -> None:
        """Read samples from batch number ``batch`` on, unless reading has begun."""
        if not self._streams:
            self.rewind(batch)

    def rewind(self, batch: int = 0, every: int = 1) -> None:
        """Start reading samples and drawing random numbers over: from the beginning, or from batch
        number ``batch``, and then every ``every``-th batch."""
        self._check_open()
        self._batch, self._every = batch, every
        self.pause()
        feeds = self.graph.feeds
        self._streams = [
            open_stream(feed, batch * feed.batch + feed.offset, every * feed.batch) for feed in feeds
        ]

    def pause(self) -> None:
        """End reading ahead. Samples are read again once ``rewind`` or ``begin`` says from where."""
        for stream in self._streams:
            close_stream(stream)
        self._streams = []
        self._made.forget()

    def read(self, ahead: bool = False) -> None:
        """Take the next samples. With ``ahead``, start reading those after them."""
        for stream, out in zip(self.streams, self._made.outs, strict=True):
            out.take(stream, ahead)

    def _origins(self, error: SampleError) -> list[str]:
        """Where the samples of the last batch read come from. Empty if reading ahead has begun, because
        the streams have then moved on."""
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
        """Raise DataError if samples just read contain NaN, or infinities where these have no meaning.
        Samples on a device are not checked."""
        for feed, out in zip(self.graph.feeds, self._made.outs, strict=True):
            for field, array in out.arrays.items():
                if not isinstance(array, np.ndarray):
                    continue
                if told := self._finite.problem((feed.layer, field), array):
                    raise DataError(f"layer {feed.layer!r}: {field}: {told}")

    def _check_open(self) -> None:
        """Raise WorkerError if the net reads samples and was closed: it would only have old ones."""
        if self.closed and self.graph.feeds:
            raise WorkerError("this net reads samples and was closed with its runtime; make another")

    # Changes of shape.

    def coming(self, layers: bool = True) -> SampleShapes:
        """Return those shapes of the next samples that differ from the first plan's, from the streams
        that report shapes. With ``layers``, also run the layers whose output shapes a user's code
        determines; they then keep that output for their next forward pass. Waits until samples are
        there."""
        if not self._follows:
            return {}
        told = coming(self.graph, self.streams)
        if layers and self._usual:
            for _, part in makers(self.graph):
                part.reshaped()
            told = {**told, **dict(made(self.graph).items() - self._usual.items())}
        return told

    def follow(self, samples: SampleShapes) -> Step:
        """Return the step for samples of these shapes. Raises DataError that names them if the net does
        not support them."""
        if samples != self._made.samples:
            with explained(self.graph, self.streams, samples):
                self._prepare(self._made.shapes, samples)
        return self.step

    def run_through(self, samples: SampleShapes, run: Run) -> None:
        """Run a forward pass with ``run`` on samples of these shapes. ``users_layers.run_through`` does
        this for nets whose layers run a user's code."""
        with traced(self._origins):
            if self._within:
                run_through(self, samples, run)
            else:
                self.follow(samples)
                run(False)

    def plan_through(self, samples: SampleShapes, run: Run) -> bool:
        """Plan for samples of these shapes, and run whatever layers the planning depends on. Returns
        whether any were run: if so, users' layers keep their outputs for the next forward pass, until
        ``end_through``."""
        if self._within:
            return plan_through(self, samples, run)
        self.follow(samples)
        return False

    def end_through(self) -> None:
        """End the pass that ``plan_through`` began: users' layers drop the outputs they kept."""
        forget(self)

    def follow_first(self, samples: SampleShapes, first: int | None) -> None:
        """Like ``follow``, with only the first ``first`` layers, or all of them for None. Existing plans
        are dropped; samples already read are kept. Raises DataError, and then leaves the net
        unchanged."""
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
        """If the body fails, undo what it planned and ran: plans, inputs, and whatever a forward pass
        changes in parameters are restored."""
        before, inputs = (self._planner, self._first, self._made), self._inputs()
        restore = self.statistics_kept()
        try:
            yield
        except BaseException:
            self._made.forget()
            self._planner, self._first, self._made = before
            self._planner.unbind()
            self._made.unbind()  # the arena may have been replaced
            for name, array in inputs.items():
                self._input(name)[...] = array
            restore()
            raise

    def statistics_kept(self) -> Work:
        """Copy what forward passes change in parameters, such as running means. Calling the result
        restores the copy."""
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
        """Drop all plans and make one for the current shapes, with the gradients ``backward`` if given.
        This serves layers that have changed their shapes themselves, and may do so often. Inputs and
        samples are kept. With ``backward``, views of blobs that were taken before keep their values."""
        check_backward(backward, self._planner.retain)
        made, again = backward or self.backward, backward is None
        self._planner = replace(self._planner, backward=made, tries=not again)
        self._prepare(self._made.shapes, self._made.samples, again=True, anew=not again)

    def adopt(self, slots: Sequence[Slot], flat: Any) -> None:
        """Share parameters with another net, whose parameters lie in ``flat``. Raises ShapeError if the
        other net lacks one of them; this net is then unchanged."""
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
        """Plan for these shapes of inputs and samples. Parameters stay in place, and so do inputs whose
        shape is unchanged. If the same pass runs ``again``, its samples are kept, too. With ``anew``, a
        new arena is allocated, and the old one is left to those who hold views of it."""
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
            self._arena.view(0, (self._arena.nbytes,), "uint8")[...] = 0  # stale values in gradients
        for name, array in before.items():
            if name in self.graph.inputs and array.shape == (mine := self._input(name)).shape:
                mine[...] = array
        for key, array in self._taken().items() if taken and self.step else ():
            if key in taken and array.shape == taken[key].shape:
                array[...] = taken[key]

    def _unfold(self) -> None:
        """If layers are folded into the weights before them, plan again without folding, and lay out
        parameters as the kernels prefer. Otherwise, each forward pass would fold the weights anew for a
        user who may write to them."""
        if not any(entry.operation == FOLD.name for entry in self.plan.entries):
            return
        values, seen = parameters.by_layer(self.graph, self.plan, self._flat), dict[str, np.ndarray]()
        if self._made.step is not None:  # keep the outputs of the last forward pass readable
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
        """Do nothing: the array belongs to someone else."""
