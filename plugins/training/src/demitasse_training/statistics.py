"""Parameters that a worker's forward passes change, such as running means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demitasse import Buffer, Graph, Memory, Plan, Slot, Span, Tensor
from demitasse_training.shared_parameters import SharedParameters


def changed_parameters(graph: Graph, plan: Plan) -> list[Buffer]:
    """Return the buffers of parameters that forward passes change, in the order in which a pass reaches
    them. The graph's nodes tell them, not the plan's entries: if a kernel computes two operations as
    one, the vocabulary has no operation for that entry."""
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
    """The ``buffers`` in the parameters' ``memory``, as ``arrays``, with copies in memory from
    ``allocate``. ``flat`` are all parameters, divided into ``spans``. Neighbouring spans are copied at
    once, and nothing leaves its device. ``others`` are the spans that no pass changes."""

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
            self.arrays  # if everything else belongs to the lender
            if isinstance(memory, SharedParameters)
            else [flat[s.start : s.stop] for s in joined([s for s in spans if s.start in places])]
        )
        self._before = [allocate(a.nbytes).view(0, a.shape, str(a.dtype)) for a in self._now]

    def keep(self) -> None:
        """Copy the current values, replacing the copies made before."""
        for before, now in zip(self._before, self._now, strict=True):
            before[...] = now

    def restore(self) -> None:
        """Restore the values that were kept last."""
        for before, now in zip(self._before, self._now, strict=True):
            now[...] = before

    def take(self) -> None:
        """Copy the lender's values to the worker's own part of parameters that it borrows."""
        if isinstance(self._memory, SharedParameters):
            for buffer, array in zip(self._buffers, self.arrays, strict=True):
                spec = buffer.spec
                array[...] = self._memory.lender.view(buffer.offset, spec.physical, spec.array_type)


def joined(spans: Sequence[Span]) -> list[Span]:
    """Merge neighbouring spans: return the same elements in as few spans as possible, in order."""
    found = list[Span]()
    for span in sorted(spans, key=lambda span: span.start):
        start = found.pop().start if found and found[-1].stop == span.start else span.start
        found.append(Span(start, span.stop))
    return found
