"""What tests of gradients share: training one step, and the slopes of a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DATA = (
    'name: "net" layer {{ name: "data" type: "Data" top: "data" top: "label" '
    'data_param {{ source: "given" batch_size: {} }} }}\n'
)


def parameter(name: str, value: np.ndarray) -> str:
    """A layer whose blob ``name`` is its parameter, with room for ``value``."""
    dims = " ".join(f"dim: {extent}" for extent in value.shape)
    return (
        f'layer {{ name: "{name}" type: "Parameter" top: "{name}" '
        f"parameter_param {{ shape {{ {dims} }} }} }}\n"
    )


def train(runtime: Any, folder: Path, text: str, label: np.ndarray, precision: str = "f64") -> Any:
    """A trainer whose step, at a rate of 1 and without momentum, moves parameters by their gradients."""
    (folder / "net.prototxt").write_text(DATA.format(len(label)) + text)
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 9 random_seed: 5'
    )
    samples = {"data": np.zeros((len(label), 1)), "label": label}
    return runtime.trainer(folder / "solver.prototxt", precision=precision, data={"train": samples})


def step(trainer: Any, values: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and the gradient of each parameter that is a blob."""
    params = trainer.net.params
    for name, value in values.items():
        params[name][0][...] = value
    loss = trainer.step().loss
    return loss, {name: value - trainer.net.params[name][0] for name, value in values.items()}


def slope(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Central differences."""
    gradient = np.zeros_like(at)
    for where in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][where] += 1e-5
        moved[1][where] -= 1e-5
        gradient[where] = (function(moved[0]) - function(moved[1])) / 2e-5
    return gradient
