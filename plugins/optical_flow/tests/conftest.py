"""A runtime, and nets of a single layer with inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from layer_nets import runner, writer

import demitasse


@pytest.fixture(scope="module")
def runtime() -> Iterator[demitasse.Runtime]:
    plugins = ["caffe", "onnx", "training", "optical_flow", "reference"]
    with demitasse.compose(plugins=plugins) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write the file of a net: layers whose inputs have the shapes of the arrays, by blob name."""
    return writer(tmp_path_factory.mktemp("nets") / "net.prototxt")


@pytest.fixture(scope="module")
def run(runtime: demitasse.Runtime, written: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """Return the outputs of layers on arrays by blob name, in float64."""
    return runner(runtime, written)
