"""Timing a kernel alone, on memory of its own, as it would run in a step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from demitasse import PLAIN, Allocator, Candidate, Memory, Request, TensorSpec, waits_for_cores

ALIGNMENT = 64
CALLS = 300
"""The most calls, after one that does not count. The fastest counts, because other load on the machine
only adds time."""

SECONDS = 0.4
"""Seconds within which calls are repeated, unless the fastest ones agree."""

AGREE, ALIKE, LEAST = 3, 1.03, 0.03
"""If the AGREE fastest calls differ by no more than the ratio ALIKE, they count as undisturbed, but
only after LEAST seconds of calls: calls that a busy system interrupts agree too, on the length of its
time slices."""

WAITED, SETTLED = 0.02, 2e-5
"""A call is not quiet if a thread of the process was ready to run but waited for a core, for more than
the share WAITED of the call and for more than SETTLED seconds, which waking up takes. Agreement between
calls is not enough: beside a process that always runs, all calls take twice their time, and agree."""

PATIENCE = 1.0
"""The most seconds of calls if too few were quiet."""

COLD = 3
"""Operands of updates are reused only after other operands of this many times the bytes that are read
between calls, so that the caches no longer hold them."""

WHOLE = ("label", "index", "place", "regions", "steps", "lengths")
"""The names of operands that hold whole numbers, in every vocabulary here: classes (and objects), rows,
places, regions of images, and numbers of steps or places."""

Parts = tuple[float, ...]


class Bench:
    """Times candidates on memory of an allocator. Between calls it reads ``evict`` bytes of its own, so
    that operands are not in the caches, as in a step that moves that many bytes."""

    def __init__(
        self,
        allocator: Allocator,
        evict: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        waits: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self._allocator, self._clock, self._waits = allocator, clock, waits or waits_for_cores
        self._block: Memory | None = None
        self._other = np.ones(evict // 8) if evict else None
        self.disturbed = False
        """Whether the last trial had too few quiet calls, or its fastest calls did not agree."""

    def seconds(self, request: Request, candidate: Candidate) -> float:
        """Return the seconds of one call, the fastest of several. Raises MemoryError."""
        specs, count = wanted(request, candidate), len(request.inputs)
        arrays, (workspace,) = self._arrays(specs, [candidate.workspace], _counts(request))
        work, clock = candidate.bind(arrays[:count], arrays[count:], workspace), self._clock

        def call() -> Parts:
            start = clock()
            work()
            return (clock() - start,)

        return self._quickest(call)[0]

    def in_parts(
        self, request: Request, candidate: Candidate, update: Request, updating: Candidate
    ) -> tuple[float, float]:
        """Return the seconds of all parts of a gradient together, and of all updates that follow them.
        As in a step, the parts are made in turn in the same place, where an update finds them in the
        caches; what it updates is not in the caches. ``update`` is the update of one part. Raises
        MemoryError."""
        assert candidate.bind_part is not None
        elements = max(s.shape[0] for s in update.inputs if s is not None)
        specs, count = wanted(request, candidate), len(request.inputs)
        made = TensorSpec((elements,), given(specs[count]).dtype)
        operands = wanted(update, updating)
        own = [i for i, o in enumerate(update.operation.inputs) if o.name != "gradient"]
        turn = [operands[i] for i in own]
        moved = sum(s.nbytes for s in turn if s is not None)
        evicted = 0 if self._other is None else self._other.nbytes
        turns = min(candidate.parts, -(-COLD * evicted // moved)) if evicted else candidate.parts
        several = [*specs[:count], made, *specs[count + 1 :], *turn * turns]
        rooms = [candidate.workspace, updating.workspace]
        arrays, (workspace, other) = self._arrays(several, rooms, _counts(request))
        gradient, works = arrays[count], []
        for number in range(candidate.parts):
            first = len(specs) + number % turns * len(own)
            taken = dict(zip(own, arrays[first : first + len(own)], strict=True))
            inputs = [taken.get(i, gradient) for i in range(len(operands))]
            part = candidate.bind_part(number, arrays[:count], arrays[count : len(specs)], workspace)
            works.append((part, updating.bind(inputs, [], other)))
        clock = self._clock

        def call() -> Parts:
            parts = updates = 0.0
            for part, renew in works:
                start = clock()
                part()
                middle = clock()
                renew()
                parts, updates = parts + middle - start, updates + clock() - middle
            return parts, updates

        parts, updates = self._quickest(call)
        return parts, updates

    def _quickest(self, call: Callable[[], Parts]) -> Parts:
        """Return the times within the fastest of several quiet calls. If no call was quiet, return the
        median of what calls would have taken if their threads had not waited for a core."""
        call()
        quiet, all_calls = list[Parts](), list[tuple[float, Parts]]()
        begun, best = self._clock(), list[float]()
        before = self._waits()
        while len(all_calls) < CALLS:
            if self._other is not None:
                self._other.sum()
                before = self._waits()
            times = call()
            now = self._waits()
            waited = max((spent - before.get(thread, 0.0) for thread, spent in now.items()), default=0.0)
            before = now
            all_calls.append((waited, times))
            if waited <= max(WAITED * sum(times), SETTLED):
                quiet.append(times)
                best = sorted([*best, sum(times)])[:AGREE]
            spent = self._clock() - begun
            alike = len(best) == AGREE and best[-1] <= ALIKE * best[0]
            enough = SECONDS if len(best) == AGREE else PATIENCE
            if len(all_calls) >= AGREE and (spent > enough or (alike and spent > LEAST)):
                break
        self.disturbed = not alike
        if quiet:
            return min(quiet, key=sum)
        shares = [max(0.0, 1 - waited / sum(times)) for waited, times in all_calls]
        free = [
            tuple(t * share for t in times) for share, (_, times) in zip(shares, all_calls, strict=True)
        ]
        return sorted(free, key=sum)[len(free) // 2]

    def copies(self, nbytes: int = 64 * 2**20) -> float:
        """Return the bytes per second that copies read and write together."""
        source, target = np.ones(nbytes // 8), np.ones(nbytes // 8)
        best = float("inf")
        for _ in range(5):
            start = self._clock()
            target[...] = source
            best = min(best, self._clock() - start)
        return 2 * nbytes / best

    def close(self) -> None:
        """Free the memory for operands."""
        if self._block is not None:
            self._block.close()
            self._block = None

    def end(self) -> None:
        """Free all memory; no trial can follow."""
        self.close()
        self._other = None
        gc.collect()  # works may hold their arrays in reference cycles

    def _arrays(
        self, specs: Sequence[TensorSpec | None], rooms: Sequence[int], counts: Container[int]
    ) -> tuple[list[Any], list[Any]]:
        """Return filled operands in the bench's memory, and workspaces of the sizes ``rooms`` in bytes.
        ``counts`` has the positions of operands that hold classes or counts."""
        sizes = [0 if spec is None else spec.nbytes for spec in specs] + list(rooms)
        offsets = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
        whole = max(ALIGNMENT, offsets[-1])
        if self._block is None or self._block.nbytes < whole:
            self.close()
            self._block = self._allocator.allocate(whole)
        block = self._block
        arrays = [
            None if spec is None else block.view(offset, spec.physical, spec.array_type)
            for spec, offset in zip(specs, offsets, strict=False)
        ]
        for i, array in enumerate(arrays):
            if array is not None:
                _fill(array, specs[i], i in counts)
        places = zip(rooms, offsets[len(specs) :], strict=False)
        spaces = [block.view(offset, (room,), "uint8") if room else None for room, offset in places]
        for space in spaces:
            if space is not None:
                space[...] = 0
        return arrays, spaces


def wanted(request: Request, candidate: Candidate) -> list[TensorSpec | None]:
    """Return the operands of a request in the layouts that a candidate requires."""
    found: list[TensorSpec | None] = []
    sides: Sequence[tuple[Any, Any]] = (
        (request.inputs, candidate.input_layouts),
        (request.outputs, candidate.output_layouts),
    )
    for specs, layouts in sides:
        for i, spec in enumerate(specs):
            layout = layouts[i] if layouts else PLAIN
            found.append(None if spec is None else replace(spec, layout=layout))
    return found


def given(spec: TensorSpec | None) -> TensorSpec:
    """Return an operand that the operation always has."""
    assert spec is not None
    return spec


def _counts(request: Request) -> set[int]:
    """Return the inputs that hold whole numbers although their type is a real one. 0 is always valid in
    them."""
    operands, last = request.operation.inputs, len(request.operation.inputs) - 1
    return {i for i in range(len(request.inputs)) if operands[min(i, last)].name in WHOLE}


def _fill(array: Any, spec: TensorSpec | None, counts: bool) -> None:
    """Fill an array with small numbers in no particular order, so that nothing overflows and nothing is
    skipped as zero."""
    if spec is None or counts or array.dtype.kind != "f":
        # bfloat16 is stored as unsigned integers: 0x3C00 is 2^-7.
        array[...] = 0x3C00 if spec is not None and spec.stored == "bfloat16" else 0
        return
    flat = array.reshape(-1)
    pattern = ((np.arange(4096) * 40503 % 4096) / 4096.0 - 0.4).astype(array.dtype)
    whole = flat.size // pattern.size * pattern.size
    flat[:whole].reshape(-1, pattern.size)[...] = pattern
    flat[whole:] = pattern[: flat.size - whole]
