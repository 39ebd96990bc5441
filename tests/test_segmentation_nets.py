"""Nets of SegNet's fork: ENet, whose maxima are put back where pooling took them, and which learns from
images of classes; weighted classes; dropout in tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_files import DATA
from small_nets import random_weights

import demitasse

ENET = DATA / "prototxt" / "TimoSaemann+ENet" / "prototxts"
needs_enet = pytest.mark.skipif(not ENET.is_dir(), reason=f"no ENet under {DATA}")


@needs_enet
def test_enet_puts_maxima_back_where_they_were() -> None:
    """A plain loop over planes gives what both of its Upsample layers give."""
    image = np.random.default_rng(2).normal(0, 1, (1, 3, 32, 64)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(ENET / "enet_deploy_final.prototxt", retain="all")
        for name, arrays in random_weights(net).parameters.items():
            for kept, array in zip(net.params[name], arrays, strict=True):
                kept[...] = array
        net.forward(data=image)
        layers = [layer for layer in net.definition.layers if layer.type == "Upsample"]
        assert len(layers) == 2
        for layer in layers:
            x, place, y = (np.array(net.blobs[name].data) for name in (*layer.bottoms, *layer.tops))
            expected = np.zeros((*y.shape[:2], y[0, 0].size), np.float32)
            for plane in np.ndindex(x.shape[:2]):
                for value, at in zip(x[plane].ravel(), place[plane].ravel(), strict=True):
                    expected[plane][int(at)] = value
            assert np.ptp(x) > 0 and y.shape[2:] == (2 * x.shape[2], 2 * x.shape[3])
            np.testing.assert_array_equal(y, expected.reshape(y.shape))


@pytest.mark.slow
@needs_enet
def test_enet_learns_from_images_and_images_of_classes(tmp_path: Path) -> None:
    """Its own file for training the encoder, with smaller images: DenseImageData, which divides classes
    by 8, and what its Python layers do."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")
    dice = np.random.default_rng(0)
    for n in range(4):
        classes = np.kron(dice.integers(0, 4, (4, 8)), np.ones((16, 16))).astype(np.uint8)
        cv2.imwrite(str(tmp_path / f"c{n}.png"), classes)
        cv2.imwrite(str(tmp_path / f"{n}.png"), np.stack([classes * 60] * 3, -1))
    (tmp_path / "list.txt").write_text("".join(f"{n}.png c{n}.png\n" for n in range(4)))
    given = {
        "source": str(tmp_path / "list.txt"),
        "batch_size": 4,
        "new_height": 64,
        "new_width": 128,
    }
    overrides = {f"layer.data.dense_image_data_param.{key}": value for key, value in given.items()}
    solver = tmp_path / "solver.prototxt"
    path = ENET / "enet_train_encoder.prototxt"
    solver.write_text(f'net: "{path}" base_lr: 0.005 lr_policy: "fixed" type: "Adam" max_iter: 13')
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver, overrides=overrides)
        assert trainer.net.blobs["label"].shape == (4, 1, 8, 16)
        first = trainer.step(1).loss
        last = trainer.step(12).loss
        trainer.close()
    assert last < 0.7 * first


def test_classes_have_weights_in_the_loss(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        "input: 'x' input_shape { dim: 2 dim: 3 dim: 4 dim: 5 } "
        "input: 't' input_shape { dim: 2 dim: 1 dim: 4 dim: 5 } "
        "layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'x' bottom: 't' top: 'l' loss_param { "
        "ignore_label: 2 weight_by_label_freqs: true class_weighting: [0.5, 4, 100] } }"
    )
    dice = np.random.default_rng(1)
    x, t = dice.normal(size=(2, 3, 4, 5)).astype("f4"), dice.integers(0, 3, (2, 1, 4, 5)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        found = float(runtime.net(path).forward(x=x, t=t)["l"])
        likely = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        chosen = np.take_along_axis(likely, t.astype(int), 1)
        weights = np.array([0.5, 4, 0])[t.astype(int)]
        np.testing.assert_allclose(found, -(weights * np.log(chosen)).sum() / (t != 2).sum(), rtol=1e-5)
        path.write_text(path.read_text().replace(", 100]", "]"))
        with pytest.raises(demitasse.ModelError, match="has 2 class_weighting for 3 classes"):
            runtime.net(path)


def test_a_dropout_that_samples_in_tests_draws_for_each_sample(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        "layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 4 dim: 200 } } }"
        "layer { name: 'd' type: 'Dropout' bottom: 'x' top: 'y' "
        "dropout_param { dropout_ratio: 0.25 sample_weights_test: true } }"
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        made = np.array(runtime.net(path).forward(x=np.ones((4, 200), "f4"))["y"])
    values = {*np.unique(made).tolist()}
    assert values == {0.0, float(np.float32(1 / 0.75))}
    assert 0.6 < (made > 0).mean() < 0.9 and len({row.tobytes() for row in made}) == 4


def test_a_net_of_deeplabs_reads_learns_and_is_scored(tmp_path: Path) -> None:
    """A classifier of pixels by their colours, from a list of images and images of classes."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")
    dice = np.random.default_rng(0)
    for n in range(6):
        classes = np.kron(dice.integers(0, 3, (3, 4)), np.ones((8, 8))).astype(np.uint8)
        classes[:2] = 255
        colours = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200]])[np.where(classes > 2, 0, classes)]
        cv2.imwrite(str(tmp_path / f"c{n}.png"), classes)
        cv2.imwrite(str(tmp_path / f"{n}.png"), colours)
    (tmp_path / "list.txt").write_text("".join(f"/{n}.png /c{n}.png\n" for n in range(6)))
    data = """layer { name: "data" type: "ImageSegData" top: "data" top: "label" top: "dim"
      image_data_param { source: "list.txt" root_folder: "ROOT" batch_size: 3 label_type: PIXEL }
      transform_param { mean_value: 60 mean_value: 61.5 mean_value: 62 scale: 0.01 mirror: true
        scale_factors: 0.5 scale_factors: 1 scale_factors: 1.5 crop_height: 28 crop_width: 24 } }
    layer { name: "unused" type: "Silence" bottom: "dim" }
    layer { name: "score" type: "Convolution" bottom: "data" top: "score"
      convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss"
      loss_param { ignore_label: 255 } }
    layer { name: "accuracy" type: "SegAccuracy" bottom: "score" bottom: "label" top: "accuracy"
      include { phase: TEST } seg_accuracy_param { ignore_label: 255 } }
    """.replace("ROOT", str(tmp_path))
    path = tmp_path / "net.prototxt"
    path.write_text(data)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'net: "{path}" base_lr: 0.5 lr_policy: "fixed" momentum: 0.9 max_iter: 60 test_iter: 2 '
        "test_interval: 60 test_initialization: false"
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        trainer = runtime.trainer(solver)
        assert trainer.net.blobs["data"].shape == (3, 3, 28, 24)
        before = trainer.test()["accuracy"]
        trainer.step(60)
        after = trainer.test()["accuracy"]
        trainer.close()
    assert np.shape(after) == (1, 1, 1, 3)
    assert np.all(np.asarray(after) > 0.97) and np.all(np.asarray(before) < 0.9)
