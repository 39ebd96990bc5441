"""A check of plans that knows nothing of how they are made: each entry reads what it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from demitasse import Bucket, Buffer, Entry, Graph, Plan

GRAIN = 64
"""Bytes of a cell; no two buffers that live at a time have parts of one."""

NOTHING, SCRATCH, UPDATED = "nothing", "a workspace", "updated parameters"


def wrong_reads(graph: Graph, plan: Plan) -> list[str]:
    """What an iteration of the plan reads that it should not: another tensor's values, or parameters
    that it has updated already. Updates are made where ``Step`` makes those of one worker alone."""
    return _Memory(graph, plan).wrong


class _Memory:
    """Walks the step and notes for each cell of memory which tensor's values lie there. A view has those
    of what it is a view of, and a tensor's twin in another layout has the tensor's."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.plan, self.item, self.wrong = plan, np.dtype(plan.dtype).itemsize, list[str]()
        views = [node for node in graph.nodes if node.operation.view]
        self.seen = {v.outputs[0].name: v.inputs[0].name for v in views if v.outputs[0] and v.inputs[0]}
        self.gradients = {p.owners[0]: p.gradient.name for p in graph.parameters if p.gradient}
        self.tensors = {NOTHING: 0, SCRATCH: 1, UPDATED: 2}
        last = dict[str, int]()
        for buffer in self._buffers(plan.entries):
            stop = buffer.offset + buffer.spec.nbytes
            last[buffer.region] = max(last.get(buffer.region, 0), stop, plan.parameters * self.item)
        self.cells = {name: np.zeros(-(-stop // GRAIN), np.int32) for name, stop in last.items()}
        for buffer in self._buffers(plan.entries):
            if buffer.region != "arena":  # samples, constants, parameters; gradients that are added to
                self._at(buffer)[:] = self._number(self._name(buffer))
        cut = {entry.stretches[0].start for entry in plan.entries if entry.stretches}
        for i, entry in enumerate(plan.entries):
            self._run(entry)
            for bucket, final in zip(plan.buckets, plan.final, strict=True):
                if final == i and bucket.span.start not in cut:
                    self._update(bucket, f"the update of {bucket.layers} behind {entry.layer}")

    def _run(self, entry: Entry) -> None:
        for buffer in filter(None, entry.inputs):
            self._expect(
                self._at(buffer), self._name(buffer), f"{entry.layer} {entry.phase} {entry.operation}"
            )
        if entry.workspace is not None:
            self._at(entry.workspace)[:] = self.tensors[SCRATCH]
        for buffer in filter(None, entry.outputs[entry.stretches != () :]):
            self._at(buffer)[:] = self._number(self._name(buffer))
        for span in entry.stretches:
            made = entry.outputs[0]
            assert made is not None
            self._cells("arena", made.offset, len(span) * self.item)[:] = self._number(self._name(made))
            self._cells("parameters", span.start * self.item, len(span) * self.item)[:] = self.tensors[
                UPDATED
            ]

    def _update(self, bucket: Bucket, who: str) -> None:
        """What updates a bucket finds all of its gradients."""
        span, brief = bucket.span, self.plan.brief
        region = "arena" if brief else "gradients"
        base = brief[bucket.index] - span.start * self.item if brief else 0
        for slot in self.plan.slots:
            if span.start <= slot.span.start < span.stop:
                gradient = self.gradients[slot.owners[0]]
                self._expect(
                    self._cells(region, base + slot.span.start * self.item, slot.spec.nbytes),
                    gradient,
                    who,
                )
        self._cells("parameters", span.start * self.item, len(span) * self.item)[:] = self.tensors[
            UPDATED
        ]

    def _expect(self, cells: Any, tensor: str, who: str) -> None:
        found = {*np.unique(cells).tolist()} - {self._number(tensor)}
        others = [name for name, number in self.tensors.items() if number in found]
        self.wrong += [f"{who} reads {', '.join(others)} for {tensor}"] if others else []

    def _number(self, tensor: str) -> int:
        return self.tensors.setdefault(tensor, len(self.tensors))

    def _name(self, buffer: Buffer) -> str:
        name = buffer.name.removesuffix(f".{buffer.spec.layout.name}")
        while name in self.seen:
            name = self.seen[name]
        return name

    def _at(self, buffer: Buffer) -> Any:
        return self._cells(buffer.region, buffer.offset, buffer.spec.nbytes)

    def _cells(self, region: str, offset: int, nbytes: int) -> Any:
        return self.cells[region][offset // GRAIN : -(-(offset + nbytes) // GRAIN)]

    @staticmethod
    def _buffers(entries: tuple[Entry, ...]) -> Iterator[Buffer]:
        for entry in entries:
            yield from filter(None, (*entry.inputs, *entry.outputs, entry.workspace))
