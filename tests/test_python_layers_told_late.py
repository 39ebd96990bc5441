"""Layers of type Python that tell the shapes of their tops only as they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from pycaffe_nets import LAYERS, ON_REFERENCE, net_here, scripts_run_with

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)


@pytest.fixture(autouse=True)
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[demitasse.Runtime]:
    monkeypatch.chdir(tmp_path)
    with scripts_run_with([*ON_REFERENCE, "python_layer"]) as made:
        yield made


def test_a_layer_within_a_net_may_give_as_many_rows_as_it_finds() -> None:
    """As layers that propose regions do: what lies behind is planned again, and each layer that runs a
    script's code is called once, those too that read samples."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.rows = L.Reshape(n.image, shape={"dim": [-1, 2]})
    n.chosen = L.Python(n.rows, module=LAYERS, layer="Choosing", param_str="1")
    n.again = L.Python(n.chosen, module=LAYERS, layer="Slope", param_str="2")
    n.sum = L.InnerProduct(
        n.chosen, num_output=1, bias_term=False, weight_filler={"type": "constant", "value": 3}
    )
    net = net_here(n, caffe.TEST)
    random = np.random.default_rng(1)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (4, 9, 9, 3)]
    for sample in samples:
        assert (sample.reshape(-1, 2)[:, 0] > 0).any()
    net.layers[0].give(samples)
    for sample in samples:
        rows = sample.reshape(-1, 2)
        chosen = rows[rows[:, 0] > 0]
        made = net.forward()
        np.testing.assert_allclose(made["sum"], 3 * chosen.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
        assert net.blobs["chosen"].shape == chosen.shape
        np.testing.assert_allclose(made["again"], 2 * chosen, rtol=1e-6)
    assert net.layers[0].number == len(samples)


def test_a_training_follows_a_layer_that_finds_another_number_of_rows() -> None:
    """The loss is the sum of what is positive of w x; its gradient the sum of those x."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.rows = L.Reshape(n.image, shape={"dim": [-1, 2]})
    n.score = L.InnerProduct(
        n.rows, num_output=1, bias_term=False, weight_filler={"type": "constant", "value": 1}
    )
    n.picked = L.Python(n.score, module=LAYERS, layer="Picking", param_str="1", propagate_down=True)
    n.loss = L.Reduction(n.picked, loss_weight=1)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" iter_size: 2 max_iter: 4'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    random = np.random.default_rng(2)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (4, 9, 9, 3)]
    solver.net.layers[0].give(samples)
    w = np.ones(2)
    for first in (0, 2):
        solver.step(1)
        gradient = np.zeros(2)
        for sample in samples[first : first + 2]:
            rows = sample.reshape(-1, 2)
            gradient += rows[rows @ w > 0].sum(0) / 2
        w -= 0.01 * gradient
        np.testing.assert_allclose(solver.net.params["score"][0].data[0], w, rtol=1e-5)
    assert solver.net.layers[0].number == len(samples)


def test_a_training_follows_targets_for_each_place_of_images_of_many_sizes() -> None:
    """As Faster R-CNN's layers make them: a layer behind them cannot take an image of another size until
    they have run. Each runs once for an image; running means move once."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, bias_term=False, weight_filler={"type": "constant"}
    )
    n.target = L.Python(n.score, module=LAYERS, layer="Targets")
    n.more = L.Python(n.target, module=LAYERS, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    n.further = L.EuclideanLoss(n.score, n.more, propagate_down=[True, False])
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" iter_size: 2 max_iter: 4'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    random = np.random.default_rng(2)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (6, 9, 9, 3)]
    layers = dict(zip(solver.net._layer_names, solver.net.layers, strict=True))
    layers["image"].give(samples)
    w, mean = 0.0, 0.0
    for first in (0, 2):
        solver.step(1)
        gradient = 0.0
        for sample in samples[first : first + 2]:
            target = np.arange(sample.size).reshape(sample.shape) / 10
            gradient += 2 * (sample * (w * sample - target)).sum() / 2
            mean = mean / 2 + sample.mean()
        w -= 0.01 * gradient
        np.testing.assert_allclose(solver.net.params["score"][0].data.item(), w, rtol=1e-4)
        np.testing.assert_allclose(solver.net.params["bn"][0].data.item(), mean, rtol=1e-4)
        assert solver.net.blobs["target"].shape == samples[first + 1].shape
    assert layers["image"].number == len(samples)
    assert [layers[name].calls for name in ("target", "more")] == [4, 4]


def test_a_net_goes_on_after_an_image_that_it_cannot_take() -> None:
    """Too small for a layer behind the targets, or an error in the user's own code: plans, blobs and
    running means are those from before."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 1}
    )
    n.target = L.Python(n.score, module=LAYERS, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    n.tail = L.Convolution(n.bn, num_output=1, kernel_size=2)
    net = net_here(n)
    image = dict(zip(net._layer_names, net.layers, strict=True))["image"]

    def means() -> list[float]:
        return [blob.data.item() for blob in net.params["bn"]]

    def forward(rows: int, value: float = 1.0) -> None:
        image.give([np.full((1, 1, rows, 4), value)])
        net.forward()
        assert net.blobs["target"].shape == (1, 1, rows, 4)

    forward(3)
    for rows, value, message in (
        (1, 1.0, r"layer 'tail' \(Convolution\)"),
        (5, 100.0, "no target for that"),
    ):
        before = means()
        with pytest.raises(demitasse.DemitasseError, match=message):
            forward(rows, value)
        assert means() == before
        assert net.blobs["target"].shape == (1, 1, 3, 4)
        forward(3)
        assert means() != before, "a pass moves them"
        for rows in (2, 6, 3):
            forward(rows)


@pytest.mark.parametrize("passes", [1, 2])
def test_targets_are_made_of_the_same_random_numbers_as_the_pass_that_uses_them(
    allowed: demitasse.Runtime, passes: int
) -> None:
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.drop = L.Dropout(n.image)
    n.score = L.Convolution(n.drop, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    n.target = L.Python(n.drop, module=LAYERS, layer="Twice")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        f'train_net: "net.prototxt" base_lr: 0 lr_policy: "fixed" iter_size: {passes} max_iter: 9'
    )
    solver, masks = caffe.SGDSolver("solver.prototxt"), set()
    for rows in (4, 9, 6, 9):
        solver.net.layers[0].give([np.ones((1, 1, rows, 4))] * passes)
        solver.step(1)
        drop = solver.net.blobs["drop"].data
        np.testing.assert_array_equal(solver.net.blobs["target"].data, 2 * drop)
        masks.add(tuple(drop.ravel()[:16]))
    assert len(masks) == 4, "each iteration has its own"


def test_samples_are_there_again_where_a_pass_begins_again() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    with h5py.File("x.h5", "w") as file:
        file["data"] = x
    Path("list.txt").write_text("x.h5\n")
    n = caffe.NetSpec()
    n.data = L.HDF5Data(source="list.txt", batch_size=8)
    n.bn = L.BatchNorm(n.data)
    n.chosen = L.Python(n.data, module=LAYERS, layer="Choosing", param_str="1")
    net = net_here(n)
    for number in range(4):
        made = net.forward()
        rows = x[8 * number : 8 * number + 8]
        np.testing.assert_array_equal(made["chosen"], rows[rows[:, 0] > 0])
        np.testing.assert_array_equal(net.blobs["data"].data, rows)
        np.testing.assert_allclose(made["bn"].mean(0), 0, atol=1e-6)
    weight = sum(0.999**number for number in range(4))
    assert net.params["bn"][2].data.item() == pytest.approx(weight), "means moved four times"


def test_a_layer_that_settles_on_a_shape_is_followed() -> None:
    def forward(often: str) -> np.ndarray:
        n = caffe.NetSpec()
        n.data = L.Input(shape={"dim": [1, 3]})
        n.own = L.Python(n.data, module=LAYERS, layer="Growing", param_str=often)
        return net_here(n).forward()["own"]

    np.testing.assert_array_equal(forward("1"), [[7, 7, 7, 7]])
    with pytest.raises(ShapeError, match=r"Growing: reshape made tops of \(\(1, \d\),\), but"):
        forward("0")


def test_a_script_calls_its_layer_which_tells_shapes_as_it_reads() -> None:
    """As Faster R-CNN's scripts do: net.layers has the layer's own object, and forward reshapes."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.sum = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 2}
    )
    net = net_here(n, caffe.TEST)
    random = np.random.default_rng(0)
    samples = [random.normal(size=(1, 1, *size)) for size in ((4, 4), (5, 3), (5, 3), (2, 7))]
    layer = net.layers[0]
    assert layer is net.layer_dict["image"]
    assert (type(layer).__name__, layer.type, net.layers[1].type) == ("Fed", "Python", "Convolution")
    layer.give(samples)
    for sample in samples:
        assert np.allclose(net.forward()["sum"], 2 * sample)
        assert net.blobs["image"].shape == sample.shape
        net.blobs["image"].data[...] = 1
        assert np.allclose(net.forward(start="sum")["sum"], 2), "nothing is read by a layer left out"
    assert layer.number == len(samples)


def test_callbacks_see_each_layer_once_where_shapes_are_told_late() -> None:
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Fed")
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 1}
    )
    n.target = L.Python(n.score, module=LAYERS, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    net = net_here(n)
    seen: list[int] = []
    net.before_forward(seen.append)
    image, target = net.layer_dict["image"], net.layer_dict["target"]
    stop = False

    def check(number: int) -> None:
        if stop and number == 1:
            raise RuntimeError("enough")

    net.after_forward(check)
    image.give([np.full((1, 1, rows, 4), rows) for rows in (3, 6, 2, 5, 4)])
    for rows in (3, 6, 2):
        seen.clear()
        net.forward()
        assert net.blobs["target"].shape == (1, 1, rows, 4)
        assert np.all(net.blobs["score"].data == rows)
        assert len(set(seen)) == len(seen) == len(net.layers)
    assert (image.number, target.calls) == (3, 3)
    stop = True
    with pytest.raises(RuntimeError, match="enough"):
        net.forward()
    stop = False
    net.forward()
    assert np.all(net.blobs["score"].data == 4), "nothing of the pass that ended early is taken again"


def test_trainers_and_nets_of_the_runtime_follow_what_is_told_late(allowed: demitasse.Runtime) -> None:
    """Targets for each place of images of many sizes, and as many rows as are positive: as pycaffe's
    solvers do, to the bit, dropped numbers and running means too."""
    n = caffe.NetSpec()
    n.image = L.Python(module=LAYERS, layer="Sizes", param_str="3")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.drop = L.Dropout(n.bn)
    n.score = L.Convolution(n.drop, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    n.target = L.Python(n.score, module=LAYERS, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False], loss_weight=0.001)
    n.rows = L.Reshape(n.score, shape={"dim": [-1, 1]})
    n.picked = L.Python(n.rows, module=LAYERS, layer="Picking", param_str="1", propagate_down=True)
    n.loss = L.Reduction(n.picked, loss_weight=0.001)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 3 iter_size: 2 '
        "random_seed: 1 snapshot_after_train: false"
    )
    solver = caffe.SGDSolver("solver.prototxt")
    solver.step(3)
    with allowed.trainer("solver.prototxt") as trainer:
        assert trainer.varying == ["image", "target"]
        trainer.run()
        for name, arrays in trainer.net.params.items():
            for mine, theirs in zip(arrays, solver.net.params[name], strict=True):
                np.testing.assert_array_equal(mine, theirs.data)
    net = allowed.net("net.prototxt", phase="train", retain="all")
    shapes = []
    for _ in range(4):
        made = net.forward()
        assert net.blobs["picked"].shape[1:] == (1,)
        assert np.isfinite(made["loss"])
        shapes.append(net.blobs["picked"].shape)
    assert len(set(shapes)) > 1
