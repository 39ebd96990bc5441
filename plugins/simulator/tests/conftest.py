"""Machines, nets and caches that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "none" batch_size: 16 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 8 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
        pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

SOLVER = 'net: "net.prototxt"\nbase_lr: 0.01\nlr_policy: "fixed"\nmomentum: 0.9\nmax_iter: 10\n'

HEAD = """schema = 1
name = "made-up"
plugins = ["caffe", "training", "reference", "allreduce", "simulator"]
"""


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    """A solver whose samples do not exist."""
    (tmp_path / "net.prototxt").write_text(NET)
    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    """Write a description from the text of its levels."""

    def write(levels: str) -> Path:
        path = tmp_path / "made-up.toml"
        path.write_text(HEAD + levels)
        return path

    return write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test measures is remembered in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
