"""BSP: no worker continues before all gradients are summed and all parameters updated (sections III.C.2,
IV)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse import Bucket, FlatMemory, Group, Span, Team, Work
from demitasse_parameter_server.board import PATIENCE, SUMMED
from demitasse_parameter_server.gradient_sync import ThreadServer, compiled_for, is_outermost
from demitasse_parameter_server.options import Options

BUCKET_BYTES = 1 << 22

CACHE_LINE = 64


def slices(span: Span, count: int, item: int) -> list[Span]:
    """Cut a span into ``count`` parts of nearly equal length, at the edges of cache lines; the last may
    be empty."""
    step = max(1, CACHE_LINE // item)
    lines = -(-len(span) // step)
    edges = [min(span.stop, span.start + lines * i // count * step) for i in range(count + 1)]
    return [Span(start, stop) for start, stop in itertools.pairwise(edges)]


class BulkServer(ThreadServer):
    """The workers do the server's work: each sums its slice of all gradients, at the addresses of the
    other workers' memory, into the first worker's gradient memory, and updates that slice of the
    parameters, of which all workers share one copy.

    Sums are made in the order of workers. They have the same bits in every run, and equal one worker's
    gradients up to rounding. All workers meet when a bucket's gradients are final, and once more at the
    end of an iteration. A worker that is not the last to come calls ``meanwhile``, if this is set,
    before it waits (if each worker has a processor).
    """

    shares_parameters = True
    joined = False

    def __init__(self, group: Group, team: Team, options: Options) -> None:
        super().__init__(group, team, options)
        self.bucket_bytes = options.bucket_bytes or BUCKET_BYTES
        self.notes = (
            f"BSP: {self.size} workers with one copy of the parameters; each sums and updates its slice"
            if self.size > 1
            else "BSP: one worker, which updates all parameters",
        )
        self._item, self._calls = np.dtype(group.dtype).itemsize, 0
        # A level outside this one expects a worker's sums in the worker's own memory.
        self._holder = 0 if is_outermost(group) else self.index
        self.meanwhile: Callable[[Bucket], None] | None = None

    def bind(self, memory: FlatMemory) -> None:
        """Compile the loops now, not in the first step."""
        super().bind(memory)
        if self.size > 1:
            compiled_for(memory.gradients)

    def begin(self) -> Work | None:
        """Return work that looks up what siblings share now. With more siblings than processors, a
        sibling begins only when another one has come to its first gate, so that each computes in caches
        that no other sibling uses meanwhile."""
        if self.size == 1:
            return None
        self.bind_thread()
        if not self._behind(self.index):
            return self.begun
        from demitasse_parameter_server.loops import take_turn

        def work() -> None:
            self.begun()
            gate = self.shared.gate
            while not take_turn(gate, self.index, PATIENCE):
                self.board.check()

        return work

    def _behind(self, index: int) -> bool:
        """Return whether a sibling waits for its turn. This is never so if there are other processes:
        the processes agree that all siblings can continue before any of these comes to a gate."""
        machine = self._group.machine
        joined = machine is not None and any(level.workers == "mpi" for level in machine.levels)
        return self.crowded and not self.options.delay and not joined and index >= self.abreast

    def owned(self, span: Span) -> Span:
        """Return this worker's slice of a span."""
        return slices(span, self.size, self._item)[self.index] if self.size > 1 else span

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that waits for all siblings, and sums this worker's slice of their gradients."""
        if self.size == 1:
            return None
        from demitasse_parameter_server.loops import (
            BLOCK,
            SPIN,
            come_and_add,
            give_turn,
            wait_and_add,
        )

        part, memories = self.owned(span), self.team.memory
        offset = part.start * self._item
        addresses = np.array([each.gradients.ctypes.data + offset for each in memories], np.int64)
        target, count = int(addresses[self._holder]), len(part)
        room = np.empty(BLOCK, memories[0].gradients.dtype)
        size, spin, check, pace = self.size, 0 if self.crowded else SPIN, self.board.check, self.pace
        spent, sums = self.spent[0], (self.spent[0], addresses, target, count, room)
        following = self.index + self.abreast
        leads = bucket.index == 0 and following < size and self._behind(following)

        def work() -> None:
            start, summed, gate = pace.now(), int(spent[SUMMED]), self.shared.gate
            if leads:
                give_turn(gate, following)
            meanwhile = None if self.crowded else self.meanwhile  # crowded: another needs the processor
            ended = come_and_add(gate, size, spin, 0 if meanwhile else PATIENCE, *sums)
            if meanwhile and ended >= 0:
                meanwhile(bucket)
                ended = wait_and_add(gate, ended, spin, PATIENCE, *sums)
            while ended >= 0:
                check()
                ended = wait_and_add(gate, ended, 0, PATIENCE, *sums)
            pace.waited(start + (int(spent[SUMMED]) - summed) * 1e-9)

        return work

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """Return the shared parameters and state, and the gradients that hold the sums."""
        sums = self.team.memory[self._holder].gradients
        return FlatMemory(memory.parameters, sums, memory.state)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that sums numbers over the workers, in their order: each updates a slice, but
        needs the norm of the whole gradient."""
        if self.size == 1:
            return None
        call, meet = self._calls, self.meeting()
        self._calls += 1

        def boards() -> Any:
            return np.zeros((2, self.size, int(np.size(mine)))), [0] * self.size

        def add() -> None:
            # Rounds are counted from the last failure, which may have come between two siblings' counts.
            both, rounds = self.shared.kept(("total", call), boards)
            there = both[rounds[self.index] & 1]
            there[self.index] = np.ravel(mine)
            meet()
            # Two boards in turn: a late sibling still reads the one that is not written in the next
            # round.
            rounds[self.index] += 1
            total[...] = np.add.accumulate(there, axis=0)[-1].reshape(np.shape(total))

        return add

    def end(self) -> Work | None:
        """Return work that waits until all slices are updated: then parameters may be read, and
        gradients written."""
        if self.size == 1:
            return None
        meet = self.meeting()

        def work() -> None:
            self.pace.ended()
            meet()

        return work
