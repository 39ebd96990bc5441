"""The initial parameters of a training: filled, read or resumed, and equal in all processes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import Runtime, Weights, WeightsFiles
from demitasse_training import agreement, parameters
from demitasse_training.arguments import read_weights
from demitasse_training.resume import resume
from demitasse_training.worker import Worker


def begun(
    runtime: Runtime,
    workers: Sequence[Worker],
    *,
    seed: int,
    weights: WeightsFiles | None,
    partial: bool,
    saved: Weights | None,
    path: str | Path | None,
    setting: Mapping[str, Any],
) -> dict[str, parameters.Loaded]:
    """Fill all workers' parameters, read ``weights`` over them, and continue from what was ``saved`` in
    the file ``path`` by a run with the same ``setting``. Returns, by name, what each of the weights
    gave."""
    loaded: dict[str, parameters.Loaded] = {}
    given = read_weights(runtime, weights)
    for worker in (worker for worker in workers if not worker.borrows):
        flat = worker.flat.parameters
        parameters.fill(worker.graph, worker.plan, flat, seed)
        for each, record in given:
            loaded[each] = parameters.load(
                *(worker.graph, worker.plan, flat, record.parameters, each),
                partial=partial,
                notes=record.notes,
            )
        if saved is not None:
            resume(worker, saved, path, setting)
    parameters.tell_missing(logging.INFO, workers[0].solver.train.location, loaded)
    for worker in workers:
        worker.statistics.take()
    return loaded


def in_common(worker: Worker, batch: int, iteration: int) -> dict[str, str]:
    """What processes must have in common once they are ready to begin."""
    found = {"the batch": str(batch), "the iteration to begin at": str(iteration)}
    found |= agreement.samples(worker.graph)
    for slot in worker.plan.slots:
        layer, number = slot.owners[0]
        array = worker.flat.parameters[slot.span.start : slot.span.stop]
        name = f"parameter {number} of layer {layer!r}, by its digest,"
        found[name] = agreement.digest(np.asarray(array))
    return found
