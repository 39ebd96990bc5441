"""A check of plans that knows nothing of how they are made: each entry reads what it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from demitasse import Bucket, Buffer, Entry, Graph, Node, Plan, Tensor

GRAIN = 64
"""Bytes of a cell; no two buffers that live at a time have parts of one."""

Label = tuple[str, int]
"""What lies in a cell: a tensor, and by how many operations it has been updated."""

NOTHING, SCRATCH = ("nothing", 0), ("a workspace", 0)
ABSENT, UPDATED = ("parameters that have not come yet", 0), ("updated parameters", 0)
GONE = ("gradients that were given to synchronisation", 0)

APART = "\N{SECTION SIGN}"
"""Stands between a number and a tensor's name while names are ``told_apart``."""


class WrongReadError(AssertionError):
    """A plan reads what it should not."""


def wrong_reads(graph: Graph, plan: Plan) -> list[str]:
    """What two iterations of the plan (for a net that only runs forward, two passes) read that they
    should not: another tensor's values, those that it had before or after an update by an operation, a
    result that the same entry is writing, parameters before ``first_read`` or after ``final``, gradients
    after it, and outputs that something has overwritten by the time that they are looked at.

    A view has the values of what it is a view of, and a tensor's twin in another layout has the
    tensor's. Tensors are told apart by their names: see ``checked``."""
    return list(dict.fromkeys(_Memory(graph, plan).wrong))


def checked(make_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """``make_plan``, which raises WrongReadError for a plan that has wrong reads."""

    def make(graph: Graph, *arguments: Any, **options: Any) -> Plan:
        with told_apart(graph):
            plan = make_plan(graph, *arguments, **options)
            wrong = wrong_reads(graph, plan)
        if wrong:
            raise WrongReadError("\n".join([f"{plan.name} ({plan.phase}):", *wrong]))
        return _named_as_before(plan)  # type: ignore[no-any-return]

    return make


@contextmanager
def told_apart(graph: Graph) -> Iterator[None]:
    """No two tensors of the graph have the same name meanwhile, as those that a layer makes often do."""
    of_nodes = (t for n in graph.nodes for t in (*n.inputs, *n.outputs))
    of_parameters = (t for p in graph.parameters for t in (p.tensor, p.gradient))
    named = (*graph.blobs.values(), *graph.inputs.values(), *graph.outputs.values(), *graph.constants)
    fed = (t for feed in graph.feeds for t in feed.tensors.values())
    everything = (*of_nodes, *of_parameters, *named, *fed, *(t for t, _ in graph.objective))
    names = {tensor: tensor.name for tensor in everything if tensor is not None}
    for number, tensor in enumerate(names):
        tensor.name = f"{number}{APART}{tensor.name}"
    try:
        yield
    finally:
        for tensor, name in names.items():
            tensor.name = name


def _named_as_before(value: Any) -> Any:
    """A plan without the numbers in the names of its tensors."""
    if isinstance(value, str):
        return value.rpartition(APART)[2]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_named_as_before, value))
    if isinstance(value, dict):
        return {_named_as_before(key): _named_as_before(item) for key, item in value.items()}
    if isinstance(value, Plan | Entry | Buffer) and is_dataclass(value):
        parts = ("name", "entries", "inputs", "outputs", "workspace", "buffers", "scalars", "objective")
        here = [field.name for field in fields(value) if field.name in parts]
        return replace(value, **{name: _named_as_before(getattr(value, name)) for name in here})
    return value


class _Memory:
    """Walks the step and notes for each cell of memory what lies there."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan, self.wrong = graph, plan, list[str]()
        self.item = np.dtype(plan.dtype).itemsize
        views = [node for node in graph.nodes if node.operation.view]
        self.seen = {v.outputs[0].name: v.inputs[0].name for v in views if v.outputs[0] and v.inputs[0]}
        self.gradients = {p.owners[0]: p.gradient.name for p in graph.parameters if p.gradient}
        self.updates = [
            (self._root(tensor.name), i)
            for i, node in enumerate(graph.nodes)
            for tensor in _updated(node)
        ]
        self.changes = Counter(name for name, _ in self.updates)
        self.numbers: dict[Label, int] = {NOTHING: 0}
        self.labels = [NOTHING]
        sizes = {
            "arena": plan.arena_bytes,
            "fixed": plan.fixed_bytes,
            "parameters": plan.parameters * self.item,
            "gradients": max(plan.trainable, plan.parameters if not plan.buckets else 0) * self.item,
        }
        self.cells = {name: np.zeros(-(-size // GRAIN), np.int32) for name, size in sizes.items()}
        self.known = self._known_entries()
        self._begin_with_what_is_given()
        for again in (False, True):
            self._begin_iteration()
            self._iterate(again)

    # An iteration.

    def _begin_with_what_is_given(self) -> None:
        """Samples, constants, parameters."""
        read = (buffer for entry in self.plan.entries for buffer in _buffers(entry))
        for buffer in (*self.plan.buffers.values(), *self.plan.outputs.values(), *read):
            if buffer.region in ("fixed", "parameters"):
                self._fill(buffer, (self._name(buffer), 0))

    def _begin_iteration(self) -> None:
        """What comes from outside comes anew; what operations have updated is as it is now."""
        for tensor, changes in self.changes.items():
            if (after := self.numbers.get((tensor, changes))) is not None:
                for region in ("fixed", "parameters"):
                    cells = self.cells[region]
                    cells[cells == after] = self._number((tensor, 0))
        for feed in self.graph.feeds:
            for key in feed.tensors:
                buffer = self.plan.buffers[f"{feed.layer}.{key}"]
                self._fill(buffer, (self._name(buffer), 0))
        for bucket in self.plan.buckets:
            self._span("parameters", bucket)[:] = self._number(ABSENT)
        if "gradients" in self.cells and not self.plan.brief:
            self.cells["gradients"][:] = 0
        for buffer in {b for e in self.plan.entries for b in _buffers(e) if b.region == "gradients"}:
            if self.changes[self._name(buffer)]:  # zero, to be added to
                self._fill(buffer, (self._name(buffer), 0))

    def _iterate(self, again: bool) -> None:
        plan, entries = self.plan, [*enumerate(self.plan.entries)]
        cut = {entry.stretches[0].start for entry in plan.entries if entry.stretches}
        once = [(i, entry) for i, entry in entries if entry.once]
        forward = [(i, e) for i, e in entries if not e.once and e.phase == "forward"]
        backward = [(i, e) for i, e in entries if not e.once and e.phase != "forward"]
        for part in ([] if again else once, forward, backward):
            for i, entry in part:
                for bucket, first in zip(plan.buckets, plan.first_read, strict=True):
                    if first == i:
                        self._arrive(bucket)
                self._run(entry, self.known[i])
                for bucket, final in zip(plan.buckets, plan.final, strict=True):
                    if final == i and bucket.span.start not in cut:
                        who = f"the update of {', '.join(bucket.layers)} behind {entry.layer}"
                        self._update(bucket, who)
            if part is forward:
                for buffer, _ in plan.objective:
                    self._expect(buffer, (self._name(buffer), 0), "who looks at the loss")
        for name, buffer in plan.outputs.items():
            self._expect(buffer, self._last(buffer), f"who looks at the output {name}")
        if not plan.buckets and not plan.brief:
            for slot in plan.slots:
                if (gradient := self.gradients.get(slot.owners[0])) is not None:
                    cells = self._cells("gradients", slot.span.start * self.item, slot.spec.nbytes)
                    who = f"who updates {slot.owners[0][0]}"
                    self._expect_in(cells, (gradient, self.changes[gradient]), who)

    def _arrive(self, bucket: Bucket) -> None:
        names = {p.owners[0]: p.tensor.name for p in self.graph.parameters}
        for slot in self.plan.slots:
            if bucket.span.start <= slot.span.start < bucket.span.stop:
                cells = self._cells("parameters", slot.span.start * self.item, slot.spec.nbytes)
                cells[:] = self._number((names[slot.owners[0]], 0))

    def _run(self, entry: Entry, node: tuple[int, Node] | None) -> None:
        """``node``: that of the graph, or None for a transform, which reads what is there."""
        who = f"{entry.layer} {entry.phase} {entry.operation}"
        self._check_apart(entry, node, who)
        made = 0
        for buffer in filter(None, entry.inputs):
            name = self._name(buffer)
            if node is None:
                made = self._one_of(buffer, name, who)
            else:
                before = sum(root == name and i < node[0] for root, i in self.updates)
                self._expect(buffer, (name, before), who)
        if entry.workspace is not None:
            self._fill(entry.workspace, SCRATCH)
        for buffer in filter(None, entry.outputs[entry.stretches != () :]):
            self._fill(buffer, (self._name(buffer), made))
        if node is not None:
            for tensor, buffer in zip(node[1].inputs, entry.inputs, strict=False):
                if tensor in _updated(node[1]) and buffer is not None:
                    name = self._name(buffer)
                    self._fill(
                        buffer, (name, 1 + sum(r == name and i < node[0] for r, i in self.updates))
                    )
        for span in entry.stretches:
            stretch = entry.outputs[0]
            assert stretch is not None
            cells = self._cells("arena", stretch.offset, len(span) * self.item)
            cells[:] = self._number((self._name(stretch), 0))
            updated = self._cells("parameters", span.start * self.item, len(span) * self.item)
            updated[:] = self._number(UPDATED)

    def _update(self, bucket: Bucket, who: str) -> None:
        """What updates a bucket, or gives it to others, finds all of its gradients, and its parameters
        as they were."""
        span, brief = bucket.span, self.plan.brief
        region = "arena" if brief else "gradients"
        base = brief[bucket.index] - span.start * self.item if brief else 0
        for slot in self.plan.slots:
            if span.start <= slot.span.start < span.stop:
                gradient = self.gradients[slot.owners[0]]
                cells = self._cells(region, base + slot.span.start * self.item, slot.spec.nbytes)
                self._expect_in(cells, (gradient, self.changes[gradient]), who)
                cells[:] = self._number(GONE)
        self._span("parameters", bucket)[:] = self._number(UPDATED)

    # What is read.

    def _check_apart(self, entry: Entry, node: tuple[int, Node] | None, who: str) -> None:
        """What an entry writes is apart from all else that it has, but for a result that takes over an
        input's place, where its operation and its kernel allow that."""
        outputs = [_extent(b, self._written(entry, i)) for i, b in enumerate(entry.outputs) if b]
        written = [*outputs, *([_extent(entry.workspace)] if entry.workspace else [])]
        for i, mine in enumerate(written):
            if any(_overlap(mine, other) for other in written[:i]):
                self.wrong.append(f"{who} writes two results to one place")
        allowed = _aliases(entry, node[1]) if node is not None else set()
        for (o, mine), (i, given) in product(enumerate(entry.outputs), enumerate(entry.inputs)):
            if mine and given and _overlap(_extent(mine, self._written(entry, o)), _extent(given)):
                same = _extent(mine) == _extent(given) and entry.in_place and (o, i) in allowed
                if not same:
                    self.wrong.append(f"{who} writes {self._name(mine)} over {self._name(given)}")
        for given in filter(None, entry.inputs if entry.workspace else ()):
            if entry.workspace and _overlap(_extent(entry.workspace), _extent(given)):
                self.wrong.append(f"{who} has its workspace over {self._name(given)}")

    def _written(self, entry: Entry, position: int) -> int | None:
        """The bytes of a result that exist at a time, where it is made in stretches."""
        return len(entry.stretches[0]) * self.item if entry.stretches and position == 0 else None

    def _one_of(self, buffer: Buffer, tensor: str, who: str) -> int:
        """A tensor is read as it is; by how many operations it has been updated."""
        found = [self.labels[number] for number in np.unique(self._at(buffer)).tolist()]
        if len(found) != 1 or found[0][0] != tensor:
            others = ", ".join(_told(label) for label in found if label[0] != tensor)
            self.wrong.append(f"{who} reads {others or 'parts of different updates'} for {tensor}")
        return next((version for name, version in found if name == tensor), 0)

    def _last(self, buffer: Buffer) -> Label:
        return self._name(buffer), self.changes[self._name(buffer)]

    def _expect(self, buffer: Buffer, label: Label, who: str) -> None:
        self._expect_in(self._at(buffer), label, who)

    def _expect_in(self, cells: Any, label: Label, who: str) -> None:
        found = {*np.unique(cells).tolist()} - {self._number(label)}
        if found:
            others = ", ".join(_told(self.labels[number]) for number in sorted(found))
            self.wrong.append(f"{who} reads {others} for {_told(label)}")

    # Names and places.

    def _known_entries(self) -> list[tuple[int, Node] | None]:
        """The node of each entry, or the first of those that a kernel does as one. Raises
        WrongReadError for an entry that is neither one of the graph nor a transform."""
        left, found = [*enumerate(self.graph.nodes)], list[tuple[int, Node] | None]()
        for entry in self.plan.entries:
            read = [self._plain(b) if b else None for b in entry.inputs]
            node = next((each for each in left if _is_of(entry, each[1], read)), None)
            if node is not None:
                left.remove(node)
            elif entry.operation != "reorder":
                raise WrongReadError(f"{entry.layer}: {entry.operation} of {read} is not in the graph")
            found.append(node)
        return found

    def _number(self, label: Label) -> int:
        if label not in self.numbers:
            self.numbers[label] = len(self.labels)
            self.labels.append(label)
        return self.numbers[label]

    def _root(self, name: str) -> str:
        while name in self.seen:
            name = self.seen[name]
        return name

    @staticmethod
    def _plain(buffer: Buffer) -> str:
        return buffer.name.removesuffix(f".{buffer.spec.layout.name}")

    def _name(self, buffer: Buffer) -> str:
        return self._root(self._plain(buffer))

    def _at(self, buffer: Buffer) -> Any:
        return self._cells(buffer.region, buffer.offset, buffer.spec.nbytes)

    def _fill(self, buffer: Buffer, label: Label) -> None:
        self._at(buffer)[:] = self._number(label)

    def _span(self, region: str, bucket: Bucket) -> Any:
        return self._cells(region, bucket.span.start * self.item, len(bucket.span) * self.item)

    def _cells(self, region: str, offset: int, nbytes: int) -> Any:
        cells, stop = self.cells[region], -(-(offset + nbytes) // GRAIN)
        if offset % GRAIN or stop > len(cells):
            raise WrongReadError(f"{nbytes} bytes from {offset} on are not in {region}")
        return cells[offset // GRAIN : stop]


def _told(label: Label) -> str:
    name, version = label
    return f"{name} updated {version} times" if version else name


def _updated(node: Node) -> list[Tensor]:
    """What an operation changes."""
    pairs = zip(node.operation.inputs, node.inputs, strict=False)
    return [tensor for operand, tensor in pairs if operand.updated and tensor is not None]


def _is_of(entry: Entry, node: Node, read: list[str | None]) -> bool:
    """Whether an entry, which reads tensors of these names, is a node, or one and others behind it."""
    mine = [tensor.name if tensor else None for tensor in node.inputs]
    same = (entry.layer, entry.phase) == (node.layer, node.phase)
    named = entry.operation == node.operation.name or entry.operation.startswith(
        f"{node.operation.name}_"
    )
    return same and named and not node.operation.view and read[: len(mine)] == mine


def _aliases(entry: Entry, node: Node) -> set[tuple[int, int]]:
    """Which outputs, by number, may be where which inputs are."""
    if not entry.candidate.in_place:
        return set()
    inputs = [operand.name for operand in node.operation.inputs]
    outputs = [operand.name for operand in node.operation.outputs]
    return {(outputs.index(o), inputs.index(i)) for o, i in node.operation.aliases}


def _extent(buffer: Buffer, nbytes: int | None = None) -> tuple[str, int, int]:
    size = buffer.spec.nbytes if nbytes is None else nbytes
    return buffer.region, buffer.offset, buffer.offset + size


def _overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _buffers(entry: Entry) -> Iterator[Buffer]:
    yield from filter(None, (*entry.inputs, *entry.outputs))
