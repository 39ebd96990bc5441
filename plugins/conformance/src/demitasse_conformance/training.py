"""A check by training: a small planned net, with a plugin's kernels and with the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import Machine, compose
from demitasse_conformance.machines import BASE, PLAINEST, machine_of
from demitasse_conformance.nets import NETS
from demitasse_conformance.promises import hold

WITHIN = {"f64": 1e-8, "f32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}
"""The relative tolerance of each loss against the reference's in double precision. If two numbers are
nearly equal, or one is nearly 0, a net of maxima and rectifiers may take another branch, which can
change the loss by a hundredth."""
CHANGED = {"f64": 1e-6, "f32": 1e-2}
"""The tolerance of a parameter against the reference's, relative to the largest change in its array, so
that gradients are checked, too. In lower precisions, only the losses are compared."""
STILL = 1e-3
"""The part of the largest change of all that counts as a change: a bias before a normalisation does not
change, except by rounding."""
ITERATIONS = 4
"""Few enough that rounding errors have not grown."""


@dataclass(frozen=True)
class Run:
    """A training's losses, its parameters by layer and number, at the beginning and at the end, and the
    plugins that compute the operations of its plan."""

    owners: Sequence[str]
    losses: Sequence[float]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]


def check_training(
    plugins: Sequence[Any],
    name: str,
    precision: str = "f32",
    hw: str | Path | Machine | None = None,
    options: Mapping[str, Any] | None = None,
) -> float:
    """Train a small net for four iterations with plugin ``name``, the first of ``plugins`` that
    computes, and compare losses and parameters with the reference plugin's in double precision. Unlike
    single kernels, this covers the plan's layouts, joined operations, and memory that tensors share.
    Return the largest relative difference of a loss. Raises BrokenPromiseError."""
    return beside_the_reference(plugins, name, precision, hw, options)[0]


def beside_the_reference(
    plugins: Sequence[Any],
    name: str,
    precision: str,
    hw: str | Path | Machine | None,
    options: Mapping[str, Any] | None,
) -> tuple[float, int]:
    """Do as ``check_training``; also return how many operations of the plan the plugin computes."""
    expected = _run(PLAINEST, BASE, "f64", {})
    machine = hw or machine_of(plugins, name)
    found = _run(machine, plugins, precision, {name: options} if options else {})
    far = 0.0
    for number, (ours, theirs) in enumerate(zip(found.losses, expected.losses, strict=True)):
        far = max(far, abs(ours - theirs) / abs(theirs))
        hold(
            far <= WITHIN[precision],
            f"the loss of iteration {number} is {ours:.6g}, but the reference's is {theirs:.6g}",
        )
    if precision in CHANGED:
        _hold_parameters(found, expected, CHANGED[precision])
    return far, found.owners.count(name)


def _hold_parameters(found: Run, expected: Run, within: float) -> None:
    """Compare how the iterations changed the parameters."""
    changes = {
        name: float(np.abs(expected.after[name] - before).max(initial=0.0))
        for name, before in expected.before.items()
    }
    least = STILL * max(changes.values())
    for name, change in changes.items():
        far = float(np.abs(found.after[name] - expected.after[name]).max(initial=0.0))
        far /= max(change, least)
        hold(
            far <= within,
            f"after {ITERATIONS} iterations {name} is {far:.2g} of its change from the reference's",
        )


def _run(machine: Any, plugins: Sequence[Any], precision: str, options: Mapping[str, Any]) -> Run:
    with compose(machine, plugins, options) as runtime:
        solver = NETS / "trained_solver.prototxt"
        trainer = runtime.trainer(solver, data={"train": _samples()}, precision=precision)
        before = _parameters(trainer)
        losses = [trainer.step().loss for _ in range(ITERATIONS)]
        after = _parameters(trainer)
        owners = [entry.plugin for entry in trainer.plan.entries]
        trainer.close()
    return Run(owners, losses, before, after)


def _parameters(trainer: Any) -> dict[str, np.ndarray]:
    return {
        f"parameter {number} of layer {layer!r}": np.array(array, np.float64)
        for layer, row in trainer.net.params.items()
        for number, array in enumerate(row)
    }


def _samples() -> dict[str, np.ndarray]:
    """Return images of three classes, each brighter in a different part."""
    random = np.random.default_rng(2)
    label = np.arange(60) % 3
    images = random.normal(size=(60, 3, 9, 9))
    for number, which in enumerate(label):
        images[number, which, 3 * which : 3 * which + 3] += 1.0
    return {"data": images, "label": label}
