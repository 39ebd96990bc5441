"""Layers of type Python that give images of many sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycaffe_nets import LAYERS, ON_REFERENCE, net_here, scripts_run_with

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)


@pytest.fixture(autouse=True)
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[demitasse.Runtime]:
    monkeypatch.chdir(tmp_path)
    with scripts_run_with([*ON_REFERENCE, "python_layer"]) as made:
        yield made


def of_many_sizes(weight: float) -> str:
    """A fully convolutional net on images of many sizes, whose only weights begin as one number."""
    n = caffe.NetSpec()
    n.image, n.label = L.Python(module=LAYERS, layer="Images", ntop=2)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": weight}
    )
    n.loss = L.Python(n.score, n.label, module=LAYERS, layer="HalfSquares", loss_weight=1)
    return str(n.to_proto())


def test_a_data_layer_may_give_every_image_its_size() -> None:
    n = caffe.NetSpec()
    n.image, n.label = L.Python(module=LAYERS, layer="Images", ntop=2)
    n.conv = L.Convolution(n.image, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    net = net_here(n, caffe.TEST)
    weight = float(net.params["conv"][0].data.sum())
    for number in range(4):
        result = net.forward()
        assert result["conv"].shape == (1, 1, 3 + number, 4)
        assert np.allclose(result["conv"], (number + 1) * weight)
        assert (result["label"] == 1).all(), "set up once"


def test_a_solver_trains_through_them(allowed: demitasse.Runtime) -> None:
    """Two images to an iteration."""
    Path("train.prototxt").write_text(of_many_sizes(0.1))
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 2 iter_size: 2 '
        "snapshot_after_train: false"
    )
    solver = caffe.get_solver("solver.prototxt")
    solver.step(1)
    # Of images of 3 and of 4 rows, with pixels 1 and then 2.
    gradient = (12 * (0.2 - 1) * 1 + 16 * (0.4 - 1) * 2) / 2
    assert np.allclose(solver.net.params["score"][0].diff.ravel(), gradient, rtol=1e-5)
    assert np.allclose(solver.net.params["score"][0].data.ravel(), 0.1 - 0.001 * gradient, rtol=1e-5)
    solver.solve()
    assert solver.net.blobs["image"].shape == (1, 2, 6, 4)


def test_a_solvers_own_test_follows_images_of_many_sizes(
    allowed: demitasse.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    Path("net.prototxt").write_text(of_many_sizes(0.5))
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" test_iter: 2 test_interval: 5 base_lr: 0 lr_policy: "fixed" '
        "snapshot_after_train: false"
    )
    caplog.set_level("INFO", "demitasse.pycaffe")
    caffe.get_solver("solver.prototxt").step(1)
    # Scores of 1 and then 2 where labels are 1: half the squares of no difference, and of 4 x 4 ones.
    assert "    Test net output #0: loss = 4 (* 1 = 4 loss)" in caplog.messages


def test_a_fully_convolutional_net_learns_and_is_scored(allowed: demitasse.Runtime) -> None:
    """As scripts for segmentation have it: kernels set to interpolate, crops aligned, scores of a test
    net that shares the weights, every scene of another size."""

    def spec(seed: int) -> Any:
        n = caffe.NetSpec()
        n.data, n.label = L.Python(module=LAYERS, layer="Scenes", param_str=str(seed), ntop=2)
        n.conv = L.Convolution(
            n.data, num_output=4, kernel_size=3, pad=6, weight_filler={"type": "gaussian", "std": 0.3}
        )
        n.relu = L.ReLU(n.conv, in_place=True)
        n.pool = L.Pooling(n.relu, kernel_size=2, stride=2)
        n.small = L.Convolution(n.pool, num_output=2, kernel_size=1, weight_filler={"type": "xavier"})
        n.upscore = L.Deconvolution(
            n.small, num_output=2, kernel_size=4, stride=2, bias_term=False, param=[{"lr_mult": 0}]
        )
        n.score = caffe.coord_map.crop(n.upscore, n.data)
        n.loss = L.SoftmaxWithLoss(n.score, n.label, loss_param={"normalize": True, "ignore_label": 255})
        return n.to_proto()

    Path("train.prototxt").write_text(str(spec(1)))
    Path("val.prototxt").write_text(str(spec(2)))
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" test_net: "val.prototxt" test_iter: 5 test_interval: 999999 '
        'base_lr: 0.2 lr_policy: "fixed" momentum: 0.9 test_initialization: false'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    ramp = 1 - np.abs(np.arange(4) - 1.5) / 2
    kernel = solver.net.params["upscore"][0].data
    kernel[range(2), range(2), :, :] = np.outer(ramp, ramp)
    solver.step(40)
    assert np.array_equal(kernel[0, 0], np.outer(ramp, ramp).astype(np.float32)), "it does not learn"
    tested = solver.test_nets[0]
    tested.share_with(solver.net)
    right, pixels, sizes = 0, 0, set()
    for _ in range(5):
        tested.forward()
        label = tested.blobs["label"].data[0, 0]
        right += (tested.blobs["score"].data[0].argmax(0) == label).sum()
        pixels, sizes = pixels + label.size, sizes | {label.shape}
    assert len(sizes) > 1
    assert right / pixels > 0.9


def test_trainers_and_nets_of_the_runtime_follow_images_of_many_sizes(
    allowed: demitasse.Runtime,
) -> None:
    """As pycaffe's solvers do, each image once."""
    Path("net.prototxt").write_text(of_many_sizes(0.1))
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 2 iter_size: 2 test_iter: 2 '
        "test_interval: 9 test_initialization: false snapshot_after_train: false"
    )

    def half_squares(weight: float, bias: float, n: int) -> tuple[float, float]:
        """The loss of the image with pixels ``n`` and 4 x (2 + n) of them, and what makes it so."""
        off = 2 * weight * n + bias - 1
        return 4 * (2 + n) * off**2 / 2, 4 * (2 + n) * off

    with allowed.trainer("solver.prototxt") as trainer:
        weight, bias = 0.1, 0.0
        for numbers in ((1, 2), (3, 4)):
            made = [half_squares(weight, bias, n) for n in numbers]
            assert trainer.step().loss == pytest.approx(np.mean([loss for loss, _ in made]), rel=1e-5)
            slopes = [slope for _, slope in made]
            weight -= 0.001 * np.dot(slopes, numbers) / 2
            bias -= 0.001 * sum(slopes) / 2
            learned = [np.ravel(array) for array in trainer.net.params["score"]]
            np.testing.assert_allclose(np.concatenate(learned), [weight, weight, bias], rtol=1e-5)
            assert trainer.net.blobs["image"].shape == (1, 2, 2 + numbers[-1], 4)
        expected = np.mean([half_squares(weight, bias, n)[0] for n in (1, 2)])
        assert trainer.test() == {"loss": pytest.approx(expected, rel=1e-5)}
    net = allowed.net("net.prototxt")
    for n in (1, 2, 3):
        assert net.forward()["loss"].item() == pytest.approx(half_squares(0.1, 0, n)[0], rel=1e-5)
