"""The program ``simulate``, which predicts a solver's step on a runtime's machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    CompositionError,
    DataSpec,
    Machine,
    Place,
    Request,
    Runtime,
    Solver,
    Span,
    TensorSpec,
)
from demitasse_simulator.described import ACROSS
from demitasse_simulator.exchange import Link, link, link_of_statistics
from demitasse_simulator.happenings import Happening
from demitasse_simulator.planning import OWN, SQUARES, Draft, draft, endpoints, network_levels
from demitasse_simulator.precision import fallen_back
from demitasse_simulator.rates import Call, Costed, Measured, Rates, Table, table_file
from demitasse_simulator.reading import Reading, reading
from demitasse_simulator.roofline import Home, Roofline, around, home_of
from demitasse_simulator.step import Player
from demitasse_simulator.trials import Bench

EVICT = 40 * 2**20
"""Bytes that are read between trials if the step itself moves more than the caches hold. It is more than
the last-level cache of most processors holds."""


MEASURED = (
    "gradients are measured before any update (clipping, or rates by layer): no sum overlaps with "
    "backward"
)


@dataclass(frozen=True)
class Simulation:
    """The prediction of a step, for the first worker, which has the largest share of the batch.

    - ``seconds`` and ``phases`` (seconds by phase) of a step, and its ``timeline``
    - ``memory`` in bytes by purpose: ``worker`` is the sum for a worker, ``process`` that for all
      workers of a process, and ``runtime`` what a process on this machine needs besides
    - ``capacity`` of the memory in bytes (None if it is not described), and whether the memory ``fits``
    - ``exchange``: seconds to exchange all gradients between nodes
    - ``data``: the cost of reading a step's samples. ``seconds`` is how long this takes beside the
      step, and ``wait`` how long of this the step waits; the rest is what striped_io's program
      ``reading_cost`` returns
    - ``sources``: where the numbers come from
    - ``nodes``: the number of endpoints of the network, which ``joined`` names by their level (on some
      machines these are accelerators)
    - ``notes``: in what respects the prediction differs from what was asked for; ``passed_over``: what
      the readers of its files ignored
    """

    machine: str
    net: str
    precision: str
    batch: int
    share: int
    workers: int
    nodes: int
    seconds: float
    phases: Mapping[str, float]
    memory: Mapping[str, int]
    capacity: float | None
    fits: bool | None
    timeline: tuple[Happening, ...] = field(repr=False)
    sources: tuple[str, ...] = ()
    exchange: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    joined: str = ""
    notes: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all workers together."""
        return self.batch / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports."""
        return {
            "source": "simulated",
            "machine": self.machine,
            "net": self.net,
            "precision": self.precision,
            "batch": self.batch,
            "share": self.share,
            "workers": self.workers,
            "nodes": self.nodes,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "phases": dict(self.phases),
            "memory": dict(self.memory),
            "capacity": self.capacity,
            "fits": self.fits,
            "exchange": dict(self.exchange),
            "data": dict(self.data),
            "sources": list(self.sources),
            "notes": [*self.notes, *self.passed_over],
        }


def simulate(
    runtime: Runtime,
    solver: str | Path | Solver,
    *,
    overrides: Mapping[str, Any] | None = None,
    precision: str | None = None,
    scaling: str = "strong",
    statistics: str = "global",
    nodes: int | None = None,
    stripes: int | None = None,
    data: Mapping[str, Mapping[str, Any] | DataSpec] | None = None,
    samples: Mapping[str, Sequence[int]] | None = None,
    rates: Rates | None = None,
    progress: Callable[[str], None] | None = None,
) -> Simulation:
    """Predict one step. ``nodes`` endpoints of the machine's network take part, by default all. Files of
    samples lie on ``stripes`` of its storage targets. ``samples`` are shapes by field, which replace
    samples that are not here. ``rates`` cost operations instead of the machine's own rates. ``progress``
    is called with a line about the current activity. Raises DescriptionError for a number that the
    description lacks, and whatever the trainer raises."""
    tell = progress or _silent
    machine, count = runtime.machine, taking_part(runtime.machine, nodes)
    tell("planning")
    made = draft(
        runtime,
        solver,
        overrides=overrides,
        precision=precision,
        scaling=scaling,
        statistics=statistics,
        nodes=count,
        data=data,
        samples=samples,
    )
    place = made.worker.place
    sharing = {level.name: level.count for level in machine.levels if level.workers in OWN}
    sharing |= _processes(machine, count)
    if rates is None and not place.simulated:
        rates = _measured(runtime, made, tell)
    try:
        lazily = rates or _Lazy(machine, place, sharing)
        walk = _walk(runtime, made, lazily, sharing, count, stripes, tell)
    finally:
        if isinstance(rates, Measured):
            rates.bench.end()
    taken = precision or machine.precision
    capacity = _capacity(_home(machine, place, sharing))
    memory, lost = {**made.memory, "runtime": 0}, ""
    if isinstance(rates, Measured):
        if place.space == "host":  # the process's own memory is never an accelerator's
            memory["runtime"] = _process(rates)
        lost = rates.table.save()
        capacity = None if capacity is None else capacity * made.workers
    need = memory["process"] + memory["runtime"] if rates is not None else memory["worker"]
    told = [line for each in walk.links for line in each.describe()]
    told += [MEASURED] if made.measuring and made.workers * count > 1 else []
    player, fed = walk.player, walk.fed
    by = lazily.roofline if isinstance(lazily, _Lazy) else lazily
    roofline = by if isinstance(by, Roofline) else None
    return Simulation(
        machine=machine.name,
        net=made.solver.train.name,
        precision=taken,
        notes=(
            *fallen_back(taken, made, walk.costs, unrated=roofline is not None and roofline.fallen_back),
            *_idle(machine, place),
            *(roofline.notes if roofline is not None else ()),
            *(roofline.unknown(made.vocabulary) if roofline is not None else ()),
        ),
        passed_over=tuple(dict.fromkeys((*made.solver.notes, *made.solver.train.notes))),
        batch=made.batch,
        share=made.share,
        workers=made.workers * count,
        nodes=count,
        joined=endpoints(network_levels(machine), count),
        seconds=walk.seconds,
        phases=player.phases,
        memory=memory,
        capacity=capacity,
        fits=None if capacity is None else need <= capacity,
        timeline=tuple(player.happenings),
        sources=(*lazily.describe(), *told, *fed.lines, *filter(None, [lost])),
        exchange=_exchange(player, made),
        data={**fed.facts, "wait": player.waited} if fed.facts else {},
    )


@dataclass(frozen=True)
class _Walk:
    """A simulated step: the costs of its operations, its synchronisations, and the cost of its
    samples."""

    costs: Sequence[Costed]
    links: Sequence[Link]
    fed: Reading
    player: Player
    seconds: float


def _walk(
    runtime: Runtime,
    made: Draft,
    rates: Rates,
    sharing: Mapping[str, int],
    count: int,
    stripes: int | None,
    tell: Callable[[str], None],
) -> _Walk:
    """Cost a step's operations and simulate it, several times if steps overlap, until the last step is
    like the one before."""
    machine, place = runtime.machine, made.worker.place
    costs, update = _costs(made, rates, tell)
    if isinstance(rates, Measured) and rates.again():
        costs, update = _costs(made, rates, tell)
    home, apart = _home(machine, place, sharing), _home(machine, place, _processes(machine, count))
    bandwidth = _bandwidth(home, rates)
    # Of the workers that share a memory, threads of one process add together, processes separately.
    others = apart.sharing if apart else 1
    shared = home.sharing // others if home else 1
    bandwidth = None if bandwidth is None else bandwidth / others
    item = np.dtype(made.plan.dtype).itemsize
    measuring, composition = made.measuring, runtime.composition
    links = [
        link(machine, each, item, bandwidth, made.workers // shared, measuring, composition)
        for each in made.chains
    ]
    fed = reading(runtime, made, count, bandwidth and bandwidth / shared, stripes)
    tell("walking the step")
    adds = any(entry.operation == ACROSS for entry in made.plan.entries)
    added = link_of_statistics(links, machine, bandwidth, composition) if adds else None
    player = Player(made, costs, update, links, fed.copy, fed.ahead, added)
    seconds = player.play(3 if player.overlaps or fed.ahead else 1)
    return _Walk(costs, links, fed, player, seconds)


def _costs(made: Draft, rates: Rates, tell: Callable[[str], None]) -> tuple[list[Costed], _Update]:
    """Return the costs of the plan's operations, and those of updates. If a gradient is made and used in
    parts, it is measured together with its updates, because each update finds its part in the caches."""
    costs, update = [], _Update(made, rates)
    for number, entry in enumerate(made.plan.entries):
        tell(f"costing operation {number + 1} of {len(made.plan.entries)}")
        request = made.requests[id(entry.candidate)][1]
        call = Call(entry.plugin, entry.candidate, request, entry.flops, entry.bytes)
        if entry.stretches and isinstance(rates, Measured):
            size = len(entry.stretches[0])
            cost, update.after[entry.layer, size] = rates.in_parts(call, update.call(size))
            costs.append(cost)
        else:
            costs.append(rates.cost(*call))
    return costs, update


def _silent(line: str) -> None:
    """Report no progress."""


def _process(rates: Measured) -> int:
    """Return the bytes that a process needs besides its tensors: this process's current size if kernels
    were loaded now, otherwise the size that was noted when samples were taken."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return int(rates.table.process.get(rates.suffix, 0.0))  # not Linux
    now = float(pages * os.sysconf("SC_PAGE_SIZE"))
    if rates.taken or rates.suffix not in rates.table.process:
        rates.table.process[rates.suffix], rates.table.changed = now, True
    return int(rates.table.process[rates.suffix])


def taking_part(machine: Machine, asked: int | None) -> int:
    """Return how many endpoints of a machine's network take part: ``asked``, or all if it is None.
    Raises CompositionError for less than one, or for more than there are."""
    levels = network_levels(machine)
    whole = math.prod(level.count for level in levels)
    if asked is not None and not 1 <= asked <= whole:
        names = ", ".join(f"{level.name} x {level.count}" for level in levels) or "none"
        raise CompositionError(
            f"{endpoints(levels, asked)} of {machine.name!r} (valid: 1 to {whole:,}; its network: "
            f"{names})"
        )
    return whole if asked is None else asked


class _Lazy:
    """A roofline that is created only once a kernel does not state its seconds, so that a description
    does not need numbers that nothing uses."""

    def __init__(self, machine: Machine, place: Place, sharing: Mapping[str, int]) -> None:
        self._about = machine, place, sharing
        self.roofline: Roofline | None = None
        self._said = 0

    def cost(self, plugin: str, candidate: Any, request: Request, flops: float, moved: float) -> Costed:
        """Return the kernel's own seconds, or else the roofline's."""
        if candidate.seconds is not None:
            self._said += 1
            return Costed(candidate.seconds, "kernel")
        if self.roofline is None:
            self.roofline = Roofline(*self._about)
        return self.roofline.cost(plugin, candidate, request, flops, moved)

    def describe(self) -> list[str]:
        said = [f"{self._said} operations as their kernels say"] if self._said else []
        return [*said, *(self.roofline.describe() if self.roofline else [])]


def _measured(runtime: Runtime, made: Draft, tell: Callable[[str], None]) -> Measured:
    held = made.memory["worker"]
    caches = [
        c.capacity.value * c.count
        for level in runtime.machine.levels
        for c in level.caches[-1:]
        if c.capacity is not None
    ]
    evict = EVICT if held > max([*caches, 0.0]) else 0
    bench = Bench(runtime.allocator(made.worker.space), evict)
    return Measured(
        Table(table_file()),
        bench,
        runtime.composition.versions,
        suffix="cold" if evict else "warm",
        tell=tell,
    )


class _Update:
    """The cost of the solver's update of a number of elements. ``after`` has the costs that were
    measured together with the gradient of a layer."""

    def __init__(self, made: Draft, rates: Rates) -> None:
        self._made, self._rates = made, rates
        self._known: dict[int, Costed] = {}
        self._sizes: dict[int, Costed] = {}
        self.after: dict[tuple[str, int], Costed] = {}

    def __call__(self, elements: int, layer: str = "") -> Costed:
        if (layer, elements) in self.after:
            return self.after[layer, elements]
        if elements not in self._known:
            self._known[elements] = self._rates.cost(*self.call(elements))
        return self._known[elements]

    def measure(self, elements: int) -> Costed:
        """Return the cost of the sums of squares that such an update reads."""
        if elements not in self._sizes:
            self._sizes[elements] = self._rates.cost(*self._call(SQUARES, {}, elements))
        return self._sizes[elements]

    def call(self, elements: int) -> Call:
        """Return the kernel call that the update would make."""
        solver = self._made.solver
        return self._call(solver.update, solver.update_attributes, elements)

    def _call(self, word: str, given: Mapping[str, Any], elements: int) -> Call:
        made, plan = self._made, self._made.plan
        operation = made.vocabulary[word]
        # The shapes for one parameter, which has two sums of squares.
        small = {"rate": (1, "float64"), "iteration": (1, "uint64"), SQUARES: (2, "float64")}
        small |= {"total": (2, "float64")} if word == SQUARES else {}
        specs: list[TensorSpec | None] = []
        for operand in operation.inputs:
            if operand.optional:
                specs.append(None)
            elif operand.name in small:
                count, dtype = small[operand.name]
                specs.append(TensorSpec((count,), dtype))
            else:
                dtype = plan.dtype if operand.dtype in (None, "real") else str(operand.dtype)
                specs.append(TensorSpec((elements,), dtype))
        attributes = {**operation.attributes, **given}
        attributes["segments"] = ((0, elements, 1.0, 1.0),)
        request = Request(operation, tuple(specs), (), attributes, plan.place)
        plugin, candidate, _ = made.kernels.choose(request, "solver")
        shapes = {o.name: s and s.shape for o, s in zip(operation.inputs, specs, strict=True)}
        flops = operation.flops(shapes, attributes) if operation.flops else float(elements)
        # An operand that is read and written counts twice.
        moved = sum(
            s.nbytes * (2 if o.updated else 1)
            for o, s in zip(operation.inputs, specs, strict=True)
            if s is not None
        )
        return Call(plugin, candidate, request, flops, float(moved))


def _idle(machine: Machine, place: Place) -> list[str]:
    """Return lines about siblings of a worker that do not take part, because the description does not
    say how."""
    network = network_levels(machine)
    return [
        f"one {level.name} of {level.count:,} takes part: the description does not say that they are "
        f'workers (workers = "mpi")'
        for level in reversed(around(machine, machine.level(place.level)))
        if level.count > 1 and level.workers is None and level not in network
    ]


def _processes(machine: Machine, nodes: int) -> dict[str, int]:
    """Return, by level of the network, how many siblings in one place take part, if ``nodes`` endpoints
    fill the network from the innermost level outwards."""
    found = {}
    for level in reversed(network_levels(machine)):
        found[level.name], nodes = min(level.count, nodes), -(-nodes // level.count)
    return found


def _home(machine: Machine, place: Place, sharing: Mapping[str, int]) -> Home | None:
    return home_of(machine, machine.level(place.level), sharing)


def _bandwidth(home: Home | None, rates: Rates) -> float | None:
    """Return the bytes per second of the memory that holds a worker's tensors, as measured by copies on
    this machine, or as described."""
    if isinstance(rates, Measured):
        return rates.bench.copies()
    if home is not None and home.memory.bandwidth is not None:
        return float(home.memory.bandwidth.value * home.memories)
    return None


def _capacity(home: Home | None) -> float | None:
    if home is None or home.memory.capacity is None:
        return None
    return float(home.memory.capacity.value * home.memories / home.sharing)


def _exchange(player: Player, made: Draft) -> dict[str, float]:
    """Return the seconds, by part, of the collectives of all parameters between nodes (an allreduce if
    the plugin does not say which collectives these are)."""
    goals = {each.goal for each in player.messages if isinstance(each.goal, str)} or {"allreduce"}
    for number, each in enumerate(player.links):
        elements = player.leaving(Span(0, made.plan.trainable), number)
        costs = [each.over_network(elements, goal) for goal in sorted(goals)]
        if found := [cost for cost in costs if cost is not None]:
            return {
                "seconds": sum(cost.seconds for cost in found),
                "latency": sum(cost.latency for cost in found),
                "transfer": sum(cost.transfer for cost in found),
                "reduction": sum(cost.reduction for cost in found),
            }
    return {}
