"""Nets with BatchNorm and Scale from prototxt to caffemodel: what training keeps, and what tests use."""

from pathlib import Path

import numpy as np
import pytest

import demitasse

LAYERS = """
layer {
  name: "norm" type: "BatchNorm" bottom: "data" top: "norm"
  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }
  batch_norm_param { moving_average_fraction: 0.75 eps: 0.01 }
}
layer {
  name: "scale" type: "Scale" bottom: "norm" top: "norm"
  scale_param { bias_term: true filler { value: 1.5 } }
}
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer {
  name: "out" type: "InnerProduct" bottom: "norm" top: "out"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } }
}
"""
TRAINED = f"""
name: "normalised"
layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "x" batch_size: 4 }} }}
{LAYERS}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }}
"""
DEPLOYED = f"""
name: "normalised"
layer {{
  name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 4 dim: 5 dim: 6 dim: 7 }} }}
}}
{LAYERS}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9 random_seed: 3 momentum: 0.9
weight_decay: 0.1 test_iter: 3 test_interval: 100 snapshot_after_train: false
"""
AXES = (0, 2, 3)


def samples() -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    return {
        "data": random.normal(2, 3, size=(12, 5, 6, 7)).astype(np.float32),
        "label": random.integers(0, 3, 12),
    }


@pytest.fixture(params=["reference", "cpu"])
def runtime(request: pytest.FixtureRequest):
    plugins = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(plugins))) as runtime:
        yield runtime


@pytest.fixture
def trained(runtime: demitasse.Runtime, tmp_path: Path):
    """A trainer after three batches of four samples, all different."""
    (tmp_path / "net.prototxt").write_text(TRAINED)
    (tmp_path / "deploy.prototxt").write_text(DEPLOYED)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    data = {"train": samples(), "test": samples()}
    with runtime.trainer(tmp_path / "solver.prototxt", data=data) as trainer:
        trainer.step(3)
        yield trainer


def batches() -> list[np.ndarray]:
    return np.split(samples()["data"].astype(np.float64), 3)


def expected_sums() -> list[np.ndarray]:
    mean, variance, factor = np.zeros(5), np.zeros(5), np.zeros(1)
    for batch in batches():
        mean = 0.75 * mean + batch.mean(axis=AXES)
        variance = 0.75 * variance + batch.var(axis=AXES, ddof=1)
        factor = 0.75 * factor + 1
    return [mean, variance, factor]


def normalised(x: np.ndarray, parameters: dict[str, list[np.ndarray]]) -> np.ndarray:
    """What the layers up to the ReLU make of x by the kept statistics."""
    mean, variance, factor = parameters["norm"]
    w, b = parameters["scale"]
    mean, deviation = mean / factor, np.sqrt(variance / factor + 0.01)
    shaped = [v[:, None, None].astype(np.float64) for v in (mean, deviation, w, b)]
    return np.maximum((x - shaped[0]) / shaped[1] * shaped[2] + shaped[3], 0)


def test_training_keeps_sums_of_its_batches_statistics(trained) -> None:
    for kept, expected in zip(trained.net.params["norm"], expected_sums(), strict=True):
        np.testing.assert_allclose(kept, expected, rtol=1e-5)
    scale, bias = trained.net.params["scale"]
    assert (scale != 1.5).all()
    assert bias.all()


def test_a_test_is_by_what_training_keeps(trained) -> None:
    data, parameters = samples(), trained.net.params
    w, b = (v.astype(np.float64) for v in parameters["out"])
    scores = normalised(data["data"], parameters).reshape(12, -1) @ w.T + b
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(likely[np.arange(12), data["label"]]).mean()
    before = [v.copy() for v in parameters["norm"]]
    assert trained.test()["loss"] == pytest.approx(expected, rel=1e-4)
    for kept, same in zip(trained.net.params["norm"], before, strict=True):
        assert np.array_equal(kept, same)


def test_statistics_come_back_from_a_caffemodel(
    runtime: demitasse.Runtime, trained, tmp_path: Path
) -> None:
    written = runtime.write(
        tmp_path / "net.caffemodel", runtime.read(trained.snapshot(tmp_path / "net")).weights()
    )
    blobs = runtime.read(written).weights().parameters
    assert [v.shape for v in blobs["norm"]] == [(5,), (5,), (1,)]
    net = runtime.net(tmp_path / "deploy.prototxt", weights=written, retain="all")
    for layer, arrays in trained.net.params.items():
        for ours, theirs in zip(net.params[layer], arrays, strict=True):
            assert np.array_equal(ours, theirs), layer
    x = batches()[1]
    net.forward(data=x)
    found = np.array(net.blobs["norm"])
    np.testing.assert_allclose(found, normalised(x, net.params), rtol=1e-4, atol=1e-5)


def test_training_goes_on_from_a_snapshot_to_the_same_bits(
    runtime: demitasse.Runtime, trained, tmp_path: Path
) -> None:
    path = trained.snapshot(tmp_path / "three")
    trained.step(2)
    data = {"train": samples(), "test": samples()}
    with runtime.trainer(tmp_path / "solver.prototxt", data=data, resume=path) as other:
        other.step(2)
        for layer, arrays in trained.net.params.items():
            for ours, theirs in zip(other.net.params[layer], arrays, strict=True):
                assert np.array_equal(ours, theirs), layer
