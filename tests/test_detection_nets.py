"""Nets of SSD's fork: MobileNet-SSD and small ones beside OpenCV, which reads the same prototxt and the
caffemodel that we write; what simulates, explains, draws and times nets; pycaffe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_texts import LEARNT
from real_files import DATA
from small_nets import random_weights

import demitasse

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

SSD = DATA / "prototxt" / "chuanqi305+MobileNet-SSD"
ZF = DATA.joinpath(
    *("prototxt", "rbgirshick+py-faster-rcnn", "models", "pascal_voc", "ZF"),
    *("faster_rcnn_end2end", "test.prototxt"),
)
needs_ssd = pytest.mark.skipif(not SSD.is_dir(), reason=f"no nets of SSD under {DATA}")
HEAD = """
layer {{ name: "data" type: "Input" top: "data"
  input_param {{ shape {{ dim: 2 dim: 3 dim: 24 dim: 32 }} }} }}
layer {{ name: "x" type: "Convolution" bottom: "data" top: "x" convolution_param {{ num_output: 8
  kernel_size: 8 stride: 8 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loc" type: "Convolution" bottom: "x" top: "loc" convolution_param {{ num_output: {places}
  kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loc_p" type: "Permute" bottom: "loc" top: "loc_p"
  permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
layer {{ name: "loc_f" type: "Flatten" bottom: "loc_p" top: "loc_f" }}
layer {{ name: "conf" type: "Convolution" bottom: "x" top: "conf" convolution_param {{
  num_output: {scores} kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "conf_p" type: "Permute" bottom: "conf" top: "conf_p"
  permute_param {{ order: 0 order: 2 order: 3 order: 1 }} }}
layer {{ name: "conf_r" type: "Reshape" bottom: "conf_p" top: "conf_r"
  reshape_param {{ shape {{ dim: 0 dim: -1 dim: 4 }} }} }}
layer {{ name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param {{ axis: 2 }} }}
layer {{ name: "conf_f" type: "Flatten" bottom: "conf_s" top: "conf_f" }}
layer {{ name: "prior" type: "PriorBox" bottom: "x" bottom: "data" top: "prior"
  prior_box_param {{ {prior} }} }}
layer {{ name: "found" type: "DetectionOutput" bottom: "loc_f" bottom: "conf_f" bottom: "prior"
  top: "found"  detection_output_param {{ num_classes: 4 {output} }} }}
"""


def test_small_nets_find_what_opencv_finds(tmp_path: Path) -> None:
    """Three boxes at each of 3 x 4 places, in two images; what OpenCV has other defaults for is said."""
    spread = "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2"
    priors = (
        f"min_size: 8 max_size: 14 aspect_ratio: 2 flip: false clip: false {spread}",
        f"min_size: 6 aspect_ratio: 3 flip: true clip: true step: 7 offset: 0.25 {spread}",
    )
    shared = "share_location: true background_label_id: 0 code_type:"
    outputs = (
        f"{shared} CENTER_SIZE keep_top_k: 12 nms_param {{ nms_threshold: 0.4 }} "
        "confidence_threshold: 0.2",
        f"{shared} CORNER keep_top_k: 100 nms_param {{ nms_threshold: 0.7 top_k: 7 }} "
        "confidence_threshold: 0.22",
        "share_location: true background_label_id: 2 code_type: CENTER_SIZE confidence_threshold: 0.01 "
        "keep_top_k: 100 nms_param { nms_threshold: 0.9 }",
        "share_location: false background_label_id: 0 code_type: CENTER_SIZE keep_top_k: 9 "
        "confidence_threshold: 0.1 nms_param { nms_threshold: 0.3 }",
    )
    x = np.random.default_rng(3).normal(0, 1, (2, 3, 24, 32)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for prior in priors:
            for output in outputs:
                classes = 4 if "share_location: false" in output else 1
                sizes = {"places": 3 * 4 * classes, "scores": 3 * 4}
                found = compared(runtime, HEAD.format(prior=prior, output=output, **sizes), x, tmp_path)
                assert len(found) > 4, output


def compared(runtime: demitasse.Runtime, text: str, x: np.ndarray, folder: Path) -> np.ndarray:
    """The rows of blob found, after a comparison with OpenCV's."""
    path = folder / "net.prototxt"
    path.write_text(text)
    net = runtime.net(path)
    model = runtime.write(folder / "net.caffemodel", random_weights(net))
    mine = runtime.net(path, weights=model).forward(data=x)
    other = cv2.dnn.readNetFromCaffe(str(path), str(model))
    other.setInput(x)
    theirs = other.forward("found")
    rows: np.ndarray = mine["found"][0, 0]
    np.testing.assert_allclose(rows, in_caffes_order(theirs[0, 0]), rtol=1e-3, atol=1e-4)
    return rows


def in_caffes_order(rows: np.ndarray) -> np.ndarray:
    """The rows that are filled, by image, class and confidence; OpenCV has an image's most confident
    ones first where it keeps some of them alone."""
    rows = rows[rows[:, 2] > 0]
    return rows[np.lexsort((-rows[:, 2], rows[:, 1], rows[:, 0]))]


def test_means_over_parts_of_regions_are_opencvs(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "x" type: "Input" top: "x" '
        "input_param { shape { dim: 1 dim: 18 dim: 12 dim: 15 } } }"
        'layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 4 dim: 5 } } }'
        'layer { name: "p" type: "PSROIPooling" bottom: "x" bottom: "rois" top: "p" '
        "psroi_pooling_param { spatial_scale: 0.0625 output_dim: 2 group_size: 3 } }"
    )
    inputs = {
        "x": np.random.default_rng(0).normal(0, 1, (1, 18, 12, 15)).astype("f4"),
        "rois": np.float32(
            [[0, 0, 0, 100, 90], [0, 16, 32, 160, 150], [0, 30, 20, 180, 150], [0, 5, 5, 20, 30]]
        ),
    }
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        mine = runtime.net(path).forward(**inputs)["p"]
    other = cv2.dnn.readNetFromCaffe(str(path))
    for name, array in inputs.items():
        other.setInput(array, name)
    np.testing.assert_allclose(mine, other.forward("p"), atol=1e-6)


def calmed(weights: Any) -> Any:
    """Predictions of the size of 1: exponents of large ones would hide what they were made of."""
    for name, arrays in weights.parameters.items():
        if name.endswith(("mbox_loc", "mbox_conf")):
            for array in arrays:
                array *= 0.07 if name.endswith("loc") else 0.15
    return weights


@needs_ssd
@pytest.mark.parametrize(
    "name", ["deploy", pytest.param("voc/MobileNetSSD_deploy", marks=pytest.mark.slow)]
)
def test_mobilenet_ssd_finds_what_opencv_finds(name: str, tmp_path: Path) -> None:
    path = SSD / f"{name}.prototxt"
    x = np.random.default_rng(7).normal(0, 1, (1, 3, 300, 300)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(path)
        model = runtime.write(tmp_path / "ssd.caffemodel", calmed(random_weights(net)))
        net = runtime.net(path, weights=model, retain="all")
        mine = net.forward(data=x)["detection_out"]
        priors = np.array(net.blobs["mbox_priorbox"].data)
    other = cv2.dnn.readNetFromCaffe(str(path), str(model))
    other.setInput(x)
    theirs, boxes = other.forward(["detection_out", "mbox_priorbox"])
    np.testing.assert_allclose(priors, boxes, atol=1e-6)
    assert theirs.shape[2] > 20, "hardly anything is compared"
    np.testing.assert_allclose(mine[0, 0], in_caffes_order(theirs[0, 0]), rtol=1e-3, atol=1e-3)


def test_what_pycaffe_shows_are_the_rows_that_are_there(tmp_path: Path) -> None:
    import demitasse_caffe.pycaffe as caffe

    output = "background_label_id: 0 keep_top_k: 30 confidence_threshold: 0.4"
    prior = "min_size: 8 min_size: 9 min_size: 12"
    path = tmp_path / "net.prototxt"
    path.write_text(HEAD.format(prior=prior, output=output, places=12, scores=12))
    net = caffe.Net(str(path), caffe.TEST)
    dice, seen = np.random.default_rng(0), set()
    for size in (0.0, 1.0, 5.0):
        found = net.forward(data=dice.normal(0, size, (2, 3, 24, 32)))["found"]
        assert found.shape == net.blobs["found"].data.shape == (1, 1, *found.shape[2:])
        assert (found[0, 0, :, 2] > 0.4).all()
        np.testing.assert_array_equal(np.unique(found[0, 0, :, 0]), np.arange(2)[: found.shape[2]])
        seen.add(found.shape[2])
    assert 0 in seen and len(seen) == 3


@needs_ssd
def test_such_a_net_is_explained_drawn_and_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from demitasse_cli.main import main

    monkeypatch.chdir(tmp_path)
    net, few = str(SSD / "deploy.prototxt"), ["--option", "tuning.tune=off"]
    for command in (
        ["explain", net, *few],
        ["draw", net, "net.svg"],
        ["time", net, "--iterations", "1", *few],
    ):
        assert main(command) == 0, capsys.readouterr().err
        told = capsys.readouterr().out
        if command[0] in ("explain", "time"):
            assert "detection_out" in told
    assert "DetectionOutput" in (tmp_path / "net.svg").read_text()


SOLVER = 'net: "{}.prototxt" {} lr_policy: "fixed" max_iter: 250 snapshot_after_train: false'
TRAINED = """
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "given" batch_size: 16 }} include {{ phase: TRAIN }} }}
layer {{ name: "in" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 1 dim: 32 dim: 32 }} }}
  include {{ phase: TEST }} }}
{layers}
layer {{ name: "loss" type: "MultiBoxLoss" bottom: "loc_f" bottom: "conf_f" bottom: "prior"
  bottom: "label" top: "loss" include {{ phase: TRAIN }}
  multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE }}
  propagate_down: [true, true, false, false] }}
layer {{ name: "conf_r" type: "Reshape" bottom: "conf_f" top: "conf_r"
  reshape_param {{ shape {{ dim: 0 dim: -1 dim: 3 }} }} include {{ phase: TEST }} }}
layer {{ name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param {{ axis: 2 }}
  include {{ phase: TEST }} }}
layer {{ name: "likely" type: "Flatten" bottom: "conf_s" top: "likely" include {{ phase: TEST }} }}
layer {{ name: "found" type: "DetectionOutput" bottom: "loc_f" bottom: "likely" bottom: "prior"
  top: "found" include {{ phase: TEST }}
  detection_output_param {{ num_classes: 3 code_type: CENTER_SIZE keep_top_k: 1 }} }}
"""


def squares(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of one bright (class 1) or dark (2) rectangle in noise, and their objects."""
    dice = np.random.default_rng(seed)
    images = dice.normal(0, 0.3, (count, 1, 32, 32)).astype("f4")
    rows = np.zeros((count, 1, 2, 8), np.float32)
    rows[:, 0, 1] = -1
    for image, row in zip(images, rows[:, 0, 0], strict=True):
        (height, width), label = dice.integers(7, 14, 2), dice.integers(1, 3)
        top, left = dice.integers(0, 33 - height), dice.integers(0, 33 - width)
        image[0, top : top + height, left : left + width] += 3 - 2 * label + dice.normal(0, 0.2)
        row[1], row[3:7] = label, np.array([left, top, left + width, top + height]) / 32
    return images, rows


def test_a_net_learns_to_find_rectangles(tmp_path: Path) -> None:
    """From arrays: a label is the objects of an image, rows of 8 numbers, those of -1 for none."""
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(TRAINED.format(layers=LEARNT))
    solver.write_text(SOLVER.format("net", 'type: "Adam" base_lr: 0.003 momentum: 0.9'))
    images, rows = squares(1000, 1)
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver, data={"train": {"data": images, "label": rows}})
        losses = [trainer.step().loss for _ in range(100)]
        model = runtime.write(tmp_path / "net.caffemodel", demitasse.Weights(dict(trainer.net.params)))
        assert np.mean(losses[-20:]) < 0.3 * np.mean(losses[:5])
        images, rows = squares(100, 2)
        found = runtime.net(net, weights=model, phase="test").forward(data=images)["found"][0, 0]
    assert found[:, 0].tolist() == list(range(100))
    low, high = (
        np.maximum(found[:, 3:5], rows[:, 0, 0, 3:5]),
        np.minimum(found[:, 5:], rows[:, 0, 0, 5:7]),
    )
    common = (high - low).clip(0).prod(1)
    both = (found[:, 5:] - found[:, 3:5]).prod(1) + (rows[:, 0, 0, 5:7] - rows[:, 0, 0, 3:5]).prod(1)
    right = (common / (both - common) > 0.6) & (found[:, 1] == rows[:, 0, 0, 1])
    assert right.mean() > 0.9


def hdf5(h5py: Any, path: Path, data: np.ndarray, label: np.ndarray) -> str:
    """An HDF5Data layer of samples in files beside a net, two a batch."""
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["data"], file["label"] = data, label
    path.with_suffix(".txt").write_text(f"{path.stem}.h5\n")
    return (
        'name: "data" type: "HDF5Data" top: "data" top: "label" '
        f'hdf5_data_param {{ source: "{path.stem}.txt" batch_size: 2 }} }}'
    )


@needs_ssd
def test_mobilenet_ssd_is_trained(tmp_path: Path) -> None:
    """As it is, but for an HDF5Data layer in the place of its first."""
    h5py = pytest.importorskip("h5py")
    dice = np.random.default_rng(0)
    objects = np.zeros((2, 1, 3, 8), np.float32)
    objects[..., 1] = dice.integers(1, 21, (2, 1, 3))
    objects[..., 3:5] = dice.uniform(0, 0.5, (2, 1, 3, 2))
    objects[..., 5:7] = objects[..., 3:5] + dice.uniform(0.1, 0.5, (2, 1, 3, 2))
    images = dice.normal(0, 1, (2, 3, 300, 300)).astype("f4")
    layers = (SSD / "train.prototxt").read_text().split("\nlayer {\n")
    assert 'type: "AnnotatedData"' in layers[1]
    layers[1] = hdf5(h5py, tmp_path / "samples", images, objects)
    (tmp_path / "train.prototxt").write_text("\nlayer {\n".join(layers))
    solver = tmp_path / "solver.prototxt"
    solver.write_text(SOLVER.format("train", 'type: "RMSProp" base_lr: 0.0005'))
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver)
        losses = [trainer.step().loss for _ in range(4)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_the_gradient_of_a_weighted_loss_is_its_slope(tmp_path: Path) -> None:
    """With a rate of 1 and no momentum, a step moves each parameter by its gradient."""
    text = TRAINED.format(layers=LEARNT).replace('top: "loss"', 'top: "loss" loss_weight: 2')
    (tmp_path / "net.prototxt").write_text(text)
    images, rows = squares(16, 1)
    data = {"train": {"data": images, "label": rows}}
    plugins = ["caffe", "training", "datasets", "detection", "onnx", "reference"]
    with demitasse.compose(plugins=plugins) as runtime:
        made = []
        for rate in ("1", "0"):
            path = tmp_path / f"solver{rate}.prototxt"
            path.write_text(SOLVER.format("net", f"base_lr: {rate} random_seed: 3"))
            made.append(runtime.trainer(path, data=data, precision="f64"))
        moving, standing = made
        before = {name: [a.copy() for a in arrays] for name, arrays in moving.net.params.items()}
        moving.step()
        for name in ("loc", "conf"):
            moved = before[name][0] - moving.net.params[name][0]
            assert np.abs(moved).max() > 0.01
            array = standing.net.params[name][0]
            for place in [
                np.unravel_index(at, array.shape) for at in (0, array.size // 2, array.size - 1)
            ]:
                kept, losses = array[place], []
                for change in (1e-6, -1e-6):
                    array[place], standing.iteration = kept + change, 0
                    losses.append(standing.step().loss)
                array[place] = kept
                slope = (losses[0] - losses[1]) / 2e-6
                assert moved[place] == pytest.approx(slope, rel=1e-4, abs=1e-7), (name, place)


def test_two_workers_divide_the_loss_by_the_priors_that_match_in_all_images(tmp_path: Path) -> None:
    """The second worker's images have no object, or few."""
    (tmp_path / "net.prototxt").write_text(TRAINED.format(layers=LEARNT))
    solver = tmp_path / "solver.prototxt"
    solver.write_text(SOLVER.format("net", "base_lr: 0.01 random_seed: 3"))
    images, rows = squares(32, 1)
    rows[8:16] = -1
    rows[26:] = -1
    data = {"train": {"data": images, "label": rows}}
    found = {}
    for hw, statistics in (("auto", "global"), ("two-workers", "global"), ("two-workers", "local")):
        with demitasse.compose(hw, plugins=["-tuning"]) as runtime:
            trainer = runtime.trainer(solver, data=data, precision="f64", statistics=statistics)
            losses = [trainer.step().loss for _ in range(2)]
            found[hw, statistics] = [*losses, *trainer.net.params["loc"][0].ravel()]
    one, two, own = found.values()
    np.testing.assert_allclose(two, one, rtol=1e-10, atol=1e-13)
    assert abs(own[0] - one[0]) > 0.01


@pytest.fixture
def tested(tmp_path: Path) -> Path:
    """A solver that trains for an iteration and tests over two batches."""
    h5py = pytest.importorskip("h5py")
    text = TRAINED.format(layers=LEARNT)
    layers = "layer { " + hdf5(h5py, tmp_path / "samples", *squares(4, 1))
    layers += 'layer { name: "s" type: "Silence" bottom: "label" include { phase: TEST } }'
    text = layers + text[text.index("\nlayer", text.index('name: "in"')) :]
    (tmp_path / "net.prototxt").write_text(text.replace("keep_top_k: 1", "confidence_threshold: 0.4"))
    path = tmp_path / "solver.prototxt"
    more = "base_lr: 0.001 test_iter: 2 test_interval: 1 random_seed: 3"
    path.write_text(SOLVER.format("net", more).replace("max_iter: 250", "max_iter: 1"))
    return path


def test_tests_sum_over_all_rows_that_there_can_be(tested: Path) -> None:
    """Two batches find another number of objects, which have no mean row by row."""
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        found = runtime.trainer(tested).test()["found"]
    assert np.shape(found) == (1, 1, 2 * 64 * 2, 7)  # images, priors, classes


def test_so_do_pycaffes_solvers(tested: Path) -> None:
    import demitasse_caffe.pycaffe as caffe

    solver = caffe.SGDSolver(str(tested))
    sizes = {solver.test_nets[0].forward()["found"].shape[2] for _ in range(2)}
    assert len(sizes) == 2 and max(sizes) > 0, "the batches find as many objects: nothing is tried"
    solver.step(1)


@pytest.mark.slow
def test_a_net_with_such_a_loss_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from demitasse_cli.main import main

    h5py = pytest.importorskip("h5py")
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    data = "layer { " + hdf5(h5py, tmp_path / "samples", *squares(2, 1))
    text = TRAINED.format(layers=LEARNT)
    net.write_text(data + text[text.index('layer { name: "in"') :])
    solver.write_text(SOLVER.format("net", "base_lr: 0.1"))
    assert main(["simulate", str(solver)]) == 0, capsys.readouterr().err
    assert "simulated" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not ZF.is_file(), reason=f"no Faster R-CNN under {DATA}")
def test_faster_rcnn_finds_what_opencv_finds(tmp_path: Path) -> None:
    """py-faster-rcnn's own file, whose layer in Python OpenCV is given as the one that it has."""
    dice = np.random.default_rng(5)
    inputs = {
        "data": dice.normal(0, 1, (1, 3, 224, 224)).astype("f4"),
        "im_info": np.float32([[224, 224, 0]]),  # regions of any size: OpenCV knows no smallest one
    }
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(ZF)
        weights = random_weights(net)
        for array in weights.parameters["rpn_bbox_pred"]:
            array *= 0.02  # regions near their boxes: exponents of large numbers would hide the rest
        model = runtime.write(tmp_path / "zf.caffemodel", weights)
        net = runtime.net(ZF, weights=model, retain="all")
        mine = {name: np.array(array) for name, array in net.forward(**inputs).items()}
        regions = np.array(net.blobs["rois"].data)
    text = ZF.read_text()
    found = re.search(r"type: 'Python'(.*?)python_param \{.*?\n  \}", text, re.S)
    assert found is not None
    fields = "feat_stride: 16 base_size: 16 pre_nms_topn: 6000 post_nms_topn: 300 nms_thresh: 0.7"
    shapes = "ratio: 0.5 ratio: 1 ratio: 2 scale: 8 scale: 16 scale: 32"
    theirs = f'type: "Proposal"{found[1]}proposal_param {{ {fields} {shapes} min_size: 16 }}'
    (tmp_path / "cv.prototxt").write_text(text.replace(found[0], theirs).replace("'", '"'))
    other = cv2.dnn.readNetFromCaffe(str(tmp_path / "cv.prototxt"), str(model))
    for name, array in inputs.items():
        other.setInput(array, name)
    rows = other.forward("proposal").reshape(-1, 5)
    count = int(rows.any(-1).sum())
    assert count > 20
    # Two whose scores are alike to the last digits may come in the other order.
    order = np.abs(regions[:count, None] - rows[None, :count]).max(-1).argmin(0)
    assert sorted(order) == list(range(count))
    np.testing.assert_allclose(regions[order], rows[:count], atol=1e-2)
    for name in ("bbox_pred", "cls_prob"):
        right = other.forward(name).reshape(len(rows), -1)[:count]
        np.testing.assert_allclose(mine[name][order], right, atol=1e-3 * np.abs(right).max())
