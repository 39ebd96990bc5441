"""Nets of one layer, or a few, below inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import demitasse

INPUT = "layer {{ name: 'in_{0}' type: 'Input' top: '{0}' input_param {{ shape {{ {1} }} }} }}\n"


def writer(path: Path) -> Callable[..., Path]:
    """``write(layers, name=array)``: the file of a net of layers below inputs in the arrays' shapes."""

    def write(layers: str, **arrays: np.ndarray) -> Path:
        shapes = {n: " ".join(f"dim: {extent}" for extent in a.shape) for n, a in arrays.items()}
        path.write_text("".join(INPUT.format(*each) for each in shapes.items()) + layers)
        return path

    return write


def runner(runtime: demitasse.Runtime, write: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """``run(layers, phase, name=array)``: the outputs of layers on arrays, in float64."""

    def run(layers: str, phase: str = "test", **arrays: np.ndarray) -> dict[str, Any]:
        net = runtime.net(write(layers, **arrays), precision="f64", phase=phase)
        made: dict[str, Any] = net.forward(**arrays)
        net.close()
        return made

    return run
