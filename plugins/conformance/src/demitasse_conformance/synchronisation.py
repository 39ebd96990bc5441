"""Checks of synchronisations: siblings must train as one worker does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import Level, Machine, SyncSpec, compose
from demitasse_conformance.machines import PLAINEST, PROMISES
from demitasse_conformance.nets import NETS
from demitasse_conformance.promises import hold

WITHIN = 1e-9
"""The tolerance of a parameter against one worker's or a sibling's, relative to the largest: sums may be
added in another order."""
ITERATIONS = 10
LEARNING = 40
"""The number of iterations in which the loss has to fall."""
EPOCH = 4
"""The number of losses that are averaged: those of an epoch of the kit's samples."""
LEARNT = 0.9
"""A loss falls if at most this part of the first losses is left."""


@dataclass(frozen=True)
class Run:
    """The result of a training: parameters by layer and number, the flat parameters of each worker, and
    the loss of each iteration."""

    parameters: Mapping[str, np.ndarray]
    siblings: Sequence[np.ndarray]
    losses: Sequence[float]


def check_sync(
    plugins: Sequence[Any],
    plugin: str,
    solver: str | Path | None = None,
    data: Mapping[str, Any] | None = None,
    workers: int = 3,
    promise: str = "exact",
    hw: Machine | str | Path | None = None,
    **options: Any,
) -> float:
    """Check that a plugin's synchronisation of ``workers`` threads keeps its ``promise``: ``exact``,
    ``agreeing`` or ``learning``. Trains ten iterations (forty if the loss has to fall) of ``solver`` on
    ``data``, by default of a small net of the kit's own, in double precision. ``options`` are those of a
    description's ``sync``; ``hw`` is a machine with a ``sync``, to use in place of threads. Siblings
    that agree must also have the same parameters after continuing from a snapshot. Return the largest
    difference of a parameter from one worker's, relative to the largest in its array. Raises
    BrokenPromiseError."""
    if promise not in PROMISES:
        raise ValueError(f"promise {promise!r} (valid: {', '.join(PROMISES)})")
    path = NETS / "synchronised_solver.prototxt" if solver is None else Path(solver)
    given = data or {"train": _samples()}
    level = Level("node", count=workers, cores=1, workers="threads", sync=SyncSpec(plugin, options))
    several = hw or Machine(f"{workers} threads", (level,), fingerprint="any")
    iterations = ITERATIONS if promise == "exact" else LEARNING
    alone, found = (_run(machine, plugins, path, given, iterations) for machine in (PLAINEST, several))
    if promise != "exact":
        first, last = float(np.mean(found.losses[:EPOCH])), float(np.mean(found.losses[-EPOCH:]))
        told = f"the loss is {first:.4g} at first and {last:.4g} after {iterations} iterations"
        hold(last <= LEARNT * first, told)
    first_sibling, *others = found.siblings
    for number, other in enumerate(others if promise != "learning" else (), 1):
        far = float(np.abs(other - first_sibling).max(initial=0.0)) / _largest(first_sibling)
        hold(
            far <= WITHIN,
            f"after {iterations} iterations a parameter of sibling {number} is {far:.2g} of the largest "
            f"from sibling 0's",
        )
    apart, name = _furthest(found, alone)
    hold(
        promise != "exact" or apart <= WITHIN,
        f"after {iterations} iterations {name} is {apart:.2g} of its largest number from what one "
        f"worker has; a synchronisation sums gradients, which are weighted already, and does not divide",
    )
    if promise != "learning":
        resumed = _run(several, plugins, path, given, iterations, iterations // 2)
        far, name = _furthest(resumed, found)
        hold(
            far <= WITHIN,
            f"after {iterations} iterations, half of them from a snapshot on, {name} is {far:.2g} of "
            f"its largest number from that of a run that never stopped; state that a synchronisation "
            f"keeps between iterations must be returned by saved, and taken back by restore",
        )
    return apart


def _run(
    machine: Any,
    plugins: Sequence[Any],
    solver: Path,
    data: Mapping[str, Any],
    iterations: int,
    stop: int = 0,
) -> Run:
    """Run this many iterations; if ``stop`` is given, continue from a snapshot after that number."""
    names = [*plugins, *({"snapshots"} - {each for each in plugins if isinstance(each, str)})]
    with compose(machine, names) as runtime, tempfile.TemporaryDirectory() as folder:
        trainer = runtime.trainer(solver, data=data, precision="f64")
        losses = [trainer.step().loss for _ in range(stop)]
        if stop:
            path = trainer.snapshot(Path(folder, "kit"))
            trainer.close()
            trainer = runtime.trainer(solver, data=data, precision="f64", resume=path)
        losses += [trainer.step().loss for _ in range(iterations - stop)]
        if solver.parent == NETS:  # tests of another solver may need samples that were not given
            trainer.test()  # like a snapshot, a test first quiesces the synchronisation
        parameters = {
            f"parameter {number} of layer {layer!r}": array.copy()
            for layer, row in trainer.net.params.items()
            for number, array in enumerate(row)
        }
        siblings = [np.array(np.asarray(a)) for _, name, a in trainer.arrays() if name == "parameters"]
        trainer.close()
    return Run(parameters, siblings, losses)


def _furthest(run: Run, other: Run) -> tuple[float, str]:
    """Return the largest difference of a parameter from another run's, relative to the largest in its
    array, and that parameter's name."""
    return max(
        (float(np.abs(run.parameters[name] - array).max(initial=0.0)) / _largest(array), name)
        for name, array in other.parameters.items()
    )


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0)) or 1.0


def _samples() -> dict[str, np.ndarray]:
    """Return points of three classes, each a half-space."""
    random = np.random.default_rng(1)
    points = random.normal(size=(96, 5))
    return {"data": points, "label": (points @ random.normal(size=(5, 3))).argmax(axis=1)}
