"""What a worker's forward passes change of its parameters, such as running means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demitasse import Buffer, Graph, Memory, Plan, Slot, Span, Tensor
from demitasse_training.shared_parameters import SharedParameters


def changed_parameters(graph: Graph, plan: Plan) -> list[Buffer]:
    """Where they lie, in the order in which a pass comes to them. The plan's entries do not tell: of two
    operations that a kernel does as one the vocabulary has no word."""
    slots = {owner: slot for slot in plan.slots for owner in slot.owners}
    lying: dict[Tensor | None, Slot] = {p.tensor: slots[p.owners[0]] for p in graph.parameters}
    item, found = np.dtype(plan.dtype).itemsize, dict[int, Buffer]()
    for node in graph.nodes:
        if node.operation.view and (seen := lying.get(node.inputs[0])) is not None:
            lying[node.outputs[0]] = seen
        for operand, tensor in zip(node.operation.inputs, node.inputs, strict=False):
            if operand.updated and tensor is not None and (slot := lying.get(tensor)) is not None:
                offset = slot.span.start * item
                found[offset] = Buffer(tensor.name, slot.spec, "parameters", offset)
    return list(found.values())


class Statistics:
    """The ``buffers`` of the parameters' ``memory``, as ``arrays``, and as they were, in memory that
    ``allocate`` gives. ``flat`` are all parameters, by ``spans``: what lies side by side is copied at
    once, and nothing leaves the device that it is on. ``others`` are the spans of those that no pass
    changes."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        memory: Memory,
        flat: Any,
        spans: Sequence[Span],
        allocate: Callable[[int], Memory],
    ) -> None:
        self._buffers, self._memory = buffers, memory
        self.arrays = [memory.view(b.offset, b.spec.physical, b.spec.array_type) for b in buffers]
        places = {buffer.offset // np.dtype(flat.dtype).itemsize for buffer in buffers}
        self.others = joined([span for span in spans if span.start not in places])
        self._now = (
            self.arrays  # where all else is the lender's
            if isinstance(memory, SharedParameters)
            else [flat[s.start : s.stop] for s in joined([s for s in spans if s.start in places])]
        )
        self._before = [allocate(a.nbytes).view(0, a.shape, str(a.dtype)) for a in self._now]

    def keep(self) -> None:
        """Remember them as they are now, and forget what was remembered before."""
        for before, now in zip(self._before, self._now, strict=True):
            before[...] = now

    def restore(self) -> None:
        """Have them as they were when they were kept last."""
        for before, now in zip(self._before, self._now, strict=True):
            now[...] = before

    def take(self) -> None:
        """Have what the worker has for itself of parameters that it borrows as the lender has it."""
        if isinstance(self._memory, SharedParameters):
            for buffer, array in zip(self._buffers, self.arrays, strict=True):
                spec = buffer.spec
                array[...] = self._memory.lender.view(buffer.offset, spec.physical, spec.array_type)


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same elements in as few spans as they lie in, from the first on."""
    found = list[Span]()
    for span in sorted(spans, key=lambda span: span.start):
        start = found.pop().start if found and found[-1].stop == span.start else span.start
        found.append(Span(start, span.stop))
    return found
