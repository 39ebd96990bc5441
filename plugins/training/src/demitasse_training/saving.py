"""Snapshots of a run: their contents, checks that they can be written, and writing them."""

from __future__ import annotations

import glob
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    CompositionError,
    DemitasseError,
    ModelError,
    NumericsError,
    Processes,
    Runtime,
    SnapshotError,
    Solver,
    Weights,
    WorkerError,
    uninstalled,
)
from demitasse_training import parameters
from demitasse_training.worker import Worker

SNAPSHOT = ".demitasse"


def check_writable(runtime: Runtime, solver: Solver, worker: Worker) -> None:
    """Raise CompositionError if no plugin writes a snapshot format that the solver requests, and
    SnapshotError if the format cannot hold the worker's parameters or state, the folder cannot be
    created (this creates it) or written, or the file's name is not possible."""
    if not (solver.snapshot_interval or solver.snapshot_last):
        return
    plugins = runtime.composition.plugins
    suffixes = [s for m in plugins for s in m.roles.get("model_writer", {}).get("suffixes", ())]
    otherwise = "or set snapshot: 0 and snapshot_after_train: false"
    for suffix in _suffixes(solver):
        if not any(suffix.endswith(known) for known in suffixes):
            plugin = "snapshots" if suffix == SNAPSHOT else "caffe"
            raise CompositionError(
                f"the solver asks for {suffix} snapshots, which no composed plugin writes"
                f"{uninstalled('model_writer', suffix)}; add the plugin {plugin!r}, {otherwise}"
            )
    if told := _too_large(runtime, solver, worker) or _stateless(runtime, solver, worker):
        raise SnapshotError(f"{told}, {otherwise}")
    prefix = prefix_of(solver)
    folder = Path(f"{prefix}_iter").parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for path in paths_of(solver, solver.max_iterations):
            with suppress(FileNotFoundError):
                path.stat()  # raises for a name that is too long for a file
    except OSError as error:
        raise SnapshotError(
            f"snapshots with prefix {prefix!r} could not be written: folder {folder}: "
            f"{_reason(error)}; change snapshot_prefix, {otherwise}"
        ) from error


def paths_of(solver: Solver, iteration: int, prefix: Any = None) -> list[Path]:
    """Return the paths of a solver's snapshots of an iteration, one for each format that it requests.
    ``prefix`` replaces the solver's own. Raises SnapshotError if it cannot be the beginning of a
    path."""
    if not isinstance(prefix, str | Path | None):
        told = "its prefix is the beginning of a path; trainer.weights() gives one in memory"
        raise SnapshotError(f"a snapshot is a file: {told}; given {type(prefix).__name__}")
    stem = f"{prefix or prefix_of(solver)}_iter_{iteration}"
    return [Path(f"{stem}{suffix}") for suffix in _suffixes(solver)]


def write(runtime: Runtime, path: Path, weights: Weights) -> Path:
    """Write one snapshot, whole or not at all; return its path. Raises SnapshotError with the path, the
    reason, and the other formats in which the iteration has been written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return runtime.write(path, weights)
    except (OSError, ModelError, SnapshotError) as error:
        told = str(error)
        if isinstance(error, OSError):
            told = f"{path}: the snapshot could not be written: {_reason(error)}"
        raise SnapshotError(f"{told}{_there_already(path)}") from error


def keep(
    error: BaseException, iteration: int, snapshot: Callable[[], Path], processes: Processes
) -> None:
    """Call ``snapshot`` in all processes to save what was trained before an error, and add to the error
    where the snapshot is, or why it could not be written."""
    try:
        told = f"iteration {iteration} is saved in {snapshot()}"
    except DemitasseError as other:
        told = f"iteration {iteration} could not be saved: {other}"
        if processes.rank == 0 and not isinstance(other, WorkerError):
            processes.gather(str(other))  # the others wait for this
    if isinstance(error, OSError) and error.strerror:
        error.strerror += f"; {told}"
    else:
        error.args = (f"{error}; {told}",)


def check_numbers(weights: Weights, kept: str) -> None:
    """Raise NumericsError that names a layer whose parameters are no longer finite. Nothing else checks
    the update after the last loss, and a snapshot of it would replace a good one."""
    for layer, arrays in weights.parameters.items():
        for number, array in enumerate(arrays):
            if not np.isfinite(array).all():
                raise NumericsError(
                    f"iteration {weights.iteration}: parameter {number} of layer {layer!r} is no longer "
                    f"finite, so no snapshot of it is written; {kept}"
                )


def gathered(worker: Worker, iteration: int, facts: Mapping[str, Any]) -> Weights:
    """Return a worker's parameters and solver state for a snapshot, with gradients if the solver
    requests them. Its record has the run's ``facts``, the choices of kernels, the cursors, and the
    solver's settings."""
    solver = worker.solver
    result = parameters.gather(worker.graph, worker.plan, worker.flat.parameters, worker.flat.state)
    result.iteration, result.net = iteration, solver.train
    if solver.snapshot_gradients:
        result.gradients = parameters.state_by_layer(worker.graph, worker.plan, worker.flat.gradients)
        for arrays in result.gradients.values():
            arrays[:] = [array.copy() for array in arrays]
    result.record = {
        **(solver.record(iteration) if solver.record is not None else {}),
        **facts,
        "net": solver.train.name,
        "plugins": worker.runtime.composition.versions,
        "kernels": worker.kernels.tuner.choices() if worker.kernels.tuner is not None else {},
        "cursors": {f.layer: iteration * solver.passes * f.batch for f in worker.graph.feeds},
    }
    return result


def _too_large(runtime: Runtime, solver: Solver, worker: Worker) -> str:
    """Return a message that names a requested format whose files, by the account of the plugin that
    writes them, cannot hold what one file would be given: the parameters of every layer (with gradients
    if those are kept), or the state of all layers."""
    plan, item = worker.plan, np.dtype(worker.dtype).itemsize
    sizes = [(math.prod(slot.spec.shape) * len(slot.owners), slot.trainable) for slot in plan.slots]
    numbers = sum(size for size, _ in sizes)
    gradients = sum(size for size, trained in sizes if trained) if solver.snapshot_gradients else 0
    needed = item * max(numbers + gradients, plan.parameters * max(1, len(worker.update.state)))
    for plugin in runtime.composition.plugins:
        largest = plugin.roles.get("model_writer", {}).get("largest", {})
        for suffix in _suffixes(solver):
            if needed > largest.get(suffix, needed):
                return (
                    f"a {suffix} snapshot of the {plan.parameters:,} parameters needs up to {needed:,} "
                    f"bytes, but such a file holds {largest[suffix]:,}; set snapshot_format: HDF5"
                )
    return ""


def _stateless(runtime: Runtime, solver: Solver, worker: Worker) -> str:
    """Return a message that names a requested format that, by the account of the plugin that writes it,
    has no place for what the solver's update keeps."""
    for plugin in runtime.composition.plugins:
        states = plugin.roles.get("model_writer", {}).get("states", {})
        for suffix in _suffixes(solver):
            if lost := [name for name in worker.update.state if name not in states.get(suffix, [name])]:
                return (
                    f"a {suffix} snapshot has no place for the state {', '.join(lost)} of "
                    f"{solver.update} (it holds {', '.join(states[suffix])}); give the solver the "
                    f"snapshot_suffixes {(SNAPSHOT,)}"
                )
    return ""


def _suffixes(solver: Solver) -> tuple[str, ...]:
    return solver.snapshot_suffixes or (SNAPSHOT,)


def prefix_of(solver: Solver) -> str:
    """The beginning of the names of a solver's snapshots."""
    return solver.snapshot_prefix or "snapshot"


def _there_already(path: Path) -> str:
    """Describe, for an error, which other files of the iteration exist beside one of its files."""
    iteration = re.match(r".*_iter_\d+(?=\.)", path.name, re.DOTALL)
    if iteration is None:
        return ""
    with suppress(OSError):
        beside = path.parent.glob(f"{glob.escape(iteration[0])}.*")
        if names := sorted(each.name for each in beside if each != path):
            return (
                f"; {' and '.join(names)} of this iteration {'exists' if len(names) == 1 else 'exist'}"
            )
    return ""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
