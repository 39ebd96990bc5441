"""Running a bound net layer by layer, so that its user can read and write blobs between layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from demitasse import PLAIN, Buffer, Entry, Plan, Step, Tensor, Work
from demitasse_training import parameters
from demitasse_training.graph import NetGraph


class Walk:
    """The step of a net that was planned with ``retain="all"``; runs from any layer to any other.

    A blob that layers overwrite in place is, internally, one tensor per such layer. ``data`` and
    ``diff`` show the last of them. A walk that starts or ends in between copies it, so that the user
    reads and writes the blob as it is at that point, as if it were one memory. ``reads`` fetch samples,
    by layer.
    """

    def __init__(
        self,
        graph: NetGraph,
        step: Step,
        reads: Sequence[tuple[str, Work]],
        flat: Any,
        gradients: Any = None,
    ) -> None:
        self.graph, self.step, self.iteration = graph, step, 0
        self.flat, self._gradients = flat, gradients
        self.layers = tuple(layer.name for layer in graph.definition.layers)
        self._reads = [[work for layer, work in reads if layer == name] for name in self.layers]
        self._buffers = buffers(step.plan)
        self._forward, self._backward = _by_layer(self.layers, graph, step)
        self._copies = [
            (number, work)
            for number, entry, work in self._forward
            if entry.operation == "reorder" and _is_plain(entry.inputs[0])
        ]
        self._rewritten = {
            name: versions
            for name, versions in graph.history.items()
            if len({id(tensor) for _, tensor in versions}) > 1
        }

    def forward(
        self, first: int = 0, last: int | None = None, *, sample: int = 0, again: bool = False
    ) -> None:
        """Run layers ``first`` to ``last`` (by default the last one), both included. Running the first
        layer starts another iteration, with its random numbers, from ``sample`` of its batch on. With
        ``again``, the samples and random numbers are those of the last run."""
        last = len(self.layers) - 1 if last is None else last
        if first == 0:
            self.iteration += not again
            self.step.scalars(max(0, self.iteration - 1), 0.0)
            self.step.tell("sample", sample)
        if not again:
            self._take(first)
            for read in itertools.chain.from_iterable(self._reads[first : last + 1]):
                read()
        if (first, last) == (0, len(self.layers) - 1):
            works = [*self.step.once, *self.step.forward]
        else:
            works = [work for number, work in self._copies if number < first]
            works += [work for number, _, work in self._forward if first <= number <= last]
        for work in works:
            work()
        for name in self._rewritten:
            self._copy(self._at(name, last), self.graph.blobs[name])

    def backward(self, first: int | None = None, last: int = 0) -> None:
        """Run layers ``first`` (by default the last one) down to ``last``, both included. Gradients of
        parameters are added to those present."""
        whole = first is None
        first = len(self.layers) - 1 if first is None else first
        for name in self._rewritten:
            self._copy(self.graph.blobs[name], self._at(name, first), gradients=True)
        if whole and last == 0:
            works = self.step.backward
        else:
            works = [work for _, work in self._copies]
            works += [work for number, _, work in self._backward if last <= number <= first]
        for work in works:
            work()
        for name, versions in self._rewritten.items():
            reached = self._at(name, last - 1) or versions[0][1]
            self._copy(reached, self.graph.blobs[name], gradients=True)

    def data(self, blob: str) -> np.ndarray:
        """A live view of a blob's values, without planned rows that its layer did not fill."""
        values = self._view(self._buffers[blob])
        found = self.graph.found.get(self.graph.blobs[blob])
        return values if found is None else found(values)

    def diff(self, blob: str) -> np.ndarray | None:
        """A live view of the gradient of a blob; None if it is not computed."""
        tensor = self.graph.diffs.get(self.graph.blobs[blob])
        return self._view(self._buffers[tensor.name]) if tensor is not None else None

    @cached_property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Live views of all parameters, by layer."""
        return parameters.by_layer(self.graph, self.step.plan, self.flat)

    @cached_property
    def gradients(self) -> dict[tuple[str, int], np.ndarray]:
        """Live views of the gradients of parameters by (layer, number), for those that are computed."""
        learned = {owner for p in self.graph.parameters if p.gradient for owner in p.owners}
        return {
            owner: parameters.view(slot, self._gradients)
            for slot in self.step.plan.slots
            for owner in slot.owners
            if owner in learned
        }

    def clear(self) -> None:
        """Set the gradients of all parameters to zero."""
        if self._gradients is not None:
            self._gradients[...] = 0

    def _view(self, buffer: Buffer) -> np.ndarray:
        return buffer.spec.layout.unpack(self.step.array(buffer), buffer.spec.shape)

    def _at(self, name: str, number: int) -> Tensor | None:
        """The tensor that a blob is after layer ``number``; None if it has not been made by then."""
        made = [tensor for layer, tensor in self.graph.history[name] if layer <= number]
        return made[-1] if made else None

    def _take(self, first: int) -> None:
        """Copy what a user may have written to blobs that are overwritten later to where it is read."""
        for name, versions in self._rewritten.items():
            tensor = self._at(name, first - 1)
            if tensor is None and versions[0][1] in self.graph.inputs.values():
                tensor = versions[0][1]
            self._copy(self.graph.blobs[name], tensor)

    def _copy(self, source: Tensor | None, target: Tensor | None, *, gradients: bool = False) -> None:
        if gradients:
            source, target = (self.graph.diffs.get(t) if t else None for t in (source, target))
        if source is None or target is None or source is target or source.shape != target.shape:
            return
        self._view(self._buffers[target.name])[...] = self._view(self._buffers[source.name])


def buffers(plan: Plan) -> dict[str, Buffer]:
    """All buffers of a retained plan, by the names of their tensors."""
    entries = plan.entries
    found = itertools.chain.from_iterable((*entry.inputs, *entry.outputs) for entry in entries)
    return {**{buffer.name: buffer for buffer in found if buffer is not None}, **plan.buffers}


def _by_layer(
    layers: Sequence[str], graph: NetGraph, step: Step
) -> tuple[list[tuple[float, Entry, Work]], list[tuple[float, Entry, Work]]]:
    """Return the works of each direction with the numbers of their layers. If a blob has several
    readers, the sum of their gradients stands between them and the layer that makes the blob (at a
    half)."""
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(layers):
        numbers.setdefault(name, []).append(number)
    forward, backward = list[tuple[float, Entry, Work]](), list[tuple[float, Entry, Work]]()
    at = 0.0
    for entry, work in step.works:
        same, ahead = numbers.get(entry.layer, [0]), entry.phase == "forward"
        if entry.layer in graph.splits:
            at = graph.splits[entry.layer] + 0.5
        elif ahead:
            at = next((number for number in same if number >= at), same[0])
        else:
            at = next((number for number in reversed(same) if number <= at), same[-1])
        (forward if ahead else backward).append((at, entry, work))
    return forward, backward


def _is_plain(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.spec.layout == PLAIN
