"""The plan: operations in order, their kernels and buffers, and the synchronisation points."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import demitasse
from demitasse.arena import place_lifetimes
from demitasse.errors import Rooted, ShapeError
from demitasse.operations.graph import Graph, Node, Tensor, shapes_by_operand
from demitasse.operations.kernel import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations.selection import Kernels
from demitasse.synchronisation import Bucket, Span

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
    """One operation of a step with the kernel that was chosen, its buffers, and its cost. What depends
    on fixed parameters alone is done ``once``, and kept. A gradient made in ``stretches`` of flat memory
    lies in one place in turn: each is final, and used, before the next is made."""

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
    once: bool = False
    stretches: tuple[Span, ...] = ()


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
class Plan(Rooted):
    """A net in one phase, ready to be bound to memory. Of ``parameters`` elements of flat memory the
    first ``trainable`` have gradients and solver state. ``first_read`` and ``final`` give, by bucket,
    the entry before which its parameters must be there and that after which its gradients are final.
    ``brief`` gives, by bucket, where its gradients lie in the arena, in bytes, if they are there only
    until they are final; () where they have memory of their own."""

    elsewhere = "its kernels are this process's: send str() of it, or make another there"
    name: str
    phase: str
    dtype: str
    place: Place
    entries: tuple[Entry, ...] = field(repr=False)
    buffers: Mapping[str, Buffer] = field(repr=False)
    scalars: Mapping[str, Buffer] = field(repr=False)
    outputs: Mapping[str, Buffer] = field(repr=False)
    objective: tuple[tuple[Buffer, float], ...] = field(repr=False)
    slots: tuple[Slot, ...] = field(repr=False)
    buckets: tuple[Bucket, ...] = field(repr=False)
    first_read: tuple[int, ...] = field(repr=False)
    final: tuple[int, ...] = field(repr=False)
    brief: tuple[int, ...] = field(repr=False)
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
        arena, unshared = self.arena_bytes / 2**20, self.unshared_bytes / 2**20
        counts = f"{self.parameters:,} parameters in {len(self.buckets)} buckets"
        memory = f"arena {arena:.2f} MiB ({unshared:.2f} MiB without sharing)"
        return "\n".join([*lines, f"{len(self.entries)} operations, {counts}, {memory}"])


class _Choice(NamedTuple):
    node: Node
    plugin: str
    candidate: Candidate
    reason: str

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (*self.node.outputs, *self.node.inputs) if t is not None]


def make_plan(
    graph: Graph,
    kernels: Kernels,
    place: Place,
    *,
    name: str = "",
    slots: Sequence[Slot] = (),
    retain: str | None = None,
    precision: str = "f32",
    bucket_bytes: int = 0,
    brief_gradients: bool = False,
    fixed_parameters: bool = False,
    parameters_first: int = 0,
    like: Plan | None = None,
) -> Plan:
    """Plan a graph at a place. ``slots`` are those of another plan whose parameters this one reads;
    ``retain="all"`` gives every blob memory of its own; ``bucket_bytes`` joins neighbouring layers'
    gradients until a bucket has that many; ``brief_gradients`` lets gradients share memory with
    activations, for updates made as soon as they are final, and each stretch of a large one if a kernel
    makes it so; ``fixed_parameters`` promises that what depends on them alone need not be done at every
    step; of that, what makes up to ``parameters_first`` bytes is done before all else; ``like`` is a
    sibling's plan, whose parameters and gradients this one's lie like. Raises PlanError for an operation
    that nobody computes, ShapeError for a parameter unlike the other's."""
    planner = _Planner(graph, kernels, place, slots, retain == "all", precision)
    planner.fixed, planner.ahead = fixed_parameters, math.inf if fixed_parameters else parameters_first
    planner.lie_like(like)
    planner.choose_kernels()
    planner.find_fixed()
    planner.trace_lifetimes()
    planner.share_in_place()
    return planner.finish(name, bucket_bytes, brief_gradients)


class _Planner:
    """One planning: kernels and layouts, lifetimes, memory in place, parameters, offsets."""

    def __init__(
        self,
        graph: Graph,
        kernels: Kernels,
        place: Place,
        given: Sequence[Slot],
        retain_all: bool,
        precision: str,
    ) -> None:
        self.graph, self.kernels, self.place, self.retain_all = graph, kernels, place, retain_all
        self.precision = "f32" if retain_all and precision == "bf16" else precision
        self.given = {owner: slot for slot in given for owner in slot.owners}
        self.item, self.fixed, self.ahead = TensorSpec((), graph.dtype).nbytes, False, 0.0
        self.layouts, self.root = dict[Tensor, Layout](), dict[Tensor, Tensor]()
        self.reordered: dict[tuple[Tensor, Layout], Tensor] = {}
        self.chosen, self.in_place, self.once = list[_Choice](), set[int](), set[int]()
        self.like: Plan | None = None
        self.stretched, self.stretches = dict[Tensor, int](), dict[Tensor, tuple[Span, ...]]()
        self.objective = {tensor for tensor, _ in graph.objective}
        self.pinned = {*graph.outputs.values(), *self.objective}
        self.gradients = {p.gradient: p for p in graph.parameters if p.gradient is not None}
        for parameter in graph.parameters if given else ():
            (layer, number), shape = parameter.owners[0], parameter.tensor.shape
            slot = self.given.get((layer, number))
            if slot is None or slot.spec.shape != shape:
                ours = f"parameter {number} of layer {layer!r} has shape {shape} in phase {graph.phase}"
                theirs = f"shape {slot.spec.shape}" if slot else "no such parameter"
                raise ShapeError(f"{ours}; the net that it shares parameters with has {theirs}")
            self.layouts[parameter.tensor] = slot.spec.layout

    def lie_like(self, other: Plan | None) -> None:
        """Siblings exchange flat memory: whatever each would choose, its parameters lie as one's do."""
        self.like = other
        layouts = {slot.owners[0]: slot.spec.layout for slot in other.slots} if other else {}
        self.layouts |= {p.tensor: layouts[p.owners[0]] for p in self.graph.parameters if other}

    def choose_kernels(self) -> None:
        """A kernel for each node that somebody needs, and transforms where layouts disagree."""
        needed, alive = self.pinned | set(self.gradients), list[Node]()
        for node in reversed(self.graph.nodes):
            updates = any(operand.updated for operand in node.operation.inputs)
            if updates or self.retain_all or any(t in needed for t in node.outputs):
                kept = node.outputs if self.retain_all and node.phase == "backward" else []
                needed.update(t for t in (*node.inputs, *kept) if t is not None)
                for i, operand in enumerate(node.operation.outputs):
                    if operand.optional and node.outputs[i] not in needed:
                        node.outputs[i] = None
                alive.append(node)
        for node in self._fused(alive[::-1]):
            if node.operation.view:
                (source,), (target,) = filter(None, node.inputs), filter(None, node.outputs)
                if source.kind == "parameter":  # what is seen in another shape lies as it is seen
                    self.layouts.setdefault(source, PLAIN)
                self.root[target] = self._find(self._in_layout(source, PLAIN, node))
            else:
                self._choose(node)

    def _fused(self, nodes: Sequence[Node]) -> list[Node]:
        """A node and its result's only reader as one, in its place, if what else that reads is there."""
        fused, readers = dict(enumerate(nodes)), defaultdict[Tensor | None, list[int]](list)
        made = {tensor: i for i, node in enumerate(nodes) for tensor in node.outputs}
        for i, tensor in ((i, tensor) for i, node in enumerate(nodes) for tensor in node.inputs):
            readers[tensor].append(i)
        for i, node in () if self.retain_all else reversed(list(enumerate(nodes))):
            operation, result = node.operation, node.outputs[0] if node.operation.fuses else None
            after = readers[result] if result is not None and result not in self.pinned else ()
            if len(after) != 1 or (reader := fused.get(after[0])) is None:
                continue
            more, takes = [t for t in reader.inputs if t is not result], reader.operation.inputs
            name, usual = reader.operation.name, reader.attributes == reader.operation.attributes
            usual &= takes[0].variadic or reader.inputs[0] is result
            there = all(made.get(tensor, -1) < i for tensor in more)
            of_elements = reader.operation.function and not reader.attributes.keys() & node.attributes
            fits = of_elements or (usual and name in operation.fuses)
            if fits and there and reader.phase == node.phase:
                both = f"{operation.name}_{name}", operation.inputs + takes[-1:] * bool(more)
                one = replace(node, operation=replace(operation, name=both[0], inputs=both[1]))
                one.attributes = {**node.attributes, **(reader.attributes if of_elements else {})}
                one.inputs, one.outputs = [*node.inputs, *more], [*reader.outputs, *node.outputs[1:]]
                found, apart = (self.kernels.find(self._request(each))[0] for each in (one, node))
                if found and found == apart:
                    fused[i] = one
                    del fused[after[0]]
        return list(fused.values())

    def _layout(self, tensor: Tensor) -> Layout:
        if tensor not in self.layouts and tensor in self.gradients:
            tensor = self.gradients[tensor].tensor  # a parameter's gradient lies as the parameter does
        return self.layouts.get(tensor, PLAIN)

    def _spec(self, tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.shape, tensor.dtype, self._layout(tensor))

    def _choose(self, node: Node) -> None:
        plugin, candidate, reason = self.kernels.choose(self._request(node), node.layer)
        made = replace(node, inputs=[*node.inputs], outputs=[*node.outputs])
        for i, tensor in enumerate(node.inputs):
            if tensor is not None:
                layout = candidate.input_layouts[i] if candidate.input_layouts else PLAIN
                if tensor.kind == "parameter":
                    own = replace(layout, stored="", name=layout.name.partition(" ")[0])
                    self.layouts.setdefault(tensor, PLAIN if self.retain_all or own == PLAIN else own)
                made.inputs[i] = self._in_layout(tensor, layout, node)
        self.chosen.append(_Choice(made, plugin, candidate, reason))
        for operand, tensor, twin in zip(node.operation.inputs, node.inputs, made.inputs, strict=False):
            if operand.updated and tensor and twin and twin is not tensor:
                self._transform(twin, tensor, node)
        for i, tensor in enumerate(node.outputs):
            if tensor is not None:
                layout = candidate.output_layouts[i] if candidate.output_layouts else PLAIN
                if not (self.retain_all or tensor in self.objective or tensor in self.gradients):
                    self.layouts[tensor] = layout
                elif self._layout(tensor) != layout:
                    made.outputs[i] = twin = self._twin(tensor, layout)
                    if tensor in self.gradients and self._lie_alike(tensor, twin):
                        self.root[twin], self.gradients[twin] = tensor, self.gradients[tensor]
                    else:
                        self._transform(twin, tensor, node)

    def _request(self, node: Node) -> Request:
        sides = node.inputs, node.outputs
        inputs, outputs = (tuple(self._spec(t) if t else None for t in side) for side in sides)
        precision = "f32" if node.exact and self.precision == "bf16" else self.precision
        about = node.attributes, self.place, precision, self.fixed
        return Request(node.operation, inputs, outputs, *about)

    def _in_layout(self, tensor: Tensor, layout: Layout, near: Node) -> Tensor:
        if self._layout(tensor) == layout:
            return tensor
        if (tensor, layout) not in self.reordered:
            self.reordered[tensor, layout] = twin = self._twin(tensor, layout)
            if self._lie_alike(tensor, twin):
                self.root[twin] = self._find(tensor)
            else:
                self._transform(tensor, twin, near)
        return self.reordered[tensor, layout]

    def _lie_alike(self, tensor: Tensor, twin: Tensor) -> bool:
        return self._layout(tensor).places(tensor.shape) == self._layout(twin).places(tensor.shape)

    def _twin(self, tensor: Tensor, layout: Layout) -> Tensor:
        twin = Tensor(f"{tensor.name}.{layout.name}", tensor.shape, tensor.dtype, "activation")
        self.layouts[twin] = layout
        return twin

    def _transform(self, source: Tensor, target: Tensor, near: Node) -> None:
        reorder = self.graph.vocabulary["reorder"]
        node = Node(reorder, [source], [target], {}, near.layer, near.phase)
        plugin, candidate, _ = self.kernels.choose(self._request(node), node.layer)
        reason = f"{self._spec(source).layout.name} to {self._spec(target).layout.name}"
        self.chosen.append(_Choice(node, plugin, candidate, reason))

    def _find(self, tensor: Tensor) -> Tensor:
        return self.root.get(tensor, tensor)

    def find_fixed(self) -> None:
        """What depends on constants alone and parameters that no operation changes is done first, and if
        they are fixed once; what of it is read later is pinned then."""
        nodes, first, later = self.graph.nodes, list[_Choice](), list[_Choice]()
        operands = (pair for n in nodes for pair in zip(n.operation.inputs, n.inputs, strict=False))
        changed = {self._find(tensor) for operand, tensor in operands if operand.updated and tensor}
        fixed = {*(p.tensor for p in self.graph.parameters), *self.graph.constants} - changed
        for choice in self.chosen if self.ahead else ():
            reads = set(map(self._find, filter(None, choice.node.inputs)))
            small = sum(self._spec(t).nbytes for t in choice.node.outputs if t) <= self.ahead
            alone = small and choice.node.phase == "forward" and fixed >= reads
            (first if alone else later).append(choice)
            fixed.update({*filter(None, choice.node.outputs)} - changed if alone else ())
            self.pinned.update(fixed & reads if self.fixed and not alone else ())
        self.chosen, self.once = [*first, *later] or self.chosen, set(range(len(first) * self.fixed))

    def trace_lifetimes(self) -> None:
        """When each memory is first written and last used, views counted with what they view."""
        self.born, self.dies = dict[Tensor, int](), dict[Tensor, int]()
        for i, choice in enumerate(self.chosen):
            for root in map(self._find, choice.tensors):
                self.born.setdefault(root, i)
                self.dies[root] = i
        for tensor in self.born if self.retain_all else map(self._find, self.pinned):
            self.born[tensor] = 0 if self.retain_all else self.born.get(tensor, 0)
            self.dies[tensor] = len(self.chosen)

    def share_in_place(self) -> None:
        """Let outputs take over the memory of inputs that die, where operation and kernel allow."""
        for i, (node, _, candidate, _) in enumerate(self.chosen):
            operation = node.operation
            sources = {o.name: t for o, t in zip(operation.inputs, node.inputs, strict=False)}
            targets = {o.name: t for o, t in zip(operation.outputs, node.outputs, strict=False)}
            for output, given in operation.aliases if candidate.in_place and not self.retain_all else ():
                target, source = targets[output], sources[given]
                if target is None or source is None or self._spec(target) != self._spec(source):
                    continue
                root, read = self._find(source), [self._find(t) for t in node.inputs if t]
                ours = {root.kind, target.kind} <= {"activation", "gradient"}
                if ours and self.dies[root] == i and read.count(root) == 1:
                    moved = self._find(target)
                    self.dies[root] = self.dies.pop(moved)
                    self.born.pop(moved)
                    views = [tensor for tensor, old in self.root.items() if old is moved]
                    self.root |= dict.fromkeys((target, moved, *views), root)
                    self.in_place.add(i)

    def find_stretched(self) -> None:
        """Gradients that nobody but a kernel touches that can make them in parts."""
        touched = Counter(self._find(t) for c in self.chosen for t in c.tensors if t in self.gradients)
        for node, _, candidate, _ in self.chosen:
            made = node.outputs[0] if candidate.parts > 1 else None
            whole = made is not None and self._spec(made).nbytes % (candidate.parts * ALIGNMENT) == 0
            if made in self.gradients and touched[self._find(made)] == 1 and whole:
                self.stretched[self._find(made)] = candidate.parts

    def _slots(self, bucket_bytes: int) -> tuple[list[Slot], list[list[Slot]]]:
        """Parameters as backward finishes their gradients, then those without; the former by bucket."""
        if self.given:
            return list(dict.fromkeys(self.given.values())), []
        if self.like is not None:
            inside = [(bucket.span.start, bucket.span.stop) for bucket in self.like.buckets]
            within = [[s for s in self.like.slots if a <= s.span.start < b] for a, b in inside]
            return list(self.like.slots), within
        ready = {t: i for i, c in enumerate(self.chosen) for t in c.tensors if t in self.gradients}
        learned = dict.fromkeys(self.gradients[t] for t in sorted(ready, key=lambda t: ready[t]))
        order = [*learned, *(p for p in self.graph.parameters if p not in learned)]
        slots, groups, position, apart = list[Slot](), list[list[Slot]](), 0, False
        for parameter in order:
            spec, trained = self._spec(parameter.tensor), parameter in learned
            span = Span(position, position + _aligned(spec.nbytes) // self.item)
            owners, rates = tuple(parameter.owners), (parameter.rate, parameter.decay)
            slots.append(slot := Slot(owners, span, spec, *rates, trained))
            position = span.stop
            apart, before = parameter.gradient in self.stretched, apart
            last = groups[-1] if groups and not apart and not before else []
            same = last and last[-1].owners[0][0] == owners[0][0]
            if trained and (same or 0 < sum(len(s.span) for s in last) * self.item < bucket_bytes):
                last.append(slot)
            elif trained:
                groups.append([slot])
        return slots, groups

    def _uses(self, groups: list[list[Slot]]) -> list[tuple[list[int], int]]:
        """By bucket, the entries that read or write its parameters or gradients, and the first that
        writes one of its gradients."""
        owner = {p.tensor: p.owners[0] for p in self.graph.parameters}
        owner |= {t: p.owners[0] for t, p in self.gradients.items()}
        number = {o: k for k, group in enumerate(groups) for slot in group for o in slot.owners}
        uses = [(list[int](), len(self.chosen)) for _ in groups]
        for i, choice in enumerate(self.chosen):
            for root in map(self._find, choice.tensors):
                if root in owner and (k := number.get(owner[root])) is not None:
                    entries, begin = uses[k]
                    entries.append(i)
                    uses[k] = entries, min(begin, i) if root in self.gradients else begin
        return uses

    def _offsets(
        self, slots: list[Slot], brief: Sequence[tuple[Span, int, int, int]]
    ) -> tuple[dict[Tensor, Buffer], list[Buffer | None], list[int], tuple[int, ...]]:
        """Where everything lies: parameters and gradients in flat memory, what comes from outside
        in fixed memory, the rest and workspaces in the arena, with gradients that are ``brief`` (a
        bucket's span, when it begins and ends, in how many parts); arena, unshared and fixed bytes."""
        starts = {owner: slot.span.start * self.item for slot in slots for owner in slot.owners}
        where = {p.tensor: ("parameters", starts[p.owners[0]]) for p in self.graph.parameters}
        where |= {t: ("gradients", starts[p.owners[0]]) for t, p in self.gradients.items()}
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
        passing = [(born, dies, len(span) * self.item // parts) for span, born, dies, parts in brief]
        scratch = [(i, i, _aligned(size)) for i, size in enumerate(asked)]
        everything = [*lives.values(), *scratch, *passing]
        offsets, arena = place_lifetimes(everything)
        where |= {t: ("arena", offset) for t, offset in zip(lives, offsets, strict=False)}
        blocks = tuple(offsets[len(lives) + len(scratch) :])
        for (span, *_), block in zip(brief, blocks, strict=True):
            for t, p in self.gradients.items():
                start = starts[p.owners[0]]
                if span.start * self.item <= start < span.stop * self.item:
                    where[t] = ("arena", block + start - span.start * self.item)
        tensors = {*where, *self.root, *graph.blobs.values()}.union(*(c.tensors for c in self.chosen))
        lying = {t: where[self._find(t)] for t in tensors if self._find(t) in where}
        buffers = {t: Buffer(t.name, self._spec(t), *place) for t, place in lying.items()}
        workspaces = [
            Buffer("workspace", TensorSpec((size,), "uint8"), "arena", offset) if size else None
            for size, offset in zip(asked, offsets[len(lives) :], strict=False)
        ]
        return buffers, workspaces, [arena, sum(size for _, _, size in everything), fixed], blocks

    def _entry(self, i: int, buffers: Mapping[Tensor, Buffer], workspace: Buffer | None) -> Entry:
        node, plugin, candidate, reason = self.chosen[i]
        stretches = next((self.stretches.get(self._find(t), ()) for t in node.outputs[:1] if t), ())
        sides = node.inputs, node.outputs
        inputs, outputs = (tuple(buffers[t] if t else None for t in side) for side in sides)
        flops = float(sum(math.prod(b.spec.shape) for b in outputs if b))
        if node.operation.flops is not None:
            with demitasse.blamed(f"operation {node.operation.name!r}", "counting flops"):
                flops = float(node.operation.flops(shapes_by_operand(node), node.attributes))
        moved = float(sum(b.spec.nbytes for b in (*inputs, *outputs) if b))
        what = node.operation.name, node.layer, node.phase, plugin, candidate.kernel, reason
        costs = i in self.in_place, flops, moved
        return Entry(*what, inputs, outputs, workspace, *costs, candidate, i in self.once, stretches)

    def finish(self, name: str, bucket_bytes: int, brief_gradients: bool) -> Plan:
        """The record."""
        if brief_gradients:
            self.find_stretched()
        graph, (slots, groups) = self.graph, self._slots(bucket_bytes)
        spans = [Span(group[0].span.start, group[-1].span.stop) for group in groups]
        uses = self._uses(groups)
        starts = {slot.owners[0]: slot.span.start for slot in slots}
        cut = {starts[self.gradients[t].owners[0]]: (t, parts) for t, parts in self.stretched.items()}
        for span in spans:
            if span.start in cut:
                tensor, parts = cut[span.start]
                first = range(span.start, span.stop, size := len(span) // parts)
                self.stretches[tensor] = tuple(Span(start, start + size) for start in first)
        brief = [
            (span, begin, max(entries), cut[span.start][1] if span.start in cut else 1)
            for span, (entries, begin) in zip(spans if brief_gradients else (), uses, strict=False)
        ]
        buffers, workspaces, (arena, unshared, fixed), blocks = self._offsets(slots, brief)
        layers = [tuple(dict.fromkeys(o[0] for s in group for o in s.owners)) for group in groups]
        named = graph.blobs | {t.name: t for t in (*graph.inputs.values(), *graph.constants)}
        for feed in graph.feeds:
            named |= {f"{feed.layer}.{key}": tensor for key, tensor in feed.tensors.items()}
        for node in (*graph.nodes, *(c.node for c in self.chosen)) if self.retain_all else ():
            named |= {t.name: t for t in node.outputs if t is not None}
        return Plan(
            name=name,
            phase=graph.phase,
            dtype=graph.dtype,
            place=self.place,
            entries=tuple(self._entry(i, buffers, scratch) for i, scratch in enumerate(workspaces)),
            buffers={key: buffers[t] for key, t in named.items() if t in buffers},
            scalars={key: buffers[t] for key, t in graph.scalars.items()},
            outputs={key: buffers[t] for key, t in graph.outputs.items()},
            objective=tuple((buffers[t], weight) for t, weight in graph.objective),
            slots=tuple(slots),
            buckets=tuple(map(Bucket, range(len(groups)), spans, layers)),
            first_read=tuple(min(entries) for entries, _ in uses),
            final=tuple(max(entries) for entries, _ in uses),
            brief=blocks,
            trainable=max((slot.span.stop for slot in slots if slot.trainable), default=0),
            parameters=max((slot.span.stop for slot in slots), default=0),
            arena_bytes=arena,
            unshared_bytes=unshared,
            fixed_bytes=fixed,
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
