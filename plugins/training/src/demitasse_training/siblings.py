"""A check, made once after a trainer's first iteration, that siblings have the same parameters."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import GradientSync, Processes
from demitasse_training.watched import has_own

if TYPE_CHECKING:
    from demitasse_training.worker import Worker

ROUNDING = 1e-6
"""The largest difference allowed, relative to the array's largest: sums may be in another order."""
STRETCH = 4096
"""How many numbers processes compare by one sum if their digests differ."""


def may_go_on(level: GradientSync) -> bool:
    """Whether a synchronisation may still be under way at the end of an iteration, because it begins or
    ends its work elsewhere."""
    return has_own(level, "schedule") or has_own(level, "before_forward")


def parted(workers: Sequence[Worker], processes: Processes) -> str:
    """Return a sentence about the first parameters in which siblings differ by more than rounding: those
    here or, in process 0, those of other processes; "" if none differ. All processes must call this,
    with no synchronisation under way."""
    first = workers[0]
    mine = _trained(first)
    told = _among_threads(workers, mine)
    if processes.size > 1:
        digests = processes.gather(f"{zlib.crc32(np.ascontiguousarray(mine).view(np.uint8).data):08x}")
        if len(set(digests)) > 1:
            ours, *others = processes.gather(_sums(first, mine))
            for rank, sums in enumerate(others, 1) if processes.rank == 0 else ():
                if not told and (slot := _unlike(first, ours, sums)):
                    told = _told(first, slot, f"processes 0 and {rank}")
    return told


def _trained(worker: Worker) -> np.ndarray:
    """Return the parameters that a worker's updates have changed."""
    return np.asarray(worker.flat.parameters[: worker.plan.trainable])


def _among_threads(workers: Sequence[Worker], mine: np.ndarray) -> str:
    first = workers[0]
    for worker in workers[1:]:
        if slot := _differing(first, mine, _trained(worker)):
            return _told(first, slot, f"workers {first.place.index} and {worker.place.index}")
    return ""


def _differing(worker: Worker, mine: np.ndarray, other: np.ndarray) -> Any:
    if np.shares_memory(mine, other) or np.array_equal(mine, other):
        return None
    for slot in _slots(worker):
        part = slice(slot.span.start, slot.span.stop)
        largest = float(np.abs(mine[part]).max(initial=0.0))
        if not float(np.abs(mine[part] - other[part]).max(initial=0.0)) <= ROUNDING * largest:
            return slot
    return None


def _sums(worker: Worker, mine: np.ndarray) -> list[list[float]]:
    """For each parameter, return sums of its numbers and of their absolute values, over stretches of a
    few thousand numbers."""
    found = []
    for slot in _slots(worker):
        part = mine[slot.span.start : slot.span.stop].astype(np.float64)
        starts = np.arange(0, len(part), STRETCH)
        both = np.add.reduceat(part, starts), np.add.reduceat(np.abs(part), starts)
        found.append(np.stack(both, axis=1).reshape(-1).tolist())
    return found


def _unlike(worker: Worker, ours: Sequence[Any], theirs: Sequence[Any]) -> Any:
    for slot, mine, other in zip(_slots(worker), ours, theirs, strict=True):
        sums, sizes, others = (np.array(each) for each in (mine[::2], mine[1::2], other[::2]))
        if not (np.abs(sums - others) <= ROUNDING * sizes).all():
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
        f"{who} train apart: after an iteration parameter {number} of layer {layer!r} differs "
        f"(synchronised by {', '.join(plugins)}; see demitasse check {plugins[0]})"
    )
