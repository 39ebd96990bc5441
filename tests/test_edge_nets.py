"""Nets that find edges: pairs of an image and its edges, as large as they are, and losses that weigh
edges against the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import demitasse
from demitasse import DataError, ModelError

SIZES = ((18, 24), (25, 17), (21, 21))
PAIRS = """
layer { name: "d" type: "ImageLabelmapData" top: "data" top: "label"
  transform_param { mean_value: 10 mean_value: 20 mean_value: 30 MORE }
  image_data_param { source: "list.txt" batch_size: 1 OPTIONS } }
"""


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with pairs of images and a list of them."""
    monkeypatch.chdir(tmp_path)
    for number in range(len(SIZES)):
        cv2.imwrite(f"{number}.png", photo(number))
        cv2.imwrite(f"edges{number}.png", edges(number))
    lines = [f"{number}.png edges{number}.png\n" for number in range(len(SIZES))]
    Path("list.txt").write_text("".join(lines))
    return tmp_path


def photo(number: int) -> np.ndarray:
    """A dark image with a brighter square, in noise."""
    image = np.random.default_rng(number).normal(60, 6, (*SIZES[number], 3))
    image[5:12, 6:13] += 120
    return image.astype(np.uint8)


def edges(number: int) -> np.ndarray:
    """The square's outline, white, and less sure ones of gray."""
    found = np.zeros(SIZES[number], np.uint8)
    found[5:12, 6:13] = 255
    found[6:11, 7:12] = 0
    found[2, :3] = 127
    found[3, :3] = 128
    return found


def net(runtime: Any, more: str = "", options: str = "") -> Any:
    Path("net.prototxt").write_text(PAIRS.replace("MORE", more).replace("OPTIONS", options))
    return runtime.net("net.prototxt")


MEAN = np.array([10, 20, 30])


@pytest.mark.usefixtures("folder")
def test_an_image_and_its_edges_are_as_large_as_they_are(runtime: Any) -> None:
    made = net(runtime, "scale: 0.5")
    for number in range(len(SIZES)):
        out = made.forward()
        wanted = (photo(number).astype(float) - MEAN).transpose(2, 0, 1) / 2
        np.testing.assert_allclose(out["data"][0], wanted, rtol=1e-6)
        np.testing.assert_array_equal(out["label"][0, 0], edges(number) >= 128)


@pytest.mark.usefixtures("folder")
def test_gray_may_be_given_as_it_is(runtime: Any) -> None:
    out = net(runtime, options="normalize: false").forward()
    np.testing.assert_array_equal(out["label"][0, 0], edges(0))


@pytest.mark.usefixtures("folder")
def test_both_are_resized_by_straight_lines(runtime: Any) -> None:
    out = net(runtime, options="new_height: 30 new_width: 20").forward()
    pixels = cv2.resize(photo(0), (20, 30)).transpose(2, 0, 1)
    np.testing.assert_array_equal(out["data"][0], pixels - MEAN[:, None, None].astype(float))
    np.testing.assert_array_equal(out["label"][0, 0], cv2.resize(edges(0), (20, 30)) >= 128)


@pytest.mark.usefixtures("folder")
def test_both_are_cut_and_mirrored_alike(runtime: Any) -> None:
    made = net(runtime, "crop_size: 9 mirror: true", "shuffle: true")
    places = set()
    for _ in range(12):
        out = made.forward()
        pixels, label = (out["data"][0].transpose(1, 2, 0) + MEAN).round(), out["label"][0, 0]
        found = [
            (number, top, left, turn)
            for number in range(len(SIZES))
            for turn in (1, -1)
            for top in range(SIZES[number][0] - 8)
            for left in range(SIZES[number][1] - 8)
            if (photo(number)[top : top + 9, left : left + 9][:, ::turn] == pixels).all()
        ]
        ((number, top, left, turn),) = found
        wanted = edges(number)[top : top + 9, left : left + 9][:, ::turn] >= 128
        np.testing.assert_array_equal(label, wanted)
        places.add((top, left, turn))
    assert len(places) > 6 and {turn for *_, turn in places} == {1, -1}


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_says_why(runtime: Any) -> None:
    with pytest.raises(ModelError, match="has a mean_file, which is for images of one size"):
        Path("net.prototxt").write_text(
            'layer { name: "d" type: "ImageLabelmapData" top: "a" top: "b" '
            'transform_param { mean_file: "m" } image_data_param { source: "list.txt" } }'
        )
        runtime.net("net.prototxt")
    cv2.imwrite("edges1.png", edges(0))
    made = net(runtime)
    made.forward()
    with pytest.raises(DataError, match=r"list.txt:2: 1.png: its image has 17 x 25 pixels, but its"):
        made.forward()


NET = """
layer { name: "c1" type: "Convolution" bottom: "data" top: "c1"
  convolution_param { num_output: 8 kernel_size: 3 pad: 4 weight_filler { type: "msra" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "p1" type: "Pooling" bottom: "c1" top: "p1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "c2" type: "Convolution" bottom: "p1" top: "c2"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "r2" type: "ReLU" bottom: "c2" top: "c2" }
layer { name: "s1" type: "Convolution" bottom: "c1" top: "s1"
  convolution_param { num_output: 1 kernel_size: 1 } }
layer { name: "s2" type: "Convolution" bottom: "c2" top: "s2"
  convolution_param { num_output: 1 kernel_size: 1 } }
layer { name: "up" type: "Deconvolution" bottom: "s2" top: "up" param { lr_mult: 0 }
  convolution_param { num_output: 1 kernel_size: 4 stride: 2 bias_term: false
    weight_filler { type: "bilinear" } } }
layer { name: "k1" type: "AutoCrop" bottom: "s1" bottom: "data" top: "k1" }
layer { name: "k2" type: "AutoCrop" bottom: "up" bottom: "data" top: "k2" }
layer { name: "both" type: "Concat" bottom: "k1" bottom: "k2" top: "both" }
layer { name: "fuse" type: "Convolution" bottom: "both" top: "fuse"
  convolution_param { num_output: 1 kernel_size: 1
    weight_filler { type: "constant" value: 0.5 } } }
layer { name: "l1" type: "LOSS" bottom: "k1" bottom: "label" top: "l1" loss_weight: 1 }
layer { name: "l2" type: "LOSS" bottom: "k2" bottom: "label" top: "l2" loss_weight: 1 }
layer { name: "l3" type: "LOSS" bottom: "fuse" bottom: "label" top: "l3" loss_weight: 1 }
"""


@pytest.mark.usefixtures("folder")
def test_a_net_with_outputs_at_its_sides_learns_edges(runtime: Any) -> None:
    """HED in small, from pairs of three sizes: what it finds lies on the outline."""
    more = "scale: 0.02"
    Path("net.prototxt").write_text(
        PAIRS.replace("MORE", more).replace("OPTIONS", "shuffle: true")
        + NET.replace("LOSS", "SigmoidCrossEntropyBalanceLoss")
    )
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.0005 momentum: 0.9 lr_policy: "fixed" iter_size: 3 '
        "max_iter: 120 snapshot_after_train: false random_seed: 3"
    )
    with runtime.trainer("solver.prototxt") as trainer:
        first = trainer.step(1).loss
        assert trainer.step(119).loss < first / 3
        kept = trainer.snapshot("kept")
    deploy = 'layer { name: "i" type: "Input" top: "data" input_param { shape { dim: [1,3,25,17] } } }'
    layers = NET[: NET.index('layer { name: "l1"')]
    Path("deploy.prototxt").write_text(deploy + layers)
    found = runtime.net("deploy.prototxt", weights=kept)
    pixels = (photo(1).astype(float) - MEAN).transpose(2, 0, 1) * 0.02
    score = found.forward(data=pixels[None])["fuse"][0, 0]
    outline = edges(1) == 255
    assert (score[outline] > 0).mean() > 0.9
    assert (score[~outline & (edges(1) != 128)] < 0).mean() > 0.8


@pytest.mark.usefixtures("folder")
def test_a_loss_that_the_forks_changed_is_told(runtime: Any) -> None:
    for loss, told in (("SigmoidCrossEntropyLoss", 1), ("SigmoidCrossEntropyBalanceLoss", 0)):
        Path("net.prototxt").write_text(
            PAIRS.replace("MORE", "").replace("OPTIONS", "") + NET.replace("LOSS", loss)
        )
        notes = runtime.read("net.prototxt").net("train").notes
        assert sum("as SigmoidCrossEntropyBalanceLoss does" in note for note in notes) == told
