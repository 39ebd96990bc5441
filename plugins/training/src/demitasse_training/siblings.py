"""Whether siblings have the same parameters, looked at once: after a trainer's first iteration."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import Processes

if TYPE_CHECKING:
    from demitasse_training.worker import Worker

ROUNDING = 1e-6
"""How far a parameter may be from a sibling's, of the largest of its array: sums in another order."""


def parted(workers: Sequence[Worker], processes: Processes) -> str:
    """A sentence on the first parameters that siblings do not have alike, by more than rounding, here
    or, for process 0 alone to tell, in other processes; "" where all have. To be called in all of them,
    with nothing under way."""
    first = workers[0]
    mine = _trained(first)
    for worker in workers[1:]:
        other = _trained(worker)
        if other is not mine and (slot := _differing(first, mine, other)):
            return _told(first, slot, f"workers {first.place.index} and {worker.place.index}")
    if processes.size > 1:
        digest = f"{zlib.crc32(np.ascontiguousarray(mine).view(np.uint8).data):08x}"
        told = processes.gather([digest, *_sums(first, mine)])
        (ours, *totals), *others = told if processes.rank == 0 else told[:1]
        for rank, (theirs, *sums) in enumerate(others, 1):
            if theirs != ours and (slot := _unlike(first, totals, sums)):
                return _told(first, slot, f"processes 0 and {rank}")
    return ""


def _trained(worker: Worker) -> np.ndarray:
    """What a worker's updates have changed; of siblings that share one memory, the same object."""
    array = worker.flat.parameters[: worker.plan.trainable]
    return np.asarray(array)


def _differing(worker: Worker, mine: np.ndarray, other: np.ndarray) -> Any:
    if np.shares_memory(mine, other) or np.array_equal(mine, other):
        return None
    for slot in _slots(worker):
        part = slice(slot.span.start, slot.span.stop)
        largest = float(np.abs(mine[part]).max(initial=0.0))
        if float(np.abs(mine[part] - other[part]).max(initial=0.0)) > ROUNDING * largest:
            return slot
    return None


def _sums(worker: Worker, mine: np.ndarray) -> list[float]:
    """Of each parameter the sum of its numbers, and of their sizes."""
    parts = (mine[slot.span.start : slot.span.stop].astype(np.float64) for slot in _slots(worker))
    return [float(total) for part in parts for total in (part.sum(), np.abs(part).sum())]


def _unlike(worker: Worker, ours: Sequence[float], theirs: Sequence[float]) -> Any:
    pairs = zip(_slots(worker), ours[::2], ours[1::2], theirs[::2], strict=True)
    for slot, total, size, other in pairs:
        if abs(total - other) > ROUNDING * size:
            return slot
    return None


def _slots(worker: Worker) -> list[Any]:
    return [
        slot for slot in worker.plan.slots if slot.trainable and slot.span.stop <= worker.plan.trainable
    ]


def _told(worker: Worker, slot: Any, who: str) -> str:
    layer, number = slot.owners[0]
    plugins = list(dict.fromkeys(plugin for plugin, _ in worker.place.groups))
    return (
        f"{who} train apart: after an iteration they have another parameter {number} of layer {layer!r} "
        f"(synchronised by {', '.join(plugins)}; see demitasse check {plugins[0]})"
    )
