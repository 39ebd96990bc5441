"""Norms of whole gradients, which some updates need before they can begin: for clipping by the global
norm, and for rates per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import (
    Allocator,
    FlatMemory,
    GradientSync,
    Kernels,
    ModelError,
    Plan,
    Runtime,
    Solver,
    Span,
    Work,
)
from demitasse.operations import Operation
from demitasse_training.update import flat_work, within

SQUARES = "squares"


class Norms:
    """Measures the gradients and parameters of one worker in float64, bucket by bucket as they become
    final, and adds up what siblings own. From the result it computes ``scale``, by which a solver's
    ``clip`` shortens the gradient: 1, or the number that brings its norm down to ``clip``.

    ``factor`` multiplies each gradient in any case.

    There are two numbers for each trained parameter: the sums of squares of its values and of its
    gradient. Raises ModelError if no composed plugin defines the operation that computes them.
    """

    def __init__(
        self,
        runtime: Runtime,
        solver: Solver,
        plan: Plan,
        levels: Sequence[GradientSync],
        allocator: Allocator,
        factor: float = 1.0,
    ) -> None:
        if SQUARES not in runtime.vocabulary:
            raise ModelError(
                f"{solver.location}: the update needs the sizes of gradients (operation {SQUARES!r}), "
                f"which no composed plugin defines"
            )
        self._word: Operation = runtime.vocabulary[SQUARES]
        self._plan, self._levels, self._clip = plan, levels, solver.clip
        self._factor = factor
        self._slots = [slot for slot in plan.slots if slot.trainable]
        numbers, item = 2 * len(self._slots), np.dtype(np.float64).itemsize

        def take(count: int) -> Any:
            return allocator.allocate(max(1, count) * item).view(0, (count,), "float64")

        self._mine = take(numbers)
        self._totals = [take(numbers) for _ in levels]
        self._result, self.scale = self._mine, take(1)
        self.scale[...] = factor

    def measure(self, span: Span, flat: FlatMemory, kernels: Kernels, allocator: Allocator) -> Work:
        """Return the work that measures ``span`` once its gradients are final."""
        part, segments = slice(span.start, span.stop), []
        for start, stop, slot in within(self._slots, span):
            end = slot.span.start + math.prod(slot.spec.physical) - span.start  # without alignment
            segments.append((start, max(start, min(stop, end)), slot.rate, slot.decay))
        operands = [flat.parameters[part], flat.gradients[part], self._mine[self._numbers(span)]]
        attributes = {"segments": tuple(segments)}
        return flat_work(self._word, attributes, operands, self._plan, kernels, allocator)

    def works(self) -> list[Work]:
        """Return the works after all spans are measured: the sums over siblings, and the scale."""
        mine, spans, works = self._mine, [bucket.span for bucket in self._plan.buckets], list[Work]()
        for level, total in zip(self._levels, self._totals, strict=True):
            if any(spans):
                work = level.total(mine, total)
                if work is not None:
                    works.append(work)
                    mine = total
                spans = [level.owned(span) for span in spans]
        self._result = mine
        return [*works, self._set_scale] if self._clip else works

    def sizes(self, span: Span) -> dict[str, Any]:
        """Return operands for the update of ``span``, by name: the squares of the parameters that it
        overlaps and, if gradients are clipped or have a ``factor``, the scale."""
        clip = {"scale": self.scale} if self._clip or self._factor != 1.0 else {}
        return {"squares": self._result[self._numbers(span)], **clip}

    def _numbers(self, span: Span) -> slice:
        inside = [self._slots.index(slot) for _, _, slot in within(self._slots, span)]
        return slice(2 * inside[0], 2 * inside[-1] + 2)

    def _set_scale(self) -> None:
        norm = self._factor * math.sqrt(float(np.asarray(self._result)[1::2].sum()))
        self.scale[0] = self._factor * (self._clip / norm if norm > self._clip else 1.0)
