"""Finding the layer where numbers stopped being finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import Buffer, Slot, Step
from demitasse_training import parameters


def lost_parameter(slots: Sequence[Slot], flat: Any) -> str:
    """Which parameter is no longer finite, in words; empty where all are."""
    for slot in slots:
        if not np.isfinite(parameters.view(slot, flat)).all():
            layer, number = slot.owners[0]
            return (
                f"parameter {number} of layer {layer!r} is no longer finite: the last updates "
                f"diverged, or samples are not finite; lower the learning rate"
            )
    return ""


def diagnose(step: Step, flat: Any) -> str:
    """Which parameter is no longer finite, or else which layer first makes a number that is not.

    Walks forward once more, entry by entry, over the samples that the step has read: a loss is
    checked before it can reach a parameter, and random numbers depend only on the iteration.
    """
    if told := lost_parameter(step.plan.slots, flat):
        return told
    for entry, work in step.works:
        if entry.phase != "forward":
            break
        bad = [b.name for b in entry.inputs if b is not None and not _finite(step, b)]
        work()
        if bad or not all(_finite(step, b) for b in entry.outputs if b is not None):
            cause = f"; its input {bad[0]!r} already is not" if bad else ""
            return (
                f"the first layer whose output is not finite is {entry.layer!r} "
                f"({entry.operation}, computed by {entry.plugin}){cause}"
            )
    return "no layer's output shows it"


def _finite(step: Step, buffer: Buffer) -> bool:
    array = np.asarray(step.array(buffer))
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
