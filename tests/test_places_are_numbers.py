"""Whole numbers that layers give as blobs, the places of maxima and a count of rows, are real numbers to
the layers that read them, as all blobs of Caffe's are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_nets import net_below

import demitasse
from demitasse import Runtime

POOL = """
layer { name: "pool" type: "Pooling" bottom: "x" top: "y" top: "places"
  pooling_param { kernel_size: 2 stride: 2 } }
"""
FILTER = 'layer { name: "f" type: "Filter" bottom: "x" bottom: "which" top: "y" top: "places" }'
READERS = {
    "Power": ("power_param { power: -1 shift: 0.5 }", lambda n: 1 / (n + 0.5)),
    "Sigmoid": ("", lambda n: 1 / (1 + np.exp(-n))),
    "Exp": ("exp_param { scale: 0.1 }", lambda n: np.exp(0.1 * n)),
    "ReLU": ("", lambda n: n),
}
X = np.random.default_rng(3).normal(size=(2, 3, 4, 6)).astype(np.float32)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    kernels = dict.fromkeys([request.param, "reference"])
    with demitasse.compose(plugins=["caffe", "onnx", "datasets", "training", *kernels]) as composed:
        yield composed


def places() -> np.ndarray:
    """The flat index in its plane of each window's largest."""
    found = np.empty((2, 3, 2, 3))
    for n, c, i, j in np.ndindex(found.shape):
        window = X[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        row, column = divmod(int(window.argmax()), 2)
        found[n, c, i, j] = (2 * i + row) * 6 + 2 * j + column
    return found


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("kind", READERS)
def test_what_reads_the_places_of_maxima_has_fractions(
    runtime: Runtime, tmp_path: Path, kind: str, precision: str
) -> None:
    parameters, function = READERS[kind]
    layers = POOL + f'layer {{ name: "r" type: "{kind}" bottom: "places" top: "r" {parameters} }}'
    net = net_below(runtime, tmp_path, layers, precision, x=X.shape)
    found = net.forward(x=X)["r"]
    np.testing.assert_allclose(found, function(places()), rtol=1e-2 if precision == "bf16" else 1e-6)


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_places_are_joined_with_what_has_fractions(
    runtime: Runtime, tmp_path: Path, precision: str
) -> None:
    layers = POOL + 'layer { name: "r" type: "Concat" bottom: "places" bottom: "y" top: "r" }'
    net = net_below(runtime, tmp_path, layers, precision, x=X.shape)
    largest = X.reshape(2, 3, 2, 2, 3, 2).max(axis=(3, 5))
    np.testing.assert_array_equal(net.forward(x=X)["r"], np.concatenate([places(), largest], 1))


def test_a_count_of_rows_can_divide(runtime: Runtime, tmp_path: Path) -> None:
    layers = (
        FILTER
        + """layer { name: "r" type: "Power" bottom: "places" top: "r"
      power_param { power: -1 } }"""
    )
    net = net_below(runtime, tmp_path, layers, x=(5, 2), which=(5,))
    found = net.forward(x=np.ones((5, 2)), which=np.array([1, 0, 1, 1, 0]))["r"]
    assert float(found) == pytest.approx(1 / 3)


def test_what_is_learned_behind_places_has_a_gradient_and_what_lies_before_has_none(
    runtime: Runtime, tmp_path: Path
) -> None:
    """The loss is the sum of places + b: b has as many as there are, the convolution before nothing."""
    (tmp_path / "net.prototxt").write_text(
        """
layer { name: "x" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 2 } }
layer { name: "before" type: "Convolution" bottom: "data" top: "x"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
"""
        + POOL
        + """
layer { name: "b" type: "Bias" bottom: "places" top: "b" bias_param { axis: 0 num_axes: 0 } }
layer { name: "sum" type: "Reduction" bottom: "b" top: "sum" loss_weight: 1 }
"""
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 1'
    )
    given = {"train": {"data": X, "label": np.zeros(2)}}
    with runtime.trainer(tmp_path / "solver.prototxt", precision="f64", data=given) as trainer:
        before = [np.array(a) for a in trainer.net.params["before"]]
        trainer.step(1)
        assert float(trainer.net.params["b"][0]) == pytest.approx(-36)
        for was, now in zip(before, trainer.net.params["before"], strict=True):
            assert np.array_equal(was, now)
