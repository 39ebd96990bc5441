"""The plan: operations in order, their kernels and buffers, and the synchronisation points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from demitasse.arena import place_lifetimes
from demitasse.errors import PlanError, ShapeError
from demitasse.operations.graph import Graph, Node, Tensor, shapes_by_operand
from demitasse.operations.kernel import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.synchronisation import Bucket, Span

Kernels = Sequence[tuple[str, Callable[..., Iterable[Candidate]]]]
"""(plugin, its kernels hook), preferred first."""

ALIGNMENT = 64


@dataclass(frozen=True)
class Buffer:
    """Where a tensor lies: a region of the worker's memory and an offset in bytes. Regions are
    arena (shared by lifetimes), fixed (inputs, constants, scalars), parameters and gradients."""

    name: str
    spec: TensorSpec
    region: str
    offset: int


@dataclass(frozen=True)
class Entry:
    """One operation of a step with the kernel that was chosen, its buffers, and its cost."""

    operation: str
    layer: str
    phase: str
    plugin: str
    kernel: str
    reason: str
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer | None, ...]
    workspace: Buffer | None
    in_place: bool
    flops: float
    bytes: float
    candidate: Candidate = field(compare=False, repr=False)


@dataclass(frozen=True)
class Slot:
    """A parameter's part of the flat memory, in elements, with its multipliers and owners."""

    owners: tuple[tuple[str, int], ...]
    span: Span
    spec: TensorSpec
    rate: float
    decay: float
    trainable: bool


@dataclass(frozen=True)
class Plan:
    """A net in one phase, ready to be bound to memory.

    ``parameters`` elements of flat memory, of which the first ``trainable`` have gradients and
    solver state. ``first_read`` and ``final`` give, for each bucket, the entry before which its
    parameters must be there and the entry after which its gradients are complete.
    """

    name: str
    phase: str
    dtype: str
    place: Place
    entries: tuple[Entry, ...]
    buffers: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    objective: tuple[tuple[Buffer, float], ...]
    slots: tuple[Slot, ...]
    buckets: tuple[Bucket, ...]
    first_read: tuple[int, ...]
    final: tuple[int, ...]
    trainable: int
    parameters: int
    arena_bytes: int
    unshared_bytes: int
    fixed_bytes: int

    def __str__(self) -> str:
        lines = [
            f"{e.layer:<16} {e.phase:<8} {e.operation:<30} {f'{e.plugin}: {e.kernel}':<36} "
            f"{' '.join(str(b.spec) for b in e.outputs if b)}{' in place' * e.in_place}"
            for e in self.entries
        ]
        lines.append(
            f"{len(self.entries)} operations, {self.parameters:,} parameters in "
            f"{len(self.buckets)} buckets, arena {self.arena_bytes / 2**20:.2f} MiB "
            f"({self.unshared_bytes / 2**20:.2f} MiB without sharing)"
        )
        return "\n".join(lines)


class _Choice(NamedTuple):
    node: Node
    plugin: str
    candidate: Candidate
    reason: str


def make_plan(
    graph: Graph,
    kernels: Kernels,
    place: Place,
    *,
    name: str = "",
    slots: Sequence[Slot] = (),
    retain: str | None = None,
    bucket_bytes: int = 0,
) -> Plan:
    """Plan a graph at a place.

    ``slots`` are those of another plan whose parameters this one reads; ``retain="all"`` gives
    every blob memory of its own; ``bucket_bytes`` joins neighbouring layers' gradients until a
    bucket has that many. Raises PlanError that names the operation that nobody computes.
    """
    planner = _Planner(graph, kernels, place, slots, retain == "all")
    planner.choose_kernels()
    planner.trace_lifetimes()
    planner.share_in_place()
    return planner.finish(name, bucket_bytes)


class _Planner:
    """One planning: kernels and layouts, lifetimes, memory in place, parameters, offsets."""

    def __init__(
        self, graph: Graph, kernels: Kernels, place: Place, given: Sequence[Slot], retain_all: bool
    ) -> None:
        self.graph, self.kernels, self.place, self.retain_all = graph, kernels, place, retain_all
        self.given = {owner: slot for slot in given for owner in slot.owners}
        self.layouts: dict[Tensor, Layout] = {}
        self.root: dict[Tensor, Tensor] = {}
        self.reordered: dict[tuple[Tensor, Layout], Tensor] = {}
        self.chosen: list[_Choice] = []
        self.in_place: set[int] = set()
        self.pinned = {*graph.outputs.values(), *(tensor for tensor, _ in graph.objective)}
        self.gradients = {p.gradient: p for p in graph.parameters if p.gradient is not None}
        for parameter in graph.parameters if given else ():
            (layer, number), shape = parameter.owners[0], parameter.tensor.shape
            slot = self.given.get((layer, number))
            if slot is None or slot.spec.shape != shape:
                theirs = f"shape {slot.spec.shape}" if slot else "no such parameter"
                raise ShapeError(
                    f"parameter {number} of layer {layer!r} has shape {shape} in phase "
                    f"{graph.phase}; the net that it shares parameters with has {theirs}"
                )
            self.layouts[parameter.tensor] = slot.spec.layout

    def choose_kernels(self) -> None:
        """A kernel for each node that somebody needs, and transforms where layouts disagree."""
        needed = self.pinned | set(self.gradients)
        alive = []
        for node in reversed(self.graph.nodes):
            updates = any(operand.updated for operand in node.operation.inputs)
            if updates or self.retain_all or any(t in needed for t in node.outputs):
                needed.update(t for t in node.inputs if t is not None)
                for i, operand in enumerate(node.operation.outputs):
                    if operand.optional and node.outputs[i] not in needed:
                        node.outputs[i] = None
                alive.append(node)
        for node in reversed(alive):
            if node.operation.view:
                source, target = node.inputs[0], node.outputs[0]
                assert source is not None and target is not None
                self.root[target] = self._find(self._in_layout(source, PLAIN, node))
            else:
                self._choose(node)

    def _spec(self, tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.shape, tensor.dtype, self.layouts.get(tensor, PLAIN))

    def _choose(self, node: Node) -> None:
        inputs, outputs, after = list(node.inputs), list(node.outputs), []
        specs = [[self._spec(t) if t else None for t in ts] for ts in (inputs, outputs)]
        request = Request(node.operation, tuple(specs[0]), tuple(specs[1]), node.attributes, self.place)
        plugin, candidate, reason = choose(self.kernels, request, node.layer)
        for i, tensor in enumerate(inputs):
            layout = candidate.input_layouts[i] if candidate.input_layouts else PLAIN
            if tensor is not None:
                if tensor.kind == "parameter":
                    self.layouts.setdefault(tensor, layout)
                inputs[i] = self._in_layout(tensor, layout, node)
        for i, tensor in enumerate(outputs):
            layout = candidate.output_layouts[i] if candidate.output_layouts else PLAIN
            if tensor is None:
                continue
            self.layouts[tensor] = layout
            if (owner := self.gradients.get(tensor)) is not None:
                self.layouts[tensor] = self.layouts.get(owner.tensor, PLAIN)
                if layout != self.layouts[tensor]:
                    outputs[i] = twin = self._twin(tensor, layout)
                    after.append((twin, tensor))
        node = Node(node.operation, inputs, outputs, node.attributes, node.layer, node.phase)
        self.chosen.append(_Choice(node, plugin, candidate, reason))
        for source, target in after:
            self._transform(source, target, node)

    def _in_layout(self, tensor: Tensor, layout: Layout, near: Node) -> Tensor:
        if self.layouts.get(tensor, PLAIN) == layout:
            return tensor
        if (tensor, layout) not in self.reordered:
            self.reordered[tensor, layout] = self._twin(tensor, layout)
            self._transform(tensor, self.reordered[tensor, layout], near)
        return self.reordered[tensor, layout]

    def _twin(self, tensor: Tensor, layout: Layout) -> Tensor:
        twin = Tensor(f"{tensor.name}.{layout.name}", tensor.shape, tensor.dtype, "activation")
        self.layouts[twin] = layout
        return twin

    def _transform(self, source: Tensor, target: Tensor, near: Node) -> None:
        reorder, specs = self.graph.vocabulary["reorder"], (self._spec(source), self._spec(target))
        request = Request(reorder, specs[:1], specs[1:], {}, self.place)
        plugin, candidate, _ = choose(self.kernels, request, near.layer)
        node = Node(reorder, [source], [target], {}, near.layer, near.phase)
        reason = f"{specs[0].layout.name} to {specs[1].layout.name}"
        self.chosen.append(_Choice(node, plugin, candidate, reason))

    def _find(self, tensor: Tensor) -> Tensor:
        return self.root.get(tensor, tensor)

    def trace_lifetimes(self) -> None:
        """When each memory is first written and last used, views counted with what they view."""
        self.born: dict[Tensor, int] = {}
        self.dies: dict[Tensor, int] = {}
        for i, choice in enumerate(self.chosen):
            for tensor in (*choice.node.outputs, *choice.node.inputs):
                if tensor is not None:
                    self.born.setdefault(self._find(tensor), i)
                    self.dies[self._find(tensor)] = i
        for tensor in self.born if self.retain_all else map(self._find, self.pinned):
            self.born[tensor] = 0 if self.retain_all else self.born.get(tensor, 0)
            self.dies[tensor] = len(self.chosen)

    def share_in_place(self) -> None:
        """Let outputs take over the memory of inputs that die, where operation and kernel allow."""
        for i, (node, _, candidate, _) in enumerate(self.chosen):
            aliases = node.operation.aliases if candidate.in_place and not self.retain_all else ()
            for output_name, input_name in aliases:
                names = [operand.name for operand in node.operation.outputs]
                target = node.outputs[names.index(output_name)]
                names = [operand.name for operand in node.operation.inputs]
                source = node.inputs[names.index(input_name)]
                if target is None or source is None or self._spec(target) != self._spec(source):
                    continue
                root, others = self._find(source), [self._find(t) for t in node.inputs if t]
                if (
                    root.kind in ("activation", "gradient")
                    and target.kind in ("activation", "gradient")
                    and self.dies[root] == i
                    and others.count(root) == 1
                ):
                    moved = self._find(target)
                    self.dies[root] = self.dies.pop(moved)
                    self.born.pop(moved)
                    views = [tensor for tensor, old in self.root.items() if old is moved]
                    self.root |= dict.fromkeys((target, moved, *views), root)
                    self.in_place.add(i)

    def _slots(self, bucket_bytes: int) -> tuple[tuple[Slot, ...], list[list[Slot]]]:
        """Parameters in the order in which backward finishes their gradients, then those without;
        and those with gradients by bucket."""
        if self.given:
            return tuple(dict.fromkeys(self.given.values())), []
        ready = {
            tensor: i
            for i, choice in enumerate(self.chosen)
            for tensor in (*choice.node.outputs, *choice.node.inputs)
            if tensor in self.gradients
        }
        order = [self.gradients[t] for t in sorted(ready, key=lambda t: ready[t])]
        order += [p for p in self.graph.parameters if p not in order]
        slots, groups, position = [], list[list[Slot]](), 0
        item = TensorSpec((), self.graph.dtype).nbytes
        for parameter in order:
            spec, trained = self._spec(parameter.tensor), parameter.gradient in ready
            span = Span(position, position + _aligned(spec.nbytes) // item)
            rates = parameter.rate, parameter.decay
            slot = Slot(tuple(parameter.owners), span, spec, *rates, trained)
            slots.append(slot)
            position = span.stop
            last = groups[-1] if groups else []
            same = last and last[-1].owners[0][0] == slot.owners[0][0]
            if trained and (same or 0 < sum(len(s.span) for s in last) * item < bucket_bytes):
                last.append(slot)
            elif trained:
                groups.append([slot])
        return tuple(slots), groups

    def _offsets(
        self, slots: Sequence[Slot]
    ) -> tuple[dict[Tensor, Buffer], list[Buffer | None], tuple[int, int, int]]:
        """Where everything lies: parameters and gradients in flat memory, what comes from outside
        in fixed memory, the rest and workspaces in the arena; arena, unshared and fixed bytes."""
        by_owner = {owner: slot for slot in slots for owner in slot.owners}
        where: dict[Tensor, tuple[str, int]] = {}
        for parameter in self.graph.parameters:
            offset = by_owner[parameter.owners[0]].span.start
            offset *= TensorSpec((), self.graph.dtype).nbytes
            where[parameter.tensor] = ("parameters", offset)
            if parameter.gradient is not None:
                where[parameter.gradient] = ("gradients", offset)
        graph, fixed, lives = self.graph, 0, dict[Tensor, tuple[int, int, int]]()
        outside = [*graph.scalars.values(), *graph.inputs.values(), *graph.constants]
        outside += [tensor for feed in graph.feeds for tensor in feed.tensors.values()]
        for tensor in dict.fromkeys((*outside, *self.born)):
            size = _aligned(self._spec(tensor).nbytes)
            if tensor.kind in ("input", "constant", "scalar"):
                where[tensor], fixed = ("fixed", fixed), fixed + size
            elif tensor not in where:
                lives[tensor] = (self.born[tensor], self.dies[tensor], size)
        asked = [choice.candidate.workspace for choice in self.chosen]
        everything = [*lives.values(), *((i, i, _aligned(size)) for i, size in enumerate(asked))]
        offsets, arena = place_lifetimes(everything)
        where |= {t: ("arena", o) for t, o in zip(lives, offsets[: len(lives)], strict=True)}
        tensors = {t for c in self.chosen for t in (*c.node.inputs, *c.node.outputs) if t}
        buffers = {
            t: Buffer(t.name, self._spec(t), *where[self._find(t)])
            for t in (tensors | {*self.root, *where, *graph.blobs.values()})
            if self._find(t) in where
        }
        workspaces = [
            Buffer("workspace", TensorSpec((size,), "uint8"), "arena", offset) if size else None
            for size, offset in zip(asked, offsets[len(lives) :], strict=True)
        ]
        return buffers, workspaces, (arena, sum(size for _, _, size in everything), fixed)

    def finish(self, name: str, bucket_bytes: int) -> Plan:
        """The record."""
        graph = self.graph
        slots, groups = self._slots(bucket_bytes)
        buffers, workspaces, (arena, unshared, fixed) = self._offsets(slots)
        uses: dict[int, list[int]] = {}
        for i, choice in enumerate(self.chosen):
            for t in (*choice.node.inputs, *choice.node.outputs):
                if t is not None and buffers[t].region in ("parameters", "gradients"):
                    uses.setdefault(buffers[t].offset, []).append(i)
        item = TensorSpec((), graph.dtype).nbytes
        steps = [[i for s in group for i in uses[s.span.start * item]] for group in groups]
        named = dict(graph.blobs) | graph.scalars | {t.name: t for t in graph.constants}
        for feed in graph.feeds:
            named |= {f"{feed.layer}.{key}": tensor for key, tensor in feed.tensors.items()}
        if self.retain_all:
            named |= {t.name: t for c in self.chosen for t in c.node.outputs if t is not None}
        return Plan(
            name=name,
            phase=graph.phase,
            dtype=graph.dtype,
            place=self.place,
            entries=tuple(
                _entry(choice, buffers, workspaces[i], i in self.in_place)
                for i, choice in enumerate(self.chosen)
            ),
            buffers={key: buffers[t] for key, t in named.items() if t in buffers},
            outputs={key: buffers[t] for key, t in graph.outputs.items()},
            objective=tuple((buffers[t], weight) for t, weight in graph.objective),
            slots=slots,
            buckets=tuple(
                Bucket(
                    i,
                    Span(group[0].span.start, group[-1].span.stop),
                    tuple(dict.fromkeys(layer for slot in group for layer, _ in slot.owners)),
                )
                for i, group in enumerate(groups)
            ),
            first_read=tuple(map(min, steps)),
            final=tuple(map(max, steps)),
            trainable=max((slot.span.stop for slot in slots if slot.trainable), default=0),
            parameters=max((slot.span.stop for slot in slots), default=0),
            arena_bytes=arena,
            unshared_bytes=unshared,
            fixed_bytes=fixed,
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def choose(kernels: Kernels, request: Request, layer: str) -> tuple[str, Candidate, str]:
    """(plugin, candidate, reason): the first plugin in preference that computes the request, and
    its quickest candidate where all say what they cost, else its first.

    Raises PlanError that names the layer, the operation and who was asked.
    """
    passed: list[str] = []
    for plugin, offer in kernels:
        if candidates := list(offer(request=request)):
            known = all(candidate.seconds is not None for candidate in candidates)
            best = min(candidates, key=lambda c: c.seconds or 0.0) if known else candidates[0]
            reason = "preferred" if not passed else f"not computed by {', '.join(passed)}"
            return plugin, best, reason
        passed.append(plugin)
    shapes = ", ".join(str(spec) for spec in request.inputs if spec is not None)
    raise PlanError(
        f"layer {layer!r}: no composed plugin computes {request.operation.name} of {shapes} at "
        f"{request.place.level!r} ({request.place.space}); asked: {', '.join(passed) or 'none'}"
    )


def _entry(
    choice: _Choice, buffers: Mapping[Tensor, Buffer], workspace: Buffer | None, in_place: bool
) -> Entry:
    node = choice.node
    inputs, outputs = (
        tuple(buffers[t] if t is not None else None for t in tensors)
        for tensors in (node.inputs, node.outputs)
    )
    count = node.operation.flops
    made = float(sum(math.prod(b.spec.shape) for b in outputs if b is not None))
    return Entry(
        operation=node.operation.name,
        layer=node.layer,
        phase=node.phase,
        plugin=choice.plugin,
        kernel=choice.candidate.kernel,
        reason=choice.reason,
        inputs=inputs,
        outputs=outputs,
        workspace=workspace,
        in_place=in_place,
        flops=count(shapes_by_operand(node), node.attributes) if count else made,
        bytes=float(sum(b.spec.nbytes for b in (*inputs, *outputs) if b is not None)),
        candidate=choice.candidate,
    )
