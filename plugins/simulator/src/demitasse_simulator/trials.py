"""A kernel called alone, on memory of its own, as it would be in a step."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import PLAIN, Allocator, Candidate, Memory, Request, TensorSpec

ALIGNMENT = 64
CALLS = 300
"""At most, after one that is not counted; the quickest counts, since others on the machine only add."""

SECONDS = 0.4
"""Within which there is another call, unless the quickest ones agree."""

AGREE, ALIKE, LEAST = 3, 1.03, 0.03
"""So many of the quickest calls within this ratio are taken for undisturbed, once calls have gone on for
so many seconds: those that a busy system cuts short agree too, on the length of its time slices."""


class Bench:
    """Times candidates on memory of an allocator. Between calls it reads ``evict`` bytes of its own, so
    that operands are where a step that moves as many would have left them: not in the caches."""

    def __init__(
        self,
        allocator: Allocator,
        evict: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._allocator, self._clock = allocator, clock
        self._block: Memory | None = None
        self._other = np.ones(evict // 8) if evict else None
        self.disturbed = False
        """Whether the last one's quickest calls did not agree."""

    def seconds(self, request: Request, candidate: Candidate) -> float:
        """Of one call, the quickest of a few; of one that is made in parts, so many times the quickest
        part. Raises MemoryError."""
        work = self._bound(request, candidate)
        times = candidate.parts if candidate.bind_part is not None else 1
        work()
        found: list[float] = []
        begun = self._clock()
        while len(found) < CALLS:
            if self._other is not None:
                self._other.sum()
            start = self._clock()
            work()
            now = self._clock()
            found.append(now - start)
            quickest, spent = sorted(found)[:AGREE], now - begun
            alike = quickest[-1] <= ALIKE * quickest[0]
            if len(quickest) == AGREE and (spent > SECONDS or (alike and spent > LEAST)):
                break
        self.disturbed = quickest[-1] > ALIKE * quickest[0]
        return times * min(found)

    def copies(self, nbytes: int = 64 * 2**20) -> float:
        """Bytes a second that copies read and write."""
        source, target = np.ones(nbytes // 8), np.ones(nbytes // 8)
        best = float("inf")
        for _ in range(5):
            start = self._clock()
            target[...] = source
            best = min(best, self._clock() - start)
        return 2 * nbytes / best

    def close(self) -> None:
        """Give the memory back."""
        if self._block is not None:
            self._block.close()
            self._block = None

    def end(self) -> None:
        """Give all memory back; there are no more trials."""
        self.close()
        self._other = None
        gc.collect()  # works may hold their arrays in circles

    def _bound(self, request: Request, candidate: Candidate) -> Callable[[], None]:
        specs = wanted(request, candidate)
        offsets, size = [], 0
        for spec in specs:
            offsets.append(size)
            size += 0 if spec is None else -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        whole = max(ALIGNMENT, size + candidate.workspace)
        if self._block is None or self._block.nbytes < whole:
            self.close()
            self._block = self._allocator.allocate(whole)
        block = self._block
        arrays = [
            None if spec is None else block.view(offset, spec.physical, spec.array_type)
            for spec, offset in zip(specs, offsets, strict=True)
        ]
        for i, array in enumerate(arrays):
            if array is not None:
                _fill(array, specs[i], i < len(request.inputs) and _counts(request, i))
        workspace = None
        if candidate.workspace:
            workspace = block.view(size, (candidate.workspace,), "uint8")
            workspace[...] = 0
        count = len(request.inputs)
        inputs, outputs = arrays[:count], arrays[count:]
        if candidate.parts == 1 or candidate.bind_part is None:
            return candidate.bind(inputs, outputs, workspace)
        first: Any = outputs[0]
        stretch = first.reshape(-1)[: first.size // candidate.parts]
        return candidate.bind_part(0, inputs, [stretch, *outputs[1:]], workspace)


def wanted(request: Request, candidate: Candidate) -> list[TensorSpec | None]:
    """The operands in the layouts that a candidate asks for."""
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


def _counts(request: Request, i: int) -> bool:
    """Whether an input holds classes or counts, for which 0 is always valid."""
    operands = request.operation.inputs
    return operands[min(i, len(operands) - 1)].name == "label"


def _fill(array: Any, spec: TensorSpec | None, counts: bool) -> None:
    """Small numbers in no order, so that nothing overflows and nothing is skipped as zero."""
    if spec is None or counts or array.dtype.kind != "f":
        # The bits of bfloat16 lie in unsigned numbers: 0x3C00 is 2^-7.
        array[...] = 0x3C00 if spec is not None and spec.stored == "bfloat16" else 0
        return
    flat = array.reshape(-1)
    pattern = ((np.arange(4096) * 40503 % 4096) / 4096.0 - 0.4).astype(array.dtype)
    whole = flat.size // pattern.size * pattern.size
    flat[:whole].reshape(-1, pattern.size)[...] = pattern
    flat[whole:] = pattern[: flat.size - whole]
