"""A net in one phase: planned, bound, and run forward."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    PRECISIONS,
    CompositionError,
    DataSource,
    DataSpec,
    DemitasseError,
    Entry,
    ModelError,
    NetDefinition,
    Parameter,
    Plan,
    PluginError,
    Runtime,
    ShapeError,
    Slot,
    Step,
    Stream,
    WorkerPlace,
    arrange,
    make_plan,
    unknown,
)
from demitasse_training import parameters
from demitasse_training.graph import NetGraph
from demitasse_training.look import Blob, Look, extents
from demitasse_training.room import check_room
from demitasse_training.shares import Share
from demitasse_training.walk import Walk, buffers

PHASES = ("train", "test")
BACKWARD = (None, "objective", "every blob")
PLANS_KEPT = 8

_Made = tuple[NetGraph, Plan, Step | None, Walk | None]


def chosen_precision(runtime: Runtime, asked: str | None) -> str:
    """The precision that a run asks for, else that of the machine's description. Raises
    CompositionError with the valid ones."""
    precision = asked or runtime.machine.precision
    if precision not in PRECISIONS:
        where = None if asked else runtime.machine.origin
        raise CompositionError(unknown("precision", precision, PRECISIONS, where))
    return precision


def check_retain(retain: str | None) -> None:
    """Raise CompositionError for what ``retain`` cannot be."""
    if retain is not None and retain != "all":
        raise CompositionError(f"unknown retain {retain!r} (valid: None, 'all')")


def check_backward(backward: str | None, retain: str | None) -> None:
    """Raise CompositionError for what ``backward`` cannot be."""
    if backward not in BACKWARD:
        raise CompositionError(
            f"unknown backward {backward!r} (valid: {', '.join(map(repr, BACKWARD))})"
        )
    if backward and retain != "all":
        raise CompositionError(f"backward={backward!r} needs retain='all'")


def at_least_one(iterations: int) -> None:
    """Raise ModelError for a number of iterations that is no number of times."""
    if iterations < 1:
        raise ModelError(f"iterations must be at least 1; given {iterations}")


def check_data(data: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Raise ModelError unless ``data`` maps phases to arrays by name."""
    form = "data maps a phase to arrays by the names of the samples' fields: {'train': {'data': ...}}"
    if data is not None and not isinstance(data, Mapping):
        raise ModelError(f"{form}; given {type(data).__name__}")
    for phase, arrays in (data or {}).items():
        if phase not in PHASES:
            raise ModelError(f"{unknown('phase of data', str(phase), PHASES)}; {form}")
        if not isinstance(arrays, Mapping):
            raise ModelError(f"{form}; given {type(arrays).__name__} for {phase!r}")


def opener(runtime: Runtime, data: Mapping[str, Mapping[str, Any]] | None, phase: str) -> Any:
    """What a graph opens its sources with: each specification once, or the arrays given instead.

    What it opens is checked: it raises PluginError for what is no source, or an error of no plugin's.
    """
    check_data(data)
    opened: dict[str, DataSource] = {}
    arrays = (data or {}).get(phase)

    def open_source(spec: DataSpec) -> DataSource:
        if arrays is not None and spec.kind != "fillers":  # what a layer makes up stays made up
            spec = DataSpec(arrays, "arrays", spec.shuffle, spec.seed, {}, spec.location)
        key = f"{id(arrays) if arrays is not None else spec}"
        if key not in opened:
            opened[key] = _opened(runtime, spec)
        return opened[key]

    return open_source


def _opened(runtime: Runtime, spec: DataSpec) -> DataSource:
    asked = repr(spec.source) if isinstance(spec.source, str) else "arrays"
    what = f"{spec.location}: samples from {asked}" if spec.location else f"samples from {asked}"
    try:
        return runtime.open_source(spec)
    except DemitasseError:
        raise
    except Exception as error:
        raise PluginError(
            f"{what}: a data_source hook raised {type(error).__name__}: {error}"
        ) from error


class Net:
    """A net that runs forward.

    ``path`` is a model file (or a definition), ``weights`` a path or several; ``retain="all"`` keeps
    every blob. ``forward`` takes arrays by input name and plans again, once for each set of shapes
    (the latest few are kept). A retained net can also be walked layer by layer (``walk``), and backward
    if it is asked for: from the objective, or with gradients of every blob.
    """

    def __init__(
        self,
        runtime: Runtime,
        path: str | Path | NetDefinition,
        *,
        weights: str | Path | Sequence[str | Path] | None = None,
        phase: str = "test",
        precision: str | None = None,
        retain: str | None = None,
        backward: str | None = None,
        data: Mapping[str, Mapping[str, Any]] | None = None,
        overrides: Mapping[str, Any] | None = None,
        seed: int = 0,
        worker: WorkerPlace | None = None,
        slots: Sequence[Slot] = (),
        flat: Any = None,
        gradients: Any = None,
        passes: int = 1,
        arena: Any = None,
        partial: bool = False,
    ) -> None:
        self.runtime, self.phase, self.seed, self._retain = runtime, phase, seed, retain
        self.loaded: dict[str, parameters.Loaded] = {}
        self.precision = chosen_precision(runtime, precision)
        self.dtype = PRECISIONS[self.precision]
        check_retain(retain)
        check_backward(backward, retain)
        self.backward, self._passes = backward, passes
        if isinstance(path, NetDefinition):
            self.definition = path
        else:
            self.definition = runtime.read(path).net(phase, overrides)
        self.worker = worker or arrange(runtime.machine, self.dtype)[0]
        self._kernels = runtime.kernels(self.worker)
        self._allocator = runtime.allocator(self.worker.place.space)
        self._open_source = opener(runtime, data, phase)
        self._slots, self._arena = tuple(slots), arena
        self._flat: Any = flat
        # What depends on parameters alone is done again for a new plan; and at every forward from when
        # somebody has arrays to write them through.
        self._owns_parameters, self._lent = flat is None, False
        self._step: Step | None = None
        self._walk: Walk | None = None
        self._gradients = gradients
        self._kept: dict[Any, _Made] = {}
        self._first: int | None = None
        self._streams: list[tuple[Stream, dict[str, Any]]] = []
        self._prepare({})
        if phase in (data or {}) and not self.graph.feeds:
            raise ModelError(
                f"{self.definition.location}: data is given for phase {phase!r}, where the net has no "
                f"layer that reads samples; give arrays to forward() by input name instead (inputs: "
                f"{', '.join(self.graph.inputs) or 'none'})"
            )
        self._declared = {name: tensor.shape for name, tensor in self.graph.inputs.items()}
        if flat is None:
            self._own_parameters()
            for each in listed(weights):
                arrays = runtime.read(each).weights().parameters
                self.loaded[str(each)] = parameters.load(
                    self.plan, self._flat, arrays, each, partial=partial
                )

    # What a user calls.

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Run all layers; ``inputs`` by blob name replace what is there. Copies of the outputs.

        Raises ModelError for what is no input or no numbers, ShapeError when the net cannot take a
        shape; the net is then as it was.
        """
        arrays = {name: self._given(name, value) for name, value in inputs.items()}
        shapes = {name: tensor.shape for name, tensor in self.graph.inputs.items()}
        wanted = {**shapes, **{name: tuple(array.shape) for name, array in arrays.items()}}
        if wanted != shapes:
            self._replan(wanted, arrays)
        step = self.step
        for name, array in arrays.items():
            self._input(name)[...] = array
        for stream, out in self._streams:
            stream.read(out)
        for work in step.once if self._lent else ():
            work()
        for work in step.forward:
            work()
        return self.outputs()

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the blobs that no layer reads, as the last forward left them."""
        look = self._look()
        return {name: np.array(look.values(name, name)) for name in self.plan.outputs}

    def test(self, iterations: int = 1) -> dict[str, Any]:
        """The mean of each output over batches from the start of the data; per-class outputs are
        lists."""
        self.rewind()
        totals: dict[str, np.ndarray] = {}
        for _ in range(iterations):
            for name, value in self.forward().items():
                totals[name] = totals.get(name, 0.0) + value.astype(np.float64)
        means = {name: total / iterations for name, total in totals.items()}
        return {n: float(m.reshape(-1)[0]) if m.size == 1 else m.tolist() for n, m in means.items()}

    @property
    def blobs(self) -> dict[str, Blob]:
        """Blobs by name."""
        return self._look().blobs

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name, in logical (NCHW) order; live views where layouts are plain,
        else read-only copies; with ``retain="all"`` all are live."""
        self._lent = True
        return parameters.by_layer(self.plan, self._flat)

    def reshape(self, shapes: Mapping[str, tuple[int, ...]], first: int | None = None) -> None:
        """Plan for other shapes of inputs; what others hold is kept. With ``first`` only that many of
        the layers, for shapes that a later one cannot take. Raises ShapeError when the net cannot take
        them, and is then as it was."""
        for name in shapes:
            if name not in self._declared:
                raise ModelError(unknown("input", name, self._declared, self.definition.location))
        present = {name: tensor.shape for name, tensor in self.graph.inputs.items()}
        wanted, before = {**present, **shapes}, self._first
        if wanted != present or first != before:
            self._first = first
            try:
                self._replan(wanted, {name: np.empty(shape) for name, shape in shapes.items()})
            except ModelError:
                self._first = before
                raise

    def plan_again(self, backward: str | None = None) -> None:
        """Forget all plans and make one for the present shapes, ``backward`` too where asked: for
        layers that have changed their shapes themselves. Inputs and samples are kept."""
        check_backward(backward, self._retain)
        self._kept, self.backward = {}, backward or self.backward
        self._prepare({name: tensor.shape for name, tensor in self.graph.inputs.items()})

    def adopt(self, slots: Sequence[Slot], flat: Any) -> None:
        """Have the parameters in common with another net, where they lie in ``flat``. Raises ShapeError
        for one that the other lacks; this net is then as it was."""
        mine = self._slots, self._flat, self._owns_parameters, self._kept
        self._slots, self._flat, self._owns_parameters, self._kept = tuple(slots), flat, False, {}
        try:
            self._prepare({name: tensor.shape for name, tensor in self.graph.inputs.items()})
        except ModelError:
            self._slots, self._flat, self._owns_parameters, self._kept = mine
            raise

    @property
    def walk(self) -> Walk:
        """The net as one walks it layer by layer; another one for other shapes. Needs
        ``retain="all"``."""
        if self._retain != "all":
            raise ModelError("a net is walked layer by layer only if it is planned with retain='all'")
        step = self.step
        if self._walk is None:
            feeds = enumerate(self.graph.feeds)
            reads = [(feed.layer, partial(self._read, number)) for number, feed in feeds]
            self._walk = Walk(self.graph, step, reads, self._flat, self._gradients)
            self._keep()
        return self._walk

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry over some forward passes."""
        at_least_one(iterations)
        self.forward()
        return timed(self.step, iterations, [lambda s=s, o=o: s.read(o) for s, o in self._streams])

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {extents(t.shape)}" for n, t in self.graph.inputs.items())
        layers = ", ".join(feed.layer for feed in self.graph.feeds)
        source = f"inputs {inputs}" if inputs else f"samples from {layers or 'nowhere'}"
        definition = self.definition
        return f"<net {definition.name} ({self.phase}), {len(definition.layers)} layers, {source}>"

    def _look(self) -> Look:
        return Look(self.graph, self.plan, self._flat, self.step.array, self._retain == "all")

    # What it is given.

    def _given(self, name: str, value: Any) -> np.ndarray:
        """An input's value as an array of numbers of the declared rank."""
        where = self.definition.location
        if name not in self.graph.inputs:
            feeding = {feed.layer for feed in self.graph.feeds}
            layers = (x for x in self.definition.layers if name in x.tops and x.name in feeding)
            if (layer := next(layers, None)) is None:
                raise ModelError(unknown("input", name, self.graph.inputs, where))
            raise ModelError(
                f"{layer.location}: blob {name!r} is no input: layer {layer.name!r} ({layer.type}) "
                f"reads it from its data source; a net with an Input layer (deploy) takes arrays here, "
                f"and data={{{self.phase!r}: {{...}}}} gives this one arrays as its samples"
            )
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ModelError(f"{where}: input {name!r} is no array: {error}") from error
        if array.dtype.kind not in "biuf":
            raise ModelError(
                f"{where}: input {name!r} has elements of type {array.dtype}; valid are real numbers"
            )
        if array.ndim != len(self._declared[name]):
            raise ShapeError(f"{where}: {self._against(name, array)}: the ranks must agree")
        if not array.size:
            raise ShapeError(f"{where}: {self._against(name, array)}: it is empty")
        return array

    def _against(self, name: str, array: np.ndarray) -> str:
        inner = "".join(f", {extent}" for extent in self._declared[name][1:])
        return f"input {name!r} has shape {array.shape} here; declared (N{inner or ','})"

    def _replan(self, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            self._prepare(shapes)
        except ModelError as error:
            given = "; ".join(self._against(name, array) for name, array in arrays.items())
            raise ShapeError(f"{self.definition.location}: {given}: {error}") from error

    # How it comes to be.

    @property
    def step(self) -> Step:
        """The plan bound to memory, at first use."""
        if self._step is None:
            plan, allocate = self.plan, self._allocator.allocate
            if self._arena is None or self._arena.nbytes < plan.arena_bytes:
                self._arena = allocate(max(1, plan.arena_bytes))
                self._kept = {
                    k: (graph, made, None, None) for k, (graph, made, *_) in self._kept.items()
                }
            memory = {"arena": self._arena, "fixed": allocate(max(1, plan.fixed_bytes))}
            memory["parameters"] = _Elements(self._flat)
            if self.backward:
                memory["gradients"] = _Elements(self._gradients_of(plan))
            self._step = Step(plan, memory)
            for tensor, value in self.graph.constants.items():
                if tensor.name in plan.buffers:
                    self._step.array(plan.buffers[tensor.name])[...] = value
            for work in self._step.once:
                work()
            self._keep()
            if self._streams:
                self._streams = [(s, o) for (s, _), o in zip(self._streams, self._outs(), strict=True)]
            else:
                self.rewind()
        return self._step

    def rewind(self, batch: int = 0) -> None:
        """Read samples from the start again, or from batch number ``batch`` on."""
        for stream, _ in self._streams:
            stream.close()
        feeds = self.graph.feeds
        streams = [feed.source.stream(batch * feed.batch, feed.count, feed.batch) for feed in feeds]
        self._streams = list(zip(streams, self._outs(), strict=True))

    def close(self) -> None:
        """End the reading ahead."""
        for stream, _ in self._streams:
            stream.close()
        self._streams = []

    def __del__(self) -> None:
        if hasattr(self, "_streams"):  # dropped without a word: its reading ends with it
            self.close()

    def _outs(self) -> list[dict[str, Any]]:
        return [
            {key: self.step.array(self.plan.buffers[f"{feed.layer}.{key}"]) for key in feed.tensors}
            for feed in self.graph.feeds
        ]

    def _read(self, number: int) -> None:
        stream, out = self._streams[number]
        stream.read(out)

    def _input(self, name: str) -> Any:
        """The memory of an input; some that is nobody's where nothing reads it."""
        tensor = self.graph.inputs[name]
        found = buffers(self.plan).get(tensor.name)
        return np.empty(tensor.shape, self.dtype) if found is None else self.step.array(found)

    def _gradients_of(self, plan: Plan) -> Any:
        if self._gradients is None:
            count = max(1, plan.parameters)
            memory = self._allocator.allocate(count * np.dtype(self.dtype).itemsize)
            self._gradients = memory.view(0, (count,), self.dtype)
        return self._gradients

    def _prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Plan for input shapes; parameters stay where they are, and so do inputs that keep their
        shape."""
        made = self._kept.pop((self._first, *_key(shapes)), None) or (*self._planned(shapes), None, None)
        before = self._inputs() if self._step is not None else {}
        self.graph, self.plan, self._step, self._walk = made
        if before and self.backward:
            self._arena.view(0, (self._arena.nbytes,), "uint8")[...] = 0  # what others left in gradients
        for name, array in before.items():
            if name in self.graph.inputs and array.shape == (mine := self._input(name)).shape:
                mine[...] = array
        self._keep()

    def _planned(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[NetGraph, Plan]:
        graph = NetGraph(
            self.runtime.vocabulary,
            phase=self.phase,
            dtype=self.dtype,
            open_source=self._open_source,
            share=Share(),
            seed=self.seed,
            input_shapes=shapes,
            retain=self._retain,
        ).build(self._present(), self.runtime.layer_types)
        if self.backward:
            everything = self.backward == "every blob" or self._first is not None
            graph.differentiate(self._passes, every_blob=everything)
        for parameter in graph.parameters if shapes else ():
            self._check_fit(parameter)
        plan = make_plan(
            graph,
            self._kernels,
            self.worker.place,
            name=self.definition.name,
            slots=self._slots,
            retain=self._retain,
            precision=self.precision,
            fixed_parameters=self._owns_parameters and not self.backward,
        )
        return graph, plan

    def _present(self) -> NetDefinition:
        """The layers that are planned now."""
        layers = self.definition.layers[: self._first]
        return self.definition if self._first is None else replace(self.definition, layers=layers)

    def _keep(self) -> None:
        """Remember the present plan as the latest of a few."""
        shapes = {name: tensor.shape for name, tensor in self.graph.inputs.items()}
        key = self._first, *_key(shapes)
        self._kept.pop(key, None)
        self._kept[key] = self.graph, self.plan, self._step, self._walk
        while len(self._kept) > PLANS_KEPT:
            del self._kept[next(iter(self._kept))]

    def _inputs(self) -> dict[str, np.ndarray]:
        return {name: self._input(name) for name in self.graph.inputs}

    def _check_fit(self, parameter: Parameter) -> None:
        """Raise ShapeError unless the parameter is as the net has it since its first plan."""
        layer, number = parameter.owners[0]
        slot = next((slot for slot in self._slots if (layer, number) in slot.owners), None)
        if slot is not None and slot.spec.shape != parameter.tensor.shape:
            raise ShapeError(
                f"layer {layer!r} cannot take it: its parameter {number} has shape {slot.spec.shape}, "
                f"and would need {parameter.tensor.shape}"
            )

    def _own_parameters(self) -> None:
        count, item = max(1, self.plan.parameters), np.dtype(self.dtype).itemsize
        needed = {"activations and scratch memory": self.plan.arena_bytes, "parameters": count * item}
        needed["inputs and constants"] = self.plan.fixed_bytes
        check_room(self._allocator, needed, self.definition.location)
        memory = self._allocator.allocate(count * np.dtype(self.dtype).itemsize)
        self._flat = memory.view(0, (count,), self.dtype)
        parameters.fill(self.graph, self.plan, self._flat, self.seed)
        self._slots = self.plan.slots


def _key(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))


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


def listed(weights: str | Path | Sequence[str | Path] | None) -> list[str | Path]:
    """Weights files given as one path, a comma-separated list, or a sequence."""
    if weights is None:
        return []
    if isinstance(weights, str):
        return list(weights.split(","))
    return [weights] if isinstance(weights, Path) else list(weights)


def timed(step: Step, iterations: int, reads: Sequence[Any] = ()) -> list[tuple[Entry, float]]:
    """The mean seconds of each entry of a step over some walks."""
    seconds = [0.0] * len(step.works)
    for _ in range(iterations):
        for read in reads:
            read()
        for i, (_, work) in enumerate(step.works):
            start = time.perf_counter()
            work()
            seconds[i] += time.perf_counter() - start
    return [(entry, s / iterations) for (entry, _), s in zip(step.works, seconds, strict=True)]
