"""Planning: orders kernels, shares memory among tensors, groups parameters in buckets; makes a Plan."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import demitasse
from demitasse.arena import place_lifetimes
from demitasse.lowering import Chosen, Lowering
from demitasse.operations.graph import Graph, Parameter, Tensor, shapes_by_operand
from demitasse.operations.kernel import Place, TensorSpec
from demitasse.operations.selection import Kernels
from demitasse.plan import Buffer, Entry, Plan, Slot
from demitasse.synchronisation import Bucket, Span

ALIGNMENT = 64
"""In bytes; every buffer begins at a multiple of it."""


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
    """Plan a graph at a place.

    - ``slots``: those of another plan, whose parameters this one reads;
    - ``retain="all"`` gives every blob memory of its own;
    - ``bucket_bytes``: gradients of neighbouring layers are joined until a bucket has this many bytes;
    - ``brief_gradients`` lets gradients share memory with activations, if updates are made as soon as a
      gradient is final; a large one is made, and used, in stretches if its kernel supports that;
    - ``fixed_parameters`` promises that parameters do not change: what depends on them alone runs once;
    - ``parameters_first``: what depends only on parameters and makes at most this many bytes runs first;
    - ``like``: a sibling's plan, whose layout of parameters and gradients is used.

    Raises PlanError if no plugin computes an operation, and ShapeError if the shape of a parameter
    differs from the other plan's."""
    everything = retain == "all"
    lowered = Lowering(graph, kernels, place, slots, like, everything, precision, fixed_parameters)
    planner = _Planner(lowered, slots, like)
    planner.put_fixed_first(math.inf if fixed_parameters else parameters_first)
    if brief_gradients:
        planner.put_stretched_last()
    planner.trace_lifetimes()
    planner.share_in_place()
    return planner.finish(name, bucket_bytes, brief_gradients)


class _Brief(NamedTuple):
    """A bucket whose gradients lie in the arena from entry ``born`` to ``dies``, a part at a time."""

    span: Span
    born: int
    dies: int
    parts: int


class _Planner:
    """Decides the order of lowered operations, lifetimes, memory in place, parameters and offsets."""

    def __init__(self, lowered: Lowering, given: Sequence[Slot], like: Plan | None) -> None:
        self.lowered, self.graph, self.chosen = lowered, lowered.graph, lowered.chosen
        self.find, self.spec, self.gradients = lowered.find, lowered.spec, lowered.gradients
        self.retain_all, self.pinned = lowered.retain_all, lowered.pinned
        self.given, self.like = given, like
        self.item = TensorSpec((), self.graph.dtype).nbytes
        self.in_place, self.once = set[int](), 0
        self.born, self.dies = dict[Tensor, int](), dict[Tensor, int]()
        self.stretched, self.stretches = dict[Tensor, int](), dict[Tensor, tuple[Span, ...]]()

    def put_fixed_first(self, most: float) -> None:
        """Move to the front what depends only on constants and unchanged parameters and makes at most
        ``most`` bytes. If parameters are fixed, this runs once, and results read later are pinned."""
        if not most:
            return
        nodes, first, later = self.graph.nodes, list[Chosen](), list[Chosen]()
        operands = (pair for n in nodes for pair in zip(n.operation.inputs, n.inputs, strict=False))
        changed = {self.find(tensor) for operand, tensor in operands if operand.updated and tensor}
        fixed = {*(p.tensor for p in self.graph.parameters), *self.graph.constants} - changed
        for choice in self.chosen:
            reads = set(map(self.find, filter(None, choice.node.inputs)))
            made = {tensor for tensor in choice.node.outputs if tensor is not None}
            small = sum(self.spec(tensor).nbytes for tensor in made) <= most
            if small and choice.node.phase == "forward" and reads <= fixed:
                first.append(choice)
                fixed |= made - changed
            else:
                later.append(choice)
                self.pinned |= fixed & reads if self.lowered.fixed else set()
        self.chosen = [*first, *later]
        self.once = len(first) if self.lowered.fixed else 0

    def put_stretched_last(self) -> None:
        """Find gradients that kernels can make in parts and that no other entry touches. Each part is
        used before the next is made, so they move behind everything that reads their parameters."""
        touched = Counter(self.find(t) for c in self.chosen for t in c.tensors if t in self.gradients)
        for i, (node, _, candidate, _) in reversed([*enumerate(self.chosen)]):
            made, parts = next(iter(node.outputs), None), candidate.parts
            alone = all(touched[self.find(t)] == 1 for t in node.outputs if t)
            if made and parts > 1 and alone and self.spec(made).nbytes % (parts * ALIGNMENT) == 0:
                last = {self.find(t): k for k, c in enumerate(self.chosen) for t in c.tensors}
                behind = last.get(self.find(self.gradients[made].tensor), i)
                self.chosen.insert(max(i, behind), self.chosen.pop(i))
                self.stretched[self.find(made)] = parts

    def trace_lifetimes(self) -> None:
        """Record when each memory is first written and last used; views count as what they view."""
        for i, choice in enumerate(self.chosen):
            for root in map(self.find, choice.tensors):
                self.born.setdefault(root, i)
                self.dies[root] = i
        for tensor in self.born if self.retain_all else map(self.find, self.pinned):
            self.born[tensor] = 0 if self.retain_all else self.born.get(tensor, 0)
            self.dies[tensor] = len(self.chosen)

    def share_in_place(self) -> None:
        """Let outputs take over the memory of inputs that die, if operation and kernel allow it."""
        for i, (node, _, candidate, _) in enumerate(self.chosen):
            operation = node.operation
            sources = {o.name: t for o, t in zip(operation.inputs, node.inputs, strict=False)}
            targets = {o.name: t for o, t in zip(operation.outputs, node.outputs, strict=False)}
            for output, given in operation.aliases if candidate.in_place and not self.retain_all else ():
                target, source = targets[output], sources[given]
                if target is None or source is None or self.spec(target) != self.spec(source):
                    continue
                root, moved = self.find(source), self.find(target)
                ours = {root.kind, target.kind} <= {"activation", "gradient"}
                alone = [self.find(t) for t in node.inputs if t].count(root) == 1
                if ours and alone and self.dies[root] == i == self.born[moved]:
                    self.dies[root] = self.dies.pop(moved)
                    self.born.pop(moved)
                    views = [tensor for tensor, old in self.lowered.root.items() if old is moved]
                    self.lowered.root |= dict.fromkeys((target, moved, *views), root)
                    self.in_place.add(i)

    def finish(self, name: str, bucket_bytes: int, brief_gradients: bool) -> Plan:
        """Lay out parameters and memory, and return the plan."""
        graph, (slots, groups) = self.graph, self._slots(bucket_bytes)
        spans = [Span(group[0].span.start, group[-1].span.stop) for group in groups]
        uses, parts = self._uses(groups), self._cut(slots)
        brief = [
            _Brief(span, written, max(entries), parts.get(span.start, 1))
            for span, (entries, written) in zip(spans if brief_gradients else (), uses, strict=False)
        ]
        buffers, workspaces, (arena, unshared, fixed), blocks = self._offsets(slots, brief)
        layers = [tuple(dict.fromkeys(o[0] for s in group for o in s.owners)) for group in groups]
        return Plan(
            name=name,
            phase=graph.phase,
            dtype=graph.dtype,
            place=self.lowered.place,
            entries=tuple(self._entry(i, buffers, scratch) for i, scratch in enumerate(workspaces)),
            buffers={key: buffers[t] for key, t in dict(self._named()).items() if t in buffers},
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

    def _slots(self, bucket_bytes: int) -> tuple[list[Slot], list[list[Slot]]]:
        """Return the slots of all parameters, and those with gradients by bucket."""
        if self.given:
            return list(dict.fromkeys(self.given)), []
        if self.like is not None:
            inside = [(bucket.span.start, bucket.span.stop) for bucket in self.like.buckets]
            within = [[s for s in self.like.slots if a <= s.span.start < b] for a, b in inside]
            return list(self.like.slots), within
        slots, groups, position, before = list[Slot](), list[list[Slot]](), 0, False
        for parameter, trained in self._in_flat_order():
            spec = self.spec(parameter.tensor)
            span = Span(position, position + _aligned(spec.nbytes) // self.item)
            owners, rates = tuple(parameter.owners), (parameter.rate, parameter.decay)
            slots.append(slot := Slot(owners, span, spec, *rates, trained))
            position = span.stop
            apart = parameter.gradient in self.stretched  # has a bucket of its own
            last = groups[-1] if groups and not apart and not before else []
            before = apart
            same_layer = last and last[-1].owners[0][0] == owners[0][0]
            small = 0 < sum(len(s.span) for s in last) * self.item < bucket_bytes
            if trained and (same_layer or small):
                last.append(slot)
            elif trained:
                groups.append([slot])
        return slots, groups

    def _in_flat_order(self) -> Iterator[tuple[Parameter, bool]]:
        """Yield each parameter and whether it is trained, in the order in which backward finishes the
        gradients, so that a bucket is one span; those without a gradient come last."""
        last = {self.find(t): i for i, c in enumerate(self.chosen) for t in c.tensors}
        made = sorted((t for t in last if t in self.gradients), key=last.__getitem__)
        trained = dict.fromkeys(self.gradients[t] for t in made)
        yield from ((parameter, True) for parameter in trained)
        yield from ((each, False) for each in self.graph.parameters if each not in trained)

    def _uses(self, groups: list[list[Slot]]) -> list[tuple[list[int], int]]:
        """Return, for each bucket, the entries that read or write its parameters or gradients, and the
        first of them that writes one of its gradients."""
        owner = {p.tensor: p.owners[0] for p in self.graph.parameters}
        owner |= {t: p.owners[0] for t, p in self.gradients.items()}
        number = {o: k for k, group in enumerate(groups) for slot in group for o in slot.owners}
        uses = [(list[int](), len(self.chosen)) for _ in groups]
        for i, choice in enumerate(self.chosen):
            for root in map(self.find, choice.tensors):
                if root in owner and (k := number.get(owner[root])) is not None:
                    entries, written = uses[k]
                    entries.append(i)
                    uses[k] = entries, min(written, i) if root in self.gradients else written
        return uses

    def _cut(self, slots: Sequence[Slot]) -> dict[int, int]:
        """Cut the buckets of stretched gradients; return the number of parts by a bucket's start."""
        spans = {slot.owners[0]: slot.span for slot in slots}
        for tensor, parts in self.stretched.items():
            span = spans[self.gradients[tensor].owners[0]]
            firsts = range(span.start, span.stop, len(span) // parts)
            self.stretches[tensor] = tuple(Span(first, first + firsts.step) for first in firsts)
        return {cut[0].start: len(cut) for cut in self.stretches.values()}

    def _offsets(
        self, slots: list[Slot], brief: Sequence[_Brief]
    ) -> tuple[dict[Tensor, Buffer], list[Buffer | None], list[int], tuple[int, ...]]:
        """Return (buffers, each entry's workspace, [arena, unshared, fixed bytes], ``brief`` offsets).
        Parameters and gradients are in flat memory, outside data is fixed, the rest is in the arena."""
        starts = {owner: slot.span.start * self.item for slot in slots for owner in slot.owners}
        where = {p.tensor: ("parameters", starts[p.owners[0]]) for p in self.graph.parameters}
        where |= {t: ("gradients", starts[p.owners[0]]) for t, p in self.gradients.items()}
        graph, fixed, lives = self.graph, 0, dict[Tensor, tuple[int, int, int]]()
        outside = [*graph.scalars.values(), *graph.inputs.values(), *graph.constants]
        outside += [tensor for feed in graph.feeds for tensor in feed.tensors.values()]
        for tensor in dict.fromkeys((*outside, *self.born)):
            size = _aligned(self.spec(tensor).nbytes)
            if tensor.kind in ("input", "constant", "scalar"):
                where[tensor], fixed = ("fixed", fixed), fixed + size
            elif tensor not in where:
                lives[tensor] = (self.born[tensor], self.dies[tensor], size)
        asked = [choice.candidate.workspace for choice in self.chosen]
        scratch = [(i, i, _aligned(size)) for i, size in enumerate(asked)]
        passing = [(b.born, b.dies, len(b.span) * self.item // b.parts) for b in brief]
        everything = [*lives.values(), *scratch, *passing]
        offsets, arena = place_lifetimes(everything)
        where |= {t: ("arena", offset) for t, offset in zip(lives, offsets, strict=False)}
        blocks = tuple(offsets[len(lives) + len(scratch) :])
        begins = [each.span.start * self.item for each in brief]
        for t, p in self.gradients.items() if brief else ():
            k = bisect(begins, start := starts[p.owners[0]]) - 1
            if start < brief[k].span.stop * self.item:
                where[t] = ("arena", blocks[k] + start - begins[k])
        tensors = {*where, *self.lowered.root, *graph.blobs.values()}
        tensors = tensors.union(*(choice.tensors for choice in self.chosen))
        lying = {t: where[self.find(t)] for t in tensors if self.find(t) in where}
        buffers = {t: Buffer(t.name, self.spec(t), *place) for t, place in lying.items()}
        workspaces = [
            Buffer("workspace", TensorSpec((size,), "uint8"), "arena", offset) if size else None
            for size, offset in zip(asked, offsets[len(lives) :], strict=False)
        ]
        return buffers, workspaces, [arena, sum(size for _, _, size in everything), fixed], blocks

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that a caller can ask for by name."""
        graph = self.graph
        yield from graph.blobs.items()
        yield from ((t.name, t) for t in (*graph.inputs.values(), *graph.constants))
        for feed in graph.feeds:
            yield from ((f"{feed.layer}.{key}", tensor) for key, tensor in feed.tensors.items())
        for node in (*graph.nodes, *(c.node for c in self.chosen)) if self.retain_all else ():
            yield from ((t.name, t) for t in node.outputs if t is not None)

    def _entry(self, i: int, buffers: Mapping[Tensor, Buffer], workspace: Buffer | None) -> Entry:
        node, plugin, candidate, reason = self.chosen[i]
        stretches = next((self.stretches.get(self.find(t), ()) for t in node.outputs[:1] if t), ())
        sides = node.inputs, node.outputs
        inputs, outputs = (tuple(buffers[t] if t else None for t in side) for side in sides)
        flops = float(sum(math.prod(b.spec.shape) for b in outputs if b))
        if node.operation.flops is not None:
            with demitasse.blamed(f"operation {node.operation.name!r}", "counting flops"):
                flops = float(node.operation.flops(shapes_by_operand(node), node.attributes))
        moved = float(sum(b.spec.nbytes for b in (*inputs, *outputs) if b))
        what = node.operation.name, node.layer, node.phase, plugin, candidate.kernel, reason
        costs = i in self.in_place, flops, moved
        return Entry(*what, inputs, outputs, workspace, *costs, candidate, i < self.once, stretches)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
