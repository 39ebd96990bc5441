"""A parameter that two layers share in different shapes of as many elements (share_mode: PERMISSIVE)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import ShapeError

NET = """
name: "one array, two shapes"
layer {{ name: "data" type: "Data" top: "data" top: "label"
         data_param {{ source: "given" batch_size: 3 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" param {{ name: "w" }}
         convolution_param {{ num_output: 4 kernel_size: 2 bias_term: false
                              weight_filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool"
         pooling_param {{ pool: AVE global_pooling: true }} }}
layer {{ name: "scores" type: "InnerProduct" bottom: "pool" top: "scores"
         param {{ name: "w" {mode} }}
         inner_product_param {{ num_output: {outputs} bias_term: false }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" }}
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 random_seed: 1'
X = np.random.default_rng(1).normal(size=(3, 2, 5, 5))
LABEL = np.arange(3)


def net(folder: Path, mode: str, outputs: int) -> Path:
    (folder / "net.prototxt").write_text(NET.format(mode=mode, outputs=outputs))
    (folder / "solver.prototxt").write_text(SOLVER)
    return folder / "solver.prototxt"


def loss(w: np.ndarray) -> float:
    taps = [
        sum(
            w[k, c, i, j] * X[:, c, i : i + 4, j : j + 4]
            for c in range(2)
            for i in range(2)
            for j in range(2)
        ).mean(axis=(1, 2))
        for k in range(4)
    ]
    scores = np.stack(taps, axis=1) @ w.reshape(8, 4).T
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(3), LABEL]))


@pytest.mark.parametrize("plugins", [["caffe", "training", "datasets", "reference"], None], ids=str)
def test_both_layers_see_it_and_both_train_it(tmp_path: Path, plugins: list[str] | None) -> None:
    path = net(tmp_path, "share_mode: PERMISSIVE", 8)
    with demitasse.compose(plugins=plugins) as runtime:
        trainer = runtime.trainer(path, data={"train": {"data": X, "label": LABEL}}, precision="f64")
        w = np.array(trainer.net.params["conv"][0])
        assert trainer.step(1).loss == pytest.approx(loss(w), rel=1e-10)
        after = np.array(trainer.net.params["conv"][0])
    slope = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[place] = 1e-6
        slope[place] = (loss(w + step) - loss(w - step)) / 2e-6
    np.testing.assert_allclose(after, w - 0.1 * slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("mode", "outputs"), [("", 8), ("share_mode: PERMISSIVE", 7)])
def test_without_it_or_with_another_number_of_elements_both_shapes_are_named(
    tmp_path: Path, mode: str, outputs: int
) -> None:
    path = net(tmp_path, mode, outputs)
    shapes = rf"shares parameter 'w' with layer 'conv'.*\(4, 2, 2, 2\).*\({outputs}, 4\)"
    with demitasse.compose() as runtime, pytest.raises(ShapeError, match=shapes):
        runtime.trainer(path, data={"train": {"data": X, "label": LABEL}})
