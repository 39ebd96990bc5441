"""Summing gradients along a tree of domains, and copying parameters back the same way (section 4.2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    FlatMemory,
    GradientSync,
    Group,
    Span,
    Team,
    Work,
    check_host_memory,
    check_sync_options,
    process_lock,
    sync_place,
    unknown,
)
from demitasse_numa.tree import Tree, parts

OPTIONS = ("arity", "root", "bucket_bytes")
ROOTS = ("spread", "first")
PATIENCE = 50_000
"""Microseconds of waiting after which a thread checks whether a sibling failed."""

GENERATION = 1 << 32
BUCKET_BYTES = 1 << 20
"""Bytes up to which gradients of neighbouring layers are summed together, for fewer hand-overs."""


class Row(NamedTuple):
    """One step of a walk, for the part whose root is ``root``: what to do (``kind``), the domain whose
    hand-over to wait for (None: no wait), the domain whose memory to read (``whose``), and whether to
    announce that it is done (``tells``)."""

    kind: int
    root: int
    waits: int | None
    whose: int
    part: Span
    tells: bool


class Board:
    """What the siblings of a team share: a flag for each hand-over of each bucket, and numbers that are
    summed."""

    def __init__(self, team: Team) -> None:
        self.size = team.size
        self._lock = threading.Lock()
        self._flags: dict[tuple[int, int, int], Any] = {}
        self._totals: dict[tuple[int, int], Any] = {}

    def flags(self, bucket: Bucket, span: Span, slots: int) -> Any:
        """Return the flags of a bucket's part; all siblings get the same array."""
        from demitasse_numa.loops import LINE

        with self._lock:
            key = (bucket.index, span.start, span.stop)
            if key not in self._flags:
                self._flags[key] = np.zeros(slots * LINE, np.int64)
            return self._flags[key]

    def totals(self, count: int, call: int) -> Any:
        """Return two boards with ``count`` numbers for each sibling: one for even rounds, one for odd
        ones."""
        with self._lock:
            empty = np.zeros((2, self.size, count))
            return self._totals.setdefault((call, count), empty)


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Board] = WeakKeyDictionary()


def _shared(team: Team) -> Board:
    with _LOCK:
        return _TEAMS.setdefault(team, Board(team))


class DomainTree(GradientSync):
    """Sums gradients along a tree of domains, each of which has its own parameters and gradients. A
    parent waits for its children, adds their gradients to its own and tells its parent. The root
    updates, and each child copies the parameters from its parent.

    With ``root = "spread"`` each domain is the root of a part of the parameters, so that all domains
    add, update and read from others at the same time. With ``"first"``, domain 0 is the root of all, as
    in the paper. Sums are made in the same order in every run, and have the same bits. Raises
    CompositionError for siblings in other processes, DescriptionError for an unknown option."""

    bucket_bytes = BUCKET_BYTES

    def __init__(self, group: Group) -> None:
        where = sync_place(group)
        check_sync_options(group, OPTIONS)
        self.arity = _whole(group, "arity", 2, where)
        self.bucket_bytes = _whole(group, "bucket_bytes", BUCKET_BYTES, where)
        root = group.options.get("root", "spread")
        if root not in ROOTS:
            raise DescriptionError(unknown("root", str(root), ROOTS, f"{where}: sync"))
        if group.team is None or group.remote:
            raise CompositionError(
                f"{where}: plugin 'numa' synchronises the domains of one machine, which are threads of "
                f"one process, but the siblings here are other processes: name a plugin in the sync "
                f"that synchronises processes"
            )
        self.spread = root == "spread"
        self.team, self.index, self.size = group.team, group.index, group.team.size
        self.board = _shared(group.team)
        self._group, self._calls = group, 0
        self._spans: list[Span] = []
        if self.size > 1:
            roots = "each the root of an equal part" if self.spread else "the first the root of all"
            self.notes = (f"{self.size} domains add along a tree of arity {self.arity}, {roots}",)

    def bind(self, memory: FlatMemory) -> None:
        """Compile the loops now, not in the first step."""
        if self.size > 1 and memory.gradients.size:
            check_host_memory(self._group, memory, "numa")
            from demitasse_numa.loops import walk

            none = np.zeros((0, 6), np.int64)
            walk(none, 0, np.zeros(1, np.int64), 0, 0, memory.gradients)

    def owned(self, span: Span) -> Span:
        """Return the part of a span that this domain is the root of."""
        return parts(span, self.size, self.spread)[self.index] if self.size > 1 else span

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that adds the children's gradients to this domain's and tells the parents. The
        trees in which this domain is highest come last."""
        self._spans.append(span)
        return self._walk(bucket, span, list(self._sums(span)), "gradients", 0)

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that copies the parameters of the other roots' parts from the parents and tells
        the children. A parent may continue meanwhile: it changes parameters again only after the next
        reduce, to which all of its children must have contributed."""
        return self._walk(bucket, span, list(self._copies(span)), "parameters", 1)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that sums numbers over domains, in the order of indices, for an update that needs
        the norm of the whole gradient."""
        if self.size == 1:
            return None
        index, team, barrier = self.index, self.team, self.team.barrier
        boards = self.board.totals(int(np.size(mine)), self._calls)
        self._calls += 1
        rounds, failures = 0, team.failures

        def add() -> None:
            nonlocal rounds, failures
            if failures != team.failures:  # only some siblings may have counted the round that failed
                rounds, failures = 0, team.failures
            there = boards[rounds & 1]
            there[index] = np.ravel(mine)
            barrier.wait()
            # Two boards in turn: a late sibling still reads the one that is not written in the next
            # round.
            rounds += 1
            total[...] = np.add.reduce(there, axis=0).reshape(np.shape(total))

        return add

    def quiesce(self) -> None:
        """Copy to domain 0 the solver's state of the parts that other domains update."""
        if self.index > 0 or self.size == 1:
            return
        for root, part in (each for span in self._spans for each in self._parts(span) if each[0] > 0):
            for name, array in self.team.memory[0].state.items():
                array[part.start : part.stop] = self.team.memory[root].state[name][
                    part.start : part.stop
                ]

    def costs(self, bucket: Bucket, span: Span) -> tuple[float, float]:
        """Return the seconds of a reduce and of a distribute on the machine that the group's level
        describes."""
        from demitasse_numa.costs import exchange

        item = np.dtype(self._group.dtype).itemsize
        if self._group.machine is None or self.size == 1:
            return 0.0, 0.0
        level = self._group.machine.level(self._group.levels[-1])
        divided = len(parts(span, self.size, self.spread)[0]) < len(span)
        return exchange(level, len(span) * item, self.size, self.arity, divided)

    def _sums(self, span: Span) -> Iterator[Row]:
        from demitasse_numa.loops import ADD, NOTHING

        trees = [(r, Tree(self.size, self.arity, r), part) for r, part in self._parts(span)]
        for root, tree, part in sorted(trees, key=lambda each: (each[1].height(self.index), each[0])):
            children, told = tree.children(self.index), tree.parent(self.index) is not None
            for child in children:
                last = child == children[-1]
                yield Row(ADD, root, child, child, part, last and told)
            if not children and told:
                yield Row(NOTHING, root, None, self.index, part, True)

    def _copies(self, span: Span) -> Iterator[Row]:
        from demitasse_numa.loops import COPY, NOTHING

        trees = [(r, Tree(self.size, self.arity, r), part) for r, part in self._parts(span)]
        depth = {r: _depth(tree, self.index) for r, tree, _ in trees}
        for root, tree, part in sorted(trees, key=lambda each: (depth[each[0]], each[0])):
            parent = tree.parent(self.index)
            if parent is None:
                yield Row(NOTHING, root, None, self.index, part, True)
            else:
                yield Row(COPY, root, parent, parent, part, True)

    def _parts(self, span: Span) -> list[tuple[int, Span]]:
        return [(r, part) for r, part in enumerate(parts(span, self.size, self.spread)) if part]

    def _walk(
        self, bucket: Bucket, span: Span, rows: Sequence[Row], memory: str, first: int
    ) -> Work | None:
        """Return work that does the rows, as a compiled walk over a table of addresses and flags."""
        if self.size == 1 or not rows:
            return None
        from demitasse_numa.loops import walk

        size, team, barrier = self.size, self.team, self.team.barrier
        arrays = [getattr(each, memory) for each in self.team.memory]
        flags = self.board.flags(bucket, span, 2 * size * size)
        mine, item = arrays[self.index], arrays[self.index].itemsize
        table = np.empty((len(rows), 6), np.int64)
        for i, (kind, root, waits, whose, part, tells) in enumerate(rows):
            flag = (first * size + root) * size
            source, target = (array.ctypes.data + part.start * item for array in (arrays[whose], mine))
            waited, told = -1 if waits is None else flag + waits, flag + self.index if tells else -1
            table[i] = kind, waited, source, target, len(part), told
        failures, count = team.failures, 0

        def run() -> None:
            nonlocal failures, count
            if failures != team.failures:  # hand-overs from before a failure do not count
                failures, count = team.failures, 0
            count, row = count + 1, 0
            value = failures * GENERATION + count
            while not barrier.broken:
                row = walk(table, row, flags, value, PATIENCE, mine)
                if row == len(table):
                    return
            raise threading.BrokenBarrierError

        return run


def _depth(tree: Tree, index: int) -> int:
    parent = tree.parent(index)
    return 0 if parent is None else 1 + _depth(tree, parent)


def _whole(group: Group, key: str, default: int, where: str) -> int:
    value = group.options.get(key, default)
    if type(value) is not int or value < 1:
        raise DescriptionError(f"{where}: sync: {key} = {value!r} (valid: a whole number, 1 or more)")
    return value
