"""A runtime, and nets of one layer below inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse

INPUT = "layer {{ name: 'in_{0}' type: 'Input' top: '{0}' input_param {{ shape {{ {1} }} }} }}\n"


@pytest.fixture(scope="module")
def runtime() -> Iterator[demitasse.Runtime]:
    plugins = ["caffe", "onnx", "training", "optical_flow", "reference"]
    with demitasse.compose(plugins=plugins) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The file of a net: layers below inputs in the shapes of arrays by blob name."""
    path = tmp_path_factory.mktemp("nets") / "net.prototxt"

    def written(layers: str, **arrays: np.ndarray) -> Path:
        shapes = {n: " ".join(f"dim: {extent}" for extent in a.shape) for n, a in arrays.items()}
        path.write_text("".join(INPUT.format(*each) for each in shapes.items()) + layers)
        return path

    return written


@pytest.fixture(scope="module")
def run(runtime: demitasse.Runtime, written: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """The outputs of layers on arrays by blob name, in float64."""

    def run(layers: str, phase: str = "test", **arrays: np.ndarray) -> dict[str, Any]:
        net = runtime.net(written(layers, **arrays), precision="f64", phase=phase)
        made: dict[str, Any] = net.forward(**arrays)
        net.close()
        return made

    return run
