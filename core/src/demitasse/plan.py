"""The plan: operations in order, each with its kernel and buffers, and the synchronisation points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from demitasse.arena import place_lifetimes
from demitasse.errors import PlanError, ShapeError
from demitasse.graph import Graph, Node, Parameter, Tensor, shapes_by_operand
from demitasse.kernels import PLAIN, Candidate, Layout, Place, Request, TensorSpec
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
        rows = [
            (e.layer, e.phase, e.operation, f"{e.plugin}: {e.kernel}", _shapes(e), e.reason)
            for e in self.entries
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)
            ).rstrip()
            for row in rows
        ]
        lines.append(
            f"{len(self.entries)} operations, {self.parameters:,} parameters in "
            f"{len(self.buckets)} buckets, arena {self.arena_bytes / 2**20:.2f} MiB "
            f"({self.unshared_bytes / 2**20:.2f} MiB without sharing)"
        )
        return "\n".join(lines)


def _shapes(entry: Entry) -> str:
    shown = " ".join("x".join(map(str, b.spec.shape)) or "scalar" for b in entry.outputs if b)
    return shown + (" in place" if entry.in_place else "")


@dataclass(frozen=True)
class _Choice:
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
    return _Planner(graph, kernels, place, slots, retain == "all").plan(name, bucket_bytes)


class _Planner:
    """One planning: choose kernels and layouts, share memory, lay out parameters, place buffers."""

    def __init__(
        self, graph: Graph, kernels: Kernels, place: Place, given: Sequence[Slot], retain_all: bool
    ) -> None:
        self.graph, self.kernels, self.place, self.retain_all = graph, kernels, place, retain_all
        self.given = {owner: slot for slot in given for owner in slot.owners}
        self.layouts: dict[Tensor, Layout] = {}
        self.root: dict[Tensor, Tensor] = {}
        self.reordered: dict[tuple[Tensor, Layout], Tensor] = {}
        self.chosen: list[_Choice] = []
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

    def plan(self, name: str, bucket_bytes: int) -> Plan:
        for node in self._alive():
            if node.operation.view:
                self._view(node)
            else:
                self._choose(node)
        self._trace_lifetimes()
        in_place = self._share_in_place()
        slots, buckets, first_read, final = self._lay_parameters(bucket_bytes)
        buffers, workspaces, sizes = self._place(slots)
        entries = tuple(
            _entry(choice, buffers, workspaces[i], i in in_place)
            for i, choice in enumerate(self.chosen)
        )
        graph = self.graph
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
            entries=entries,
            buffers={key: buffers[t] for key, t in named.items() if t in buffers},
            outputs={key: buffers[t] for key, t in graph.outputs.items()},
            objective=tuple((buffers[t], weight) for t, weight in graph.objective),
            slots=slots,
            buckets=buckets,
            first_read=first_read,
            final=final,
            trainable=max((slot.span.stop for slot in slots if slot.trainable), default=0),
            parameters=max((slot.span.stop for slot in slots), default=0),
            arena_bytes=sizes[0],
            unshared_bytes=sizes[1],
            fixed_bytes=sizes[2],
        )

    def _alive(self) -> list[Node]:
        """The nodes that somebody needs, without the optional outputs that nobody reads."""
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
        return alive[::-1]

    def _layout(self, tensor: Tensor) -> Layout:
        return self.layouts.get(tensor, PLAIN)

    def _spec(self, tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.shape, tensor.dtype, self._layout(tensor))

    def _view(self, node: Node) -> None:
        source, target = node.inputs[0], node.outputs[0]
        assert source is not None and target is not None
        self.root[target] = self._find(self._reorder(source, PLAIN, node))

    def _choose(self, node: Node) -> None:
        """Pick the kernel of a node, and transform the inputs whose layout it does not take."""
        specs = [self._spec(t) if t is not None else None for t in node.inputs]
        wanted = [self._spec(t) if t is not None else None for t in node.outputs]
        plugin, candidate, reason = choose(
            self.kernels,
            Request(node.operation, tuple(specs), tuple(wanted), node.attributes, self.place),
            node.layer,
        )
        inputs = list(node.inputs)
        for i, tensor in enumerate(inputs):
            layout = candidate.input_layouts[i] if i < len(candidate.input_layouts) else PLAIN
            if tensor is None:
                continue
            if tensor.kind == "parameter" and tensor not in self.layouts:
                self.layouts[tensor] = layout
            inputs[i] = self._reorder(tensor, layout, node)
        outputs = list(node.outputs)
        after: list[tuple[Tensor, Tensor]] = []
        for i, tensor in enumerate(outputs):
            layout = candidate.output_layouts[i] if i < len(candidate.output_layouts) else PLAIN
            if tensor is None:
                continue
            owner = self.gradients.get(tensor)
            if owner is not None and layout != self._layout(owner.tensor):
                made = Tensor(
                    f"{tensor.name}.{layout.name}", tensor.shape, tensor.dtype, "gradient"
                )
                self.layouts[made], outputs[i] = layout, made
                after.append((made, tensor))
                self.layouts[tensor] = self._layout(owner.tensor)
            else:
                self.layouts[tensor] = layout
        bound = Node(node.operation, inputs, outputs, node.attributes, node.layer, node.phase)
        self.chosen.append(_Choice(bound, plugin, candidate, reason))
        for made, tensor in after:
            self._transform(made, tensor, node)

    def _reorder(self, tensor: Tensor, layout: Layout, node: Node) -> Tensor:
        if self._layout(tensor) == layout:
            return tensor
        key = (tensor, layout)
        if key not in self.reordered or tensor.kind == "parameter_gradient":
            made = Tensor(f"{tensor.name}.{layout.name}", tensor.shape, tensor.dtype, "activation")
            self.layouts[made] = layout
            self._transform(tensor, made, node)
            self.reordered[key] = made
        return self.reordered[key]

    def _transform(self, source: Tensor, target: Tensor, near: Node) -> None:
        reorder = self.graph.vocabulary["reorder"]
        request = Request(reorder, (self._spec(source),), (self._spec(target),), {}, self.place)
        plugin, candidate, _ = choose(self.kernels, request, near.layer)
        node = Node(reorder, [source], [target], {}, near.layer, near.phase)
        reason = f"{self._layout(source).name} to {self._layout(target).name}"
        self.chosen.append(_Choice(node, plugin, candidate, reason))

    def _find(self, tensor: Tensor) -> Tensor:
        return self.root.get(tensor, tensor)

    def _trace_lifetimes(self) -> None:
        """When each memory is first written and last read, views counted with what they view."""
        self.born: dict[Tensor, int] = {}
        self.dies: dict[Tensor, int] = {}
        end = len(self.chosen)
        for i, choice in enumerate(self.chosen):
            for tensor in (*choice.node.outputs, *choice.node.inputs):
                if tensor is not None:
                    root = self._find(tensor)
                    self.born.setdefault(root, i)
                    self.dies[root] = i
        retained = self.graph.blobs.values() if self.retain_all else ()
        for tensor in (*self.pinned, *retained):
            self.dies[self._find(tensor)] = end

    def _share_in_place(self) -> set[int]:
        """Let outputs take over the memory of inputs that die; the entries where one does."""
        result: set[int] = set()
        for i, choice in enumerate(() if self.retain_all else self.chosen):
            operation, tensors = choice.node.operation, choice.node.inputs
            for output_name, input_name in operation.aliases if choice.candidate.in_place else ():
                target = choice.node.outputs[[o.name for o in operation.outputs].index(output_name)]
                source = tensors[[o.name for o in operation.inputs].index(input_name)]
                if target is None or source is None or target.kind == "parameter_gradient":
                    continue
                root = self._find(source)
                shares = [t for t in tensors if t is not None and self._find(t) is root]
                if (
                    root.kind in ("activation", "gradient")
                    and self.dies[root] == i
                    and len(shares) == 1
                    and self._spec(target) == self._spec(source)
                ):
                    self.dies[root] = self.dies.pop(self._find(target))
                    moved = self._find(target)
                    self.born.pop(moved, None)
                    self.root[target] = root
                    for tensor, old in self.root.items():
                        if old is moved:
                            self.root[tensor] = root
                    result.add(i)
        return result

    def _lay_parameters(
        self, bucket_bytes: int
    ) -> tuple[tuple[Slot, ...], tuple[Bucket, ...], tuple[int, ...], tuple[int, ...]]:
        """Flat memory in the order in which backward finishes gradients, cut into buckets."""
        if self.given:
            return tuple(dict.fromkeys(self.given.values())), (), (), ()
        final = {t: i for i, c in enumerate(self.chosen) for t in c.node.outputs if t is not None}
        for i, choice in enumerate(self.chosen):
            if choice.node.operation.name == "accumulate" and choice.node.inputs[0] is not None:
                final[choice.node.inputs[0]] = i
        first = {
            t: i for i, c in reversed(list(enumerate(self.chosen))) for t in c.node.inputs if t
        }
        ready = {p: final[p.gradient] for p in self.graph.parameters if p.gradient is not None}
        order = sorted(ready, key=lambda p: ready[p])
        order += [p for p in self.graph.parameters if p not in ready]
        slots: list[Slot] = []
        groups: list[list[tuple[Parameter, Slot]]] = []
        position, itemsize = 0, TensorSpec((), self.graph.dtype).nbytes
        for parameter in order:
            spec = self._spec(parameter.tensor)
            length = -(-spec.nbytes // ALIGNMENT) * ALIGNMENT // itemsize
            span = Span(position, position + length)
            trained = parameter in ready
            slot = Slot(
                tuple(parameter.owners), span, spec, parameter.rate, parameter.decay, trained
            )
            slots.append(slot)
            position = span.stop
            if trained:
                layer = parameter.owners[0][0]
                last = groups[-1] if groups else []
                size = sum(len(s.span) for _, s in last) * itemsize
                if last and (last[-1][1].owners[0][0] == layer or size < bucket_bytes):
                    last.append((parameter, slot))
                else:
                    groups.append([(parameter, slot)])
        buckets = tuple(
            Bucket(
                i,
                Span(group[0][1].span.start, group[-1][1].span.stop),
                tuple(dict.fromkeys(owner for _, slot in group for owner, _ in slot.owners)),
            )
            for i, group in enumerate(groups)
        )
        return (
            tuple(slots),
            buckets,
            tuple(min(first[p.tensor] for p, _ in group) for group in groups),
            tuple(max(ready[p] for p, _ in group) for group in groups),
        )

    def _place(
        self, slots: Sequence[Slot]
    ) -> tuple[dict[Tensor, Buffer], list[Buffer | None], tuple[int, int, int]]:
        """Offsets: flat memory for parameters, fixed memory for inputs and constants, else the
        arena."""
        by_owner = {owner: slot for slot in slots for owner in slot.owners}
        itemsize = TensorSpec((), self.graph.dtype).nbytes
        where: dict[Tensor, tuple[str, int]] = {}
        for parameter in self.graph.parameters:
            slot = by_owner[parameter.owners[0]]
            where[parameter.tensor] = ("parameters", slot.span.start * itemsize)
            if parameter.gradient is not None:
                where[parameter.gradient] = ("gradients", slot.span.start * itemsize)
        fixed = 0
        lives: dict[Tensor, tuple[int, int, int]] = {}
        loose = [*self.graph.scalars.values(), *self.graph.inputs.values()]
        loose += [t for feed in self.graph.feeds for t in feed.tensors.values()]
        for tensor in dict.fromkeys((*loose, *self.graph.constants, *self.born)):
            size = -(-self._spec(tensor).nbytes // ALIGNMENT) * ALIGNMENT
            if tensor in where:
                continue
            if tensor.kind in ("input", "constant", "scalar"):
                where[tensor], fixed = ("fixed", fixed), fixed + size
            else:
                end = len(self.chosen) if self.retain_all else self.dies[tensor]
                lives[tensor] = (0 if self.retain_all else self.born[tensor], end, size)
        scratch = [
            (i, i, -(-c.candidate.workspace // ALIGNMENT) * ALIGNMENT)
            for i, c in enumerate(self.chosen)
        ]
        offsets, arena = place_lifetimes([*lives.values(), *scratch])
        where |= {t: ("arena", o) for t, o in zip(lives, offsets[: len(lives)], strict=True)}
        tensors = {
            t for c in self.chosen for t in (*c.node.inputs, *c.node.outputs) if t is not None
        }
        tensors |= {*self.root, *where, *self.graph.blobs.values()}
        buffers = {
            t: Buffer(t.name, self._spec(t), *where[self._find(t)])
            for t in tensors
            if self._find(t) in where
        }
        workspaces = [
            Buffer("workspace", TensorSpec((size,), "uint8"), "arena", offset) if size else None
            for (_, _, size), offset in zip(scratch, offsets[len(lives) :], strict=True)
        ]
        unshared = sum(size for _, _, size in (*lives.values(), *scratch))
        return buffers, workspaces, (arena, unshared, fixed)


def choose(kernels: Kernels, request: Request, layer: str) -> tuple[str, Candidate, str]:
    """(plugin, candidate, reason): the first plugin in preference that computes the request, and
    its quickest candidate where all say what they cost, else its first.

    Raises PlanError that names the layer, the operation and who was asked.
    """
    passed = []
    for plugin, offer in kernels:
        candidates = list(offer(request=request))
        if candidates:
            times = [c.seconds for c in candidates]
            best = candidates[0]
            if len(candidates) > 1 and all(t is not None for t in times):
                best = min(candidates, key=lambda c: c.seconds or 0.0)
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
    inputs = tuple(buffers[t] if t is not None else None for t in node.inputs)
    outputs = tuple(buffers[t] if t is not None else None for t in node.outputs)
    moved = sum(b.spec.nbytes for b in (*inputs, *outputs) if b is not None)
    if node.operation.flops is None:
        flops = float(sum(math.prod(b.spec.shape) for b in outputs if b is not None))
    else:
        flops = node.operation.flops(shapes_by_operand(node), node.attributes)
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
        flops=flops,
        bytes=float(moved),
        candidate=choice.candidate,
    )
