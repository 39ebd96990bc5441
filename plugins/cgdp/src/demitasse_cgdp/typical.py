"""Typical data parallelism (section 2.3), to compare: accelerator 0 collects, updates, broadcasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from demitasse import (
    Bucket,
    FlatMemory,
    GradientSync,
    Group,
    Span,
    StreamEngine,
    Team,
    Work,
    WorkerError,
)
from demitasse_cgdp.board import Board, board_of, check_all
from demitasse_cgdp.exchange import merged, told_of


def pairs(count: int) -> list[tuple[int, int]]:
    """Return the (parent, child) pairs of the tree, as BVLC/Caffe pairs accelerators: first neighbours,
    then the remaining ones, until one is left. Parents collect from their children."""
    found, left = list[tuple[int, int]](), list(range(count))
    while len(left) > 1:
        found += list(zip(left[::2], left[1::2], strict=False))
        left = left[::2]
    return found


class TreeBoard(Board):
    """What accelerators have sent along the tree: gradients to parents (``collected``) and parameters to
    children (``given``). Each is a line of events by child: points in the sender's stream behind the
    copies. ``room`` is each child's memory for gradients on its parent's accelerator, as many bytes as
    the parameters."""

    def __init__(self, team: Team) -> None:
        super().__init__(team)
        self.memory: dict[int, FlatMemory] = {}
        self.room: dict[int, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Empty all lines: nothing is on its way."""
        self.collected = {i: deque[Any]() for i in range(self.size)}
        self.given = {i: deque[Any]() for i in range(self.size)}

    def tell(self, line: deque[Any], event: Any) -> None:
        """Append an event to a line, and wake whoever waits for it."""
        with self.changed:
            line.append(event)
            self.changed.notify_all()

    def take(self, line: deque[Any]) -> Any:
        """Wait for the next event of a line, and return it."""
        self.wait(lambda: bool(line))
        return line.popleft()


class TypicalSync(GradientSync):
    """The replica of one accelerator: steps T-1 to T-5, along BVLC/Caffe's tree.

    After backward, a parent waits for each child's gradients, adds them to its own on its accelerator,
    and copies the sum to its own parent's accelerator. Accelerator 0 updates (T-3, T-4). When the next
    iteration begins, parameters go down the same tree (T-5). Sums are made in the order of the tree, so
    every run gives the same bits. Everything is in the default stream, so nothing overlaps.
    """

    joined = False

    def __init__(self, group: Group, team: Team, engine: StreamEngine) -> None:
        self.index, self.size, self.team, self.engine = group.index, team.size, team, engine
        self.board = board_of(team, lambda: TreeBoard(team))
        tree = pairs(self.size)
        self.children = [child for parent, child in tree if parent == self.index]
        self.parent = next((parent for parent, child in tree if child == self.index), None)
        self._failures = team.failures
        self._whole, self._scheduled = list[Span](), set[int]()
        self._chains: list[Work] = []
        self._done: list[tuple[str, Any, Any]] = []
        self._last: list[tuple[str, Any, Any]] = []

    # The hooks of a step.

    def bind(self, memory: FlatMemory) -> None:
        """Take the replica's memory, and allocate room here for each child's gradients."""
        self.memory = self.board.memory[self.index] = memory
        for child in self.children:
            self.board.room[child] = memory.gradients.copy()
        tree = ", ".join(f"{parent} from {child}" for parent, child in pairs(self.size))
        size = memory.gradients.nbytes
        self.notes = (
            f"typical: accelerator 0 adds up, updates and broadcasts, as {tree}",
            f"{size:,} bytes on an accelerator for each it collects from, {len(self.children)} here",
        )

    def owned(self, span: Span) -> Span:
        """Return the whole span on accelerator 0, and nothing elsewhere."""
        return span if self.index == 0 else Span(span.start, span.start)

    def begin(self) -> Work | None:
        """Take the parameters from the parent, and pass them to the children (T-5)."""
        return self._begin if self.size > 1 else None

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Add the children's gradients, and send the sum to the parent (T-3): together with all other
        buckets once backward is over, or at once if gradients are measured before any update."""
        if self.size == 1:
            return None

        def work() -> None:
            if bucket.index not in self._scheduled:
                self._collect([span])

        self._whole = merged([*self._whole, span])
        return work

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Return the work that puts the chain off until backward is over."""
        if self.size == 1:
            return chain
        self._scheduled.add(bucket.index)
        return lambda: self._chains.append(chain)

    def end(self) -> Work | None:
        """Collect all gradients, then run the chains: accelerator 0 updates (T-3, T-4)."""
        return self._end if self.size > 1 else None

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return None: accelerator 0 has whole gradients, so what it measured is the total, and nobody
        else updates."""
        return None

    def quiesce(self) -> None:
        """Send the parameters down the tree now (T-5), because each replica tests with its own. Replicas
        are asked in turn, parents before their children. After a failed iteration this does nothing, and
        the next iteration starts afresh."""
        if self.size > 1 and self._failures == self.team.failures:
            self._hand_down()

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """Return (name, start, stop) of the last iteration's copies and sums (``time.perf_counter``)."""
        last = self._last
        for _, _, stop in last:
            stop.wait()
        return [(name, start.seconds, stop.seconds) for name, start, stop in last]

    # How the hooks do it.

    def _begin(self) -> None:
        if self._failures != self.team.failures:
            self._recover()
        self._chains.clear()
        self._done.clear()
        self._hand_down()

    def _hand_down(self) -> None:
        default, board, count = self.engine.default, self.board, self.memory.gradients.size
        if self.parent is not None:
            default.wait(board.take(board.given[self.index]))
        for child in reversed(self.children):  # the child with the most children first
            start = default.record()
            self._copy(board.memory[child].parameters[:count], self.memory.parameters[:count], child)
            board.tell(board.given[child], self._noted(f"broadcast to {child}", start))

    def _collect(self, spans: Sequence[Span]) -> None:
        default, board, mine = self.engine.default, self.board, self.memory.gradients
        for child in self.children:
            default.wait(board.take(board.collected[child]))
            start, room = default.record(), board.room[child]
            for span in spans:
                target = mine[span.start : span.stop]
                target += room[span.start : span.stop]
            self._noted(f"accumulate from {child}", start)
        if self.parent is not None:
            start, room = default.record(), board.room[self.index]
            for span in spans:
                self._copy(room[span.start : span.stop], mine[span.start : span.stop], self.parent)
            board.tell(board.collected[self.index], self._noted(f"collect to {self.parent}", start))

    def _copy(self, target: Any, source: Any, other: int) -> None:
        try:
            self.engine.default.copy(target, source)
        except Exception as error:
            which = f"replica {self.index}: a copy from its accelerator to that of replica {other}"
            raise WorkerError(f"{which} failed: {told_of(error, self.engine)}") from error

    def _noted(self, name: str, start: Any) -> Any:
        """Record this point in the default stream, keep it for the timeline, and return it."""
        stop = self.engine.default.record()
        self._done.append((name, start, stop))
        return stop

    def _end(self) -> None:
        check_all(len(self._chains), len(self._scheduled))
        if self._chains:
            self._collect(self._whole)
        for chain in self._chains:
            chain()
        # A sibling that ends this iteration later asks for spans when this replica may have begun the
        # next.
        self._last = self._done.copy()

    def _recover(self) -> None:
        """Start afresh after a failed iteration, together with the siblings, once nothing of it is on
        its way."""
        self._failures = self.team.failures
        self.engine.default.synchronise()
        self.team.barrier.wait()
        if self.index == 0:
            self.board.reset()
        self.team.barrier.wait()
