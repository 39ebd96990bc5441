"""Finding the layer where numbers stopped being finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import Buffer, Entry, Slot, Step, TensorSpec
from demitasse_training import parameters

if TYPE_CHECKING:
    from demitasse_training.worker import Worker

ELSEWHERE = "it is not from this worker's own samples, but from another's, by their common statistics"
DIVERGED = "the last updates diverged, or samples are not finite; lower the learning rate"


def lost_parameter(slots: Sequence[Slot], flat: Any) -> str:
    """Name a parameter that is no longer finite; empty if all are finite."""
    for slot in _lost(slots, flat):
        layer, number = slot.owners[0]
        return f"parameter {number} of layer {layer!r} is no longer finite"
    return ""


def _lost(slots: Sequence[Slot], flat: Any) -> list[Slot]:
    return [slot for slot in slots if not np.isfinite(parameters.view(slot, flat)).all()]


def diagnose(step: Step, adds: bool = False) -> str:
    """Name the first layer that makes a number that is not finite. If workers ``add`` numbers within a
    pass, there may be none: then another worker has it.

    Runs forward once more, entry by entry, on the samples that the step has read. This finds the same
    numbers, because a loss is checked before it can reach a parameter, and random numbers depend only on
    the iteration.
    """
    if found := _first(step, "forward"):
        return found
    return ELSEWHERE if adds and math.isfinite(step.loss()) else "no layer's output shows it"


def causes(workers: Sequence[Worker]) -> list[str]:
    """Say why parameters of workers that have stopped are no longer finite, as far as a pass shows
    it."""
    found = [cause for worker in workers if worker.step is not None and (cause := _cause(worker))]
    return found or [DIVERGED]


def _cause(worker: Worker) -> str:
    """Name the first layer that makes a gradient that is not finite; empty if none is found.

    Runs forward and backward once more. Meanwhile, parameters that are lost have the values of their
    fillers, because with their own nothing would be finite. At the first iteration these are the values
    they had; later they are only plausible ones. If that shows nothing, the gradients left over from the
    last update are used.
    """
    step, flat, left = worker.step, worker.flat, ""
    assert step is not None
    for entry, _ in step.works:
        if any(b and b.region == "gradients" and not _finite(step, b) for b in _outputs(entry)):
            left = f"the first gradient of the last update that is not finite is that of {_named(entry)}"
            break
    lost = _lost(worker.plan.slots, flat.parameters)
    spans = [slice(slot.span.start, slot.span.stop) for slot in lost]
    before = [np.array(flat.parameters[span]) for span in spans]
    worker.statistics.keep()
    try:
        parameters.fill(worker.graph, worker.plan, flat.parameters, worker.graph.seed, lost)
        flat.gradients[...] = 0  # the pass may add to them
        for entry, work in step.works:
            if entry.phase == "forward":
                work()
        return (_first(step, "backward") if math.isfinite(step.loss()) else "") or left
    finally:
        worker.statistics.restore()
        for span, array in zip(spans, before, strict=True):
            flat.parameters[span] = array


def _first(step: Step, phase: str) -> str:
    """Run a phase's works; name the first layer whose result is not finite."""
    for entry, work in step.works:
        if entry.phase != phase:
            continue
        bad = [b.name for b in entry.inputs if b is not None and not _finite(step, b)]
        work()
        if bad or not all(_finite(step, b) for b in _outputs(entry) if b is not None):
            cause = f"; its input {bad[0]!r} is not finite either" if bad else ""
            result = "output" if phase == "forward" else "gradient"
            return f"the first layer whose {result} is not finite is {_named(entry)}{cause}"
    return ""


def _named(entry: Entry) -> str:
    return f"{entry.layer!r} ({entry.operation}, computed by {entry.plugin})"


def _outputs(entry: Entry) -> tuple[Buffer | None, ...]:
    """The buffers that hold an entry's results once it is done; for stretches, the last one's."""
    first, *others = entry.outputs or (None,)
    if first is not None and entry.stretches:
        spec = TensorSpec((len(entry.stretches[0]),), first.spec.dtype)
        first = replace(first, spec=spec)
    return first, *others


def _finite(step: Step, buffer: Buffer) -> bool:
    array = np.asarray(step.array(buffer))
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
