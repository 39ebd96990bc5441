"""Making the plan that would run, without its memory: by the trainer of the composed plugins, on memory
that is only counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    PRECISIONS,
    Bucket,
    Candidate,
    CompositionError,
    DataError,
    DataSource,
    DataSpec,
    Field,
    GradientSync,
    Group,
    Kernels,
    Level,
    Machine,
    Plan,
    Processes,
    Request,
    Runtime,
    Solver,
    Span,
    Team,
    WorkerPlace,
    arrange,
    blamed,
)
from demitasse_simulator import statements
from demitasse_simulator.described import AMONG_NODES, Described
from demitasse_simulator.roofline import around

OWN = ("threads", "streams")
"""Values of ``workers`` whose siblings are workers of one process; others are endpoints of the
network."""


REACHED = ("mpi", "simulated")
"""Values of ``workers`` whose siblings are endpoints of the network that compute."""

SQUARES = "squares"
"""The operation that measures gradients, and the operand of an update that reads its result."""


class CountedMemory:
    """A block without memory: every view of it has a single element, which appears at every index."""

    def __init__(self, nbytes: int, counter: Counter) -> None:
        self.nbytes, self._counter = nbytes, counter

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        """Return an array that can be written to; all of its elements are the value that was written
        last."""
        one = np.zeros(1, dtype)
        return np.lib.stride_tricks.as_strided(one, tuple(shape), (0,) * len(shape))

    def close(self) -> None:
        """Count the block as freed."""
        self._counter.held -= self.nbytes
        self.nbytes = 0


class Counter:
    """An allocator of any space that only counts; ``held`` is the number of bytes that are not freed
    yet."""

    def __init__(self, space: str) -> None:
        self.space, self.allocations, self.bytes, self.held = space, 0, 0, 0

    def allocate(self, nbytes: int) -> CountedMemory:
        """Return a block for which no memory is allocated."""
        self.allocations += 1
        self.bytes += nbytes
        self.held += nbytes
        return CountedMemory(nbytes, self)


@dataclass(frozen=True)
class Recorder(Kernels):
    """Kernels that are chosen as usual. ``requests`` has each candidate and the request that it was
    chosen for, by the candidate's id; a copy with another tuner adds to the same."""

    requests: dict[int, tuple[Candidate, Request]] = field(default_factory=dict)

    def choose(self, request: Request, layer: str) -> tuple[str, Candidate, str]:
        plugin, candidate, reason = super().choose(request, layer)
        self.requests[id(candidate)] = candidate, request
        return plugin, candidate, reason


class _NotFilled:
    """A graph builder whose parameters cost nothing to fill. ``counted`` tells layers that nothing will
    run."""

    counted = True

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def parameter(self, shape: Any, filler: Any, **about: Any) -> Any:
        return self._graph.parameter(shape, _zeros, **about)


def _zeros(shape: Sequence[int], stream: Any) -> Any:
    return np.zeros(shape, np.float32)


class _LayerType:
    """A layer type whose parameters are not filled."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def build(self, layer: Any, bottoms: Any, graph: Any) -> Any:
        where = f"{layer.location}: layer {layer.name!r} ({layer.type})"
        with blamed(self._real, "in build", where, getattr(self._real, "raises", (ValueError, OSError))):
            return self._real.build(layer, bottoms, _NotFilled(graph))


@dataclass(frozen=True)
class Samples:
    """A source of samples that has only their shapes."""

    fields: Mapping[str, Field]
    size: int = 1 << 20

    def stream(self, first: int, count: int, step: int) -> Any:
        """Raise DataError, because there is nothing to read."""
        raise DataError("these samples have only shapes, for a simulation, and no numbers")

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Beyond(GradientSync):
    """A worker's synchronisation with workers on other machines that are only described; ``nodes`` is
    the number of nodes, this one included. ``inner`` is the composed plugin's own synchronisation
    between the threads of this process, or None; ``outer`` is the plugin's object for a node among
    others, or None."""

    def __init__(
        self, inner: GradientSync | None, nodes: int, outer: GradientSync | None = None
    ) -> None:
        self.inner, self.nodes, self.outer = inner, nodes, outer
        self.bucket_bytes = max(each.bucket_bytes for each in (inner, outer, GradientSync()) if each)
        self.index = inner.index if inner else 0
        self.size = (inner.size if inner else 1) * nodes
        self.shares_parameters = inner.shares_parameters if inner else False

    def bind(self, memory: Any) -> None:
        if self.inner and not isinstance(self.inner, Described) and not hasattr(self.inner, "stages"):
            self.inner.bind(memory)

    def owned(self, span: Span) -> Span:
        return self.inner.owned(span) if self.inner else span

    def reduce(self, bucket: Bucket, span: Span) -> None:
        """Do nothing: no step runs here, and the work of siblings is costed elsewhere."""

    def close(self) -> None:
        if self.inner:
            self.inner.close()


class _Plugin:
    """A plugin's module whose synchronisations are wrapped to reach beyond this process."""

    def __init__(self, real: Any, wrap: Callable[[Any, Group], GradientSync]) -> None:
        self._real, self._wrap = real, wrap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def gradient_sync(self, group: Group) -> GradientSync:
        return self._wrap(self._real, group)


@dataclass(frozen=True)
class Chain:
    """One group of siblings of the first worker: its ``levels``, those of them that are the
    ``network``, the number of ``nodes`` that take part, its plugin's ``sync`` and the description's
    options. ``syncs`` has the corresponding synchronisations of all workers of the process, the first
    worker's first."""

    plugin: str
    levels: tuple[Level, ...]
    network: tuple[Level, ...]
    nodes: int
    sync: GradientSync
    options: Mapping[str, Any]
    syncs: tuple[GradientSync, ...]


@dataclass(frozen=True)
class Draft:
    """What the trainer would bind: the first worker's plan and place, the requests that its kernels
    were chosen for, and its chains of synchronisation, innermost first. ``batch`` is the batch of all
    workers, ``share`` the first worker's; ``memory`` is in bytes by purpose."""

    solver: Solver
    plan: Plan
    worker: WorkerPlace
    workers: int
    batch: int
    share: int
    kernels: Recorder
    requests: Mapping[int, tuple[Candidate, Request]]
    chains: tuple[Chain, ...]
    memory: Mapping[str, int]
    vocabulary: Mapping[str, Any]

    @property
    def measuring(self) -> bool:
        """Whether an update needs the norms of whole gradients (clipping, rates by layer). All
        gradients are then summed and measured before any is used, and nothing overlaps with the
        backward pass."""
        operation = self.vocabulary[self.solver.update]
        return bool(self.solver.clip) or any(each.name == SQUARES for each in operation.inputs)


class Drawing(Runtime):
    """A runtime without real memory, for plans of machines that are not here or whose memory would not
    suffice. Its kernels and their choices are those of the real runtime."""

    def __init__(
        self, real: Runtime, machine: Machine, nodes: Mapping[str, int], fields: Mapping[str, Field]
    ) -> None:
        self._real, self._nodes, self._fields = real, nodes, fields
        self.syncs: list[tuple[str, Group, GradientSync, int]] = []
        modules = {
            name: _Plugin(module, self._sync(name)) if hasattr(module, "gradient_sync") else module
            for name, module in real.composition.modules.items()
        }
        super().__init__(machine, replace(real.composition, modules=modules), real.options)
        types: dict[str, Any] = {name: _LayerType(made) for name, made in self.layer_types.items()}
        self.layer_types = types
        self.counters: dict[str, Counter] = {}
        self.recorders: list[Recorder] = []

    def _sync(self, plugin: str) -> Callable[[Any, Group], GradientSync]:
        def wrap(module: Any, group: Group) -> GradientSync:
            nodes = math.prod(self._nodes.get(level, 1) for level in group.levels)
            inner, outer, asked = None, None, group
            if nodes > 1:
                # The plugin does not see the options for costs between nodes; it checks all others.
                own = {k: v for k, v in group.options.items() if k not in AMONG_NODES}
                asked = replace(group, options=own)
            if group.team is not None and (group.team.size > 1 or nodes == 1):
                inner = module.gradient_sync(group=replace(asked, remote=False))
            else:
                alone = replace(asked, team=Team(1), remote=False, processes=Processes())
                made = module.gradient_sync(group=alone)
                if group.remote and not hasattr(made, "described"):  # try it as a process, not a thread
                    with suppress(CompositionError):
                        process = module.gradient_sync(group=replace(alone, team=None, remote=True))
                        if hasattr(process, "described"):
                            alone, made = replace(alone, team=None, remote=True), process
                if hasattr(made, "described"):  # by its own options it states what it sends, and when
                    made.close()
                    made = module.gradient_sync(group=replace(alone, options=group.options))
                    outer = statements.described(made, nodes)
                made.close()
            beyond = Beyond(inner, nodes, outer)
            self.syncs.append((plugin, group, beyond, nodes))
            return beyond

        return wrap

    def allocator(self, space: str) -> Any:
        """Return the counter of the space's bytes."""
        return self.counters.setdefault(space, Counter(space))

    def kernels(self, worker: WorkerPlace) -> Kernels:
        """Return the real runtime's kernels, with a record of what each was chosen for. Raises
        PlanError if this machine does not have the worker's memory: this explains more than an error
        that no kernel computes in it."""
        if not worker.place.simulated:
            self._real.allocator(worker.space)
        real = self._real.kernels(worker)
        self.recorders.append(Recorder(real.offers, real.tuner, real.check))
        return self.recorders[-1]

    def engine(self, worker: WorkerPlace) -> None:
        """Return None: there are no streams, because nothing runs."""

    def open_source(self, spec: DataSpec) -> DataSource:
        """Open the samples, or return their shapes if these were given instead."""
        declared = spec.options.get("declared", {})  # the fields that the layer makes of any samples
        if self._fields:
            fields = self._fields.items()  # a label without a shape has the declared one
            return Samples({name: f if f.shape else declared.get(name, f) for name, f in fields})
        try:
            return super().open_source(spec)
        except DataError as error:
            if declared:
                return Samples(declared)
            remedy = "a simulation needs only their shapes: give them (--samples 3x224x224)"
            raise DataError(f"{error}; {remedy}") from error


def network_levels(machine: Machine) -> tuple[Level, ...]:
    """Return the levels around the workers that have several siblings and are not workers of one
    process, outermost first. What is beside the workers, such as the sockets of a node whose
    accelerators compute, is none of them."""
    working = [level for level in machine.levels if level.workers in (*OWN, *REACHED)]
    path = around(machine, working[-1])[::-1] if working else []
    inner = [i for i, level in enumerate(path) if level.workers in OWN]
    first = inner[0] if inner else 0  # without threads, levels below processes belong to these
    reached = [i for i, level in enumerate(path) if level.workers in REACHED]
    last = max(reached, default=-1)
    return tuple(
        level
        for i, level in enumerate(path)
        if level.count > 1 and level.workers not in OWN and (i <= last or (i < first and reached))
    )


def endpoints(levels: Sequence[Level], count: int) -> str:
    """Return ``count`` endpoints of the network as text, by the name of the innermost level."""
    name = levels[-1].name if levels else "node"
    several = f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"
    return f"{count:,} {name if count == 1 else several}"


def draft(
    runtime: Runtime,
    solver: str | Path | Solver,
    *,
    overrides: Mapping[str, Any] | None = None,
    precision: str | None = None,
    scaling: str = "strong",
    statistics: str = "global",
    nodes: int = 1,
    data: Mapping[str, Mapping[str, Any] | DataSpec] | None = None,
    samples: Mapping[str, Sequence[int]] | None = None,
) -> Draft:
    """Plan a solver on a runtime's machine with ``nodes`` endpoints of its network. Test nets are left
    out, because they share the training net's memory. Raises what the trainer raises."""
    given = solver if isinstance(solver, Solver) else runtime.read(solver).solver(overrides)
    bare = replace(given, tests=(), test_interval=0, weights=())
    machine = runtime.machine
    network = network_levels(machine)
    agreeing = _agreeing(machine, nodes)
    fields = {
        name: Field(tuple(shape), "float32" if shape else "int64")
        for name, shape in (samples or {}).items()
    }
    with Drawing(runtime, machine, dict.fromkeys(agreeing[:1], nodes), fields) as drawing:
        trained = {phase: arrays for phase, arrays in (data or {}).items() if phase != "test"}
        how: dict[str, Any] = {"scaling": scaling, "statistics": statistics}
        trainer = drawing.trainer(bare, precision=precision, data=trained or None, **how)
        places = arrange(machine, trainer.dtype)
        plan: Plan = trainer.plan
        workers = len(places)
        requests = {k: v for made in drawing.recorders for k, v in made.requests.items()}
        nested = len(places[0].groups)  # synchronisations of a worker; they come worker by worker
        chains = tuple(
            Chain(
                plugin,
                tuple(machine.level(name) for name in group.levels),
                network if agreeing == group.levels else (),
                count,
                made,
                group.options,
                tuple(each[2] for each in drawing.syncs[number::nested]),
            )
            for number, (plugin, group, made, count) in enumerate(drawing.syncs[:nested])
        )
        total = sum(each.held for each in drawing.counters.values())
        syncs = [each.sync for each in chains if isinstance(each.sync, Beyond)]
        shared = math.prod(s.inner.size for s in syncs if s.inner is not None and s.shares_parameters)
        memory = _memory(plan, total, workers, shared, precision or machine.precision)
        more = sum(_workspace(each.sync, plan.trainable) for each in chains)
        memory["exchange"] = more
        memory["worker"] += more
        # If workers have memories of their own, the first worker's is reported, which may need the most.
        memory["process"] += more
        read = {t.name for feed in trainer.net.graph.feeds for t in feed.tensors.values()}
        shares = [b.spec.shape[0] for name, b in plan.buffers.items() if name in read and b.spec.shape]
        return Draft(
            solver=bare,
            plan=plan,
            worker=places[0],
            workers=workers,
            batch=int(trainer.batch),
            share=shares[0] if shares else 0,
            kernels=drawing.recorders[0],
            requests=requests,
            chains=chains,
            memory=memory,
            vocabulary=drawing.vocabulary,
        )


def _agreeing(machine: Machine, nodes: int) -> tuple[str, ...]:
    """Return the levels of the group in which ``nodes`` endpoints of the network synchronise: the
    innermost group that has processes, as in training. Raises CompositionError if there is none."""
    reached = [level for level in machine.levels if level.workers in REACHED]
    for _, levels in machine.sync_groups():
        if any(level in reached for level in levels):
            return tuple(level.name for level in levels)
    if nodes > 1:
        level = network_levels(machine)[-1]
        raise CompositionError(
            f"{level.location or machine.origin}: level {level.name!r} has {nodes:,} workers and no "
            f'plugin to synchronise them; add sync = {{ plugin = "..." }}'
        )
    return ()


def _workspace(sync: GradientSync, elements: int) -> int:
    """Return the additional bytes that the first worker's synchronisation needs, as it states itself."""
    own = (sync.inner, sync.outer) if isinstance(sync, Beyond) else (sync,)
    needing = [each for each in own if each is not None and sync.size > 1]
    return sum(statements.workspace(each, elements) for each in needing)


def _memory(plan: Plan, total: int, workers: int, shared: int, precision: str) -> dict[str, int]:
    """Return the bytes of the first worker by purpose, and those of all workers of the process. What
    ``shared`` workers have in common, parameters and the solver's state, counts in equal parts."""
    item = np.dtype(PRECISIONS[precision]).itemsize
    known = {
        "arena": plan.arena_bytes,
        "fixed": plan.fixed_bytes,
        "gradients": 0 if plan.brief else plan.trainable * item,
        "parameters": plan.parameters * item // shared,
    }
    state = total // workers - sum(known.values())
    return {**known, "state": max(0, state), "worker": total // workers, "process": total}
