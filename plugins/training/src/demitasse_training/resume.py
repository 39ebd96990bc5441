"""Resuming from a snapshot: what must agree, and copying the snapshot's contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import ModelError, Runtime, Slot, SnapshotError, Weights, shortened
from demitasse_training import parameters
from demitasse_training.arguments import IN_MEMORY
from demitasse_training.worker import Worker

UNNAMED = ""
"""The layer name under which a file has a solver's arrays for all parameters in the net's order, in
formats that do not name layers there."""


GIVEN = {"precision": "precision", "passes": "iter_size", "batch": "a batch of"}
"""The settings that a resuming run must share, with the words for them by their record's name."""

LAST = 1 << 31
"""The limit of iterations: Caffe counts in 32 bits, one of which is the sign."""


def saved_run(runtime: Runtime, resume: Any) -> tuple[Weights | None, str | Path]:
    """Return what an earlier run has left in a file or in memory, and its name. Raises SnapshotError if
    its iteration, its numbers or its record cannot come from a training, ModelError if ``resume`` is
    neither a path nor Weights."""
    if resume is None:
        return None, ""
    if not isinstance(resume, str | Path | Weights):
        told = "resume must be a snapshot's path, or demitasse.Weights from trainer.weights()"
        raise ModelError(f"{told}; given {type(resume).__name__}")
    path = IN_MEMORY if isinstance(resume, Weights) else resume
    saved = resume if isinstance(resume, Weights) else runtime.read(resume).weights()
    iteration = saved.iteration
    if iteration is not None and not 0 <= iteration < LAST:
        raise SnapshotError(f"{path} was made at iteration {iteration} (valid: 0 to {LAST - 1:,})")
    for arrays in (saved.parameters, *saved.state.values()):
        for layer, each in arrays.items():
            if problem := parameters.unreal(each):
                raise SnapshotError(f"{path}: layer {shortened(layer, quoted=True)} has {problem}")
    seed, kernels = saved.record.get("seed", 0), saved.record.get("kernels", {})
    if type(seed) is not int:
        there = shortened(seed, quoted=True)
        raise SnapshotError(f"{path}: its record has the random seed {there}, not a whole number")
    if not isinstance(kernels, Mapping) or not all(isinstance(k, str) for k in kernels.values()):
        raise SnapshotError(f"{path}: its record of kernels is not a table of names by request")
    return saved, path


def seed_of(saved: Weights | None, wanted: int | None, path: object) -> int:
    """Return the seed to continue with: the solver's, or else the snapshot's, or else 0. Raises
    SnapshotError if both have one and they differ."""
    theirs = saved.record.get("seed") if saved is not None else None
    if wanted is not None and theirs is not None and theirs != wanted:
        raise SnapshotError(
            f"{path} was made with random seed {theirs}, but the solver says {wanted}: set random_seed "
            f"to {theirs} to continue with the same random numbers"
        )
    return wanted if wanted is not None else int(theirs or 0)


def resume(worker: Worker, saved: Weights, path: object, run: Mapping[str, Any]) -> None:
    """Copy parameters and state. ``run`` has the settings that must agree with the snapshot's record, if
    the file has a record; files in other formats have none.

    Before anything is copied, raises SnapshotError that names what differs.
    """
    if saved.iteration is None:
        raise SnapshotError(
            f"{path} has weights but no iteration or solver state; give it as weights instead"
        )
    if saved.state and set(saved.state) != set(worker.flat.state):
        there = shortened(", ".join(saved.state))
        raise SnapshotError(
            f"{path} has solver state {there}, but {worker.solver.update} keeps "
            f"{', '.join(worker.flat.state)}"
        )
    compare(worker, saved.parameters, path)
    state = {name: _state(worker, arrays, f"{path} ({name})") for name, arrays in saved.state.items()}
    for name, here in run.items():
        if saved.record.get(name, here) != here:
            there = shortened(saved.record[name])
            raise SnapshotError(
                f"{path} was made with {name} {there}, but this run has {here}: "
                f"give {GIVEN[name]} {there} to continue"
            )
    parameters.load(worker.graph, worker.plan, worker.flat.parameters, saved.parameters, path)
    for name, arrays in state.items():
        for slot, array in arrays:
            parameters.assign(slot, worker.flat.state[name], array)


def compare(worker: Worker, theirs: Mapping[str, Sequence[np.ndarray]], path: object) -> None:
    """Raise SnapshotError with the layers whose parameters differ in shape. Shared parameters may be
    missing, because an earlier layer has them."""
    ours = parameters.by_layer(worker.graph, worker.plan, worker.flat.parameters)
    first = {slot.owners[0] for slot in worker.plan.slots}

    def same(layer: str) -> bool:
        here, there = ours.get(layer, ()), theirs.get(layer, ())
        return len(here) == len(there) and all(
            parameters.fits(there[number], here[number].shape)
            or (there[number].size == 0 and (layer, number) not in first)
            for number in range(len(here))
        )

    differing = sorted(layer for layer in {*theirs, *ours} if not same(layer))
    _refuse(path, differing, theirs, ours)


def _state(
    worker: Worker, arrays: Mapping[str, Sequence[np.ndarray]], path: object
) -> list[tuple[Slot, np.ndarray]]:
    """Return a solver's arrays for each trained parameter. Raises SnapshotError with layers that
    differ."""
    ours = parameters.by_layer(worker.graph, worker.plan, worker.flat.parameters)
    trained = [slot for slot in worker.plan.slots if slot.trainable]
    theirs = _unnamed(worker, arrays, path) if UNNAMED in arrays else arrays
    owned = sorted(owner for slot in trained for owner in slot.owners)
    found, differing = [], []
    for slot in trained:
        layer, number = slot.owners[0]
        there = theirs.get(layer, ())
        if len(there) != len(ours[layer]):
            # Old snapshots have arrays of the trained parameters only.
            number = [n for owner, n in owned if owner == layer].index(number)
        if number < len(there) and parameters.fits(there[number], slot.spec.shape):
            found.append((slot, there[number].reshape(slot.spec.shape)))
        else:
            differing.append(layer)
    _refuse(path, sorted({*differing}), theirs, ours)
    return found


def _unnamed(
    worker: Worker, arrays: Mapping[str, Sequence[np.ndarray]], path: object
) -> dict[str, list[np.ndarray]]:
    """Return, by layer, the arrays that a file has as a plain list in the net's order."""
    plain, owners = arrays[UNNAMED], [each.owners[0] for each in worker.graph.parameters]
    if len(plain) != len(owners):
        raise SnapshotError(
            f"{path} belongs to another net: it has {len(plain)} arrays, this net {len(owners)} "
            f"parameters"
        )
    ours = parameters.by_layer(worker.graph, worker.plan, worker.flat.parameters)
    result = {layer: [np.empty(0, np.float32)] * len(each) for layer, each in ours.items()}
    for (layer, number), array in zip(owners, plain, strict=True):
        if layer in result:
            result[layer][number] = array
    return result


def _refuse(
    path: object,
    differing: Sequence[str],
    theirs: Mapping[str, Sequence[np.ndarray]],
    ours: Mapping[str, Sequence[np.ndarray]],
) -> None:
    if not differing:
        return
    there, here = ({k: [a.shape for a in v] for k, v in each.items()} for each in (theirs, ours))
    listed = "; ".join(
        f"layer {k!r}: {there.get(k, 'absent')} there, {here.get(k, 'absent')} here"
        for k in differing[:4]
    )
    raise SnapshotError(f"{path} belongs to another net: {listed}")
