"""The magnitudes of a net's numbers, layer by layer, which a solver's ``debug`` reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from demitasse_training.parameters import view
from demitasse_training.worker import Worker


class Size(NamedTuple):
    """The mean absolute value of one array: ``what`` is ``data`` or ``diff`` (a gradient), of a blob
    that a layer made or of its parameter by number."""

    phase: str
    layer: str
    name: str
    what: str
    mean: float


def sizes(worker: Worker) -> list[Size]:
    """Return the sizes in a worker whose plan retains all blobs: of each blob as forward made it, of
    each gradient as backward made it, and of each trained parameter with the gradient that updated
    it."""
    plan, graph, found = worker.plan, worker.graph, list[Size]()
    named = {tensor.name for made in graph.history.values() for _, tensor in made}
    named |= {parameter.tensor.name for parameter in graph.parameters}
    for entry in plan.entries:
        forward = entry.phase == "forward"
        for buffer in entry.outputs:
            if buffer is None or entry.operation == "reorder":
                continue
            name = buffer.name if forward else buffer.name.removeprefix("d")
            name = name.removesuffix(f".{buffer.spec.layout.name}")  # a kernel's own copy
            if name in named:
                shown, what = name.partition("@")[0], "data" if forward else "diff"
                found.append(Size(entry.phase, entry.layer, shown, what, _mean(worker.array(buffer))))
    for slot in plan.slots:
        if slot.trainable:
            layer, number = slot.owners[0]
            for what, flat in (("data", worker.flat.parameters), ("diff", worker.flat.gradients)):
                found.append(Size("update", layer, str(number), what, _mean(view(slot, flat))))
    return found


def _mean(array: Any) -> float:
    return float(np.abs(array, dtype=np.float64).mean()) if array.size else 0.0
