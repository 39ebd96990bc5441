"""Going on from a snapshot: what must agree, and copying it back; and gathering one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import SnapshotError, Weights
from demitasse_training import parameters
from demitasse_training.worker import Worker


def seed_of(saved: Weights | None, wanted: int | None, path: object) -> int:
    """The seed to go on with: the solver's, or else the snapshot's, or else 0. Raises SnapshotError
    when both have one and they differ."""
    theirs = saved.record.get("seed") if saved is not None else None
    if wanted is not None and theirs is not None and theirs != wanted:
        raise SnapshotError(
            f"{path} was made with random seed {theirs}, the solver says {wanted}: set random_seed to "
            f"{theirs} to go on with the same random numbers"
        )
    return wanted if wanted is not None else int(theirs or 0)


def resume(worker: Worker, saved: Weights, path: object, run: Mapping[str, Any]) -> None:
    """Copy parameters and state. ``run`` has what must agree with the snapshot's record.

    Raises SnapshotError that names what differs before anything is copied.
    """
    if saved.iteration is None:
        raise SnapshotError(
            f"{path} has weights but no iteration and solver state; give it as weights instead"
        )
    if saved.state and set(saved.state) != set(worker.flat.state):
        raise SnapshotError(
            f"{path} has solver state {', '.join(saved.state)}; {worker.solver.update} keeps "
            f"{', '.join(worker.flat.state)}"
        )
    compare(saved.parameters, parameters.by_layer(worker.plan, worker.flat.parameters), path)
    for name, arrays in saved.state.items():
        memory = worker.flat.state[name]
        compare(arrays, parameters.by_layer(worker.plan, memory, trainable=True), f"{path} ({name})")
    for name, here in run.items():
        if saved.record.get(name, here) != here:
            raise SnapshotError(f"{path} was made with {name} {saved.record[name]}; this run has {here}")
    parameters.load(worker.plan, worker.flat.parameters, saved.parameters, path)
    trained = [slot for slot in worker.plan.slots if slot.trainable]
    owned = sorted(owner for slot in trained for owner in slot.owners)
    for name, arrays in saved.state.items():
        for slot in trained:
            layer, number = slot.owners[0]
            among = [n for owner, n in owned if owner == layer].index(number)
            parameters.assign(slot, worker.flat.state[name], arrays[layer][among])


def compare(
    theirs: Mapping[str, Sequence[np.ndarray]], ours: Mapping[str, Sequence[np.ndarray]], path: object
) -> None:
    """Raise SnapshotError with the layers whose shapes differ."""
    there, here = ({k: [a.shape for a in v] for k, v in each.items()} for each in (theirs, ours))
    if differing := sorted(k for k in {*there, *here} if there.get(k) != here.get(k)):
        listed = "; ".join(
            f"layer {k!r}: {there.get(k, 'absent')} there, {here.get(k, 'absent')} here"
            for k in differing[:4]
        )
        raise SnapshotError(f"{path} is of another net: {listed}")
