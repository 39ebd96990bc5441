"""Image pairs and flows from files as samples: in order, shuffled, divided, and errors."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec
from demitasse_optical_flow import plugin

cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed here")
COUNT, ROWS, COLUMNS = 5, 4, 6


def flo(path: Path, flow: np.ndarray) -> None:
    """Write a flow file, according to the description of the format."""
    body = np.ascontiguousarray(np.moveaxis(flow, 0, 2), "<f4").tobytes()
    path.write_bytes(struct.pack("<fii", 202021.25, flow.shape[2], flow.shape[1]) + body)


@pytest.fixture
def chairs(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Write the images, the flows, and a list of them in a neighbouring folder."""
    dice = np.random.default_rng(0)
    images = dice.integers(0, 256, (COUNT, 2, ROWS, COLUMNS, 3)).astype(np.uint8)
    flows = dice.normal(size=(COUNT, 2, ROWS, COLUMNS)).astype(np.float32)
    (tmp_path / "lists").mkdir()
    (tmp_path / "data").mkdir()
    lines = []
    for n in range(COUNT):
        names = [f"data/{n}_img1.ppm", f"data/{n}_img2.png", f"data/{n}_flow.flo"]
        for name, image in zip(names, images[n], strict=False):
            cv2.imwrite(str(tmp_path / name), image)
        flo(tmp_path / names[2], flows[n])
        lines.append("\t".join(names))
    (tmp_path / "lists" / "chairs.list").write_text("\n".join(lines) + "\n")
    return tmp_path / "lists" / "chairs.list", images, flows


def read(source: Any, first: int, count: int) -> dict[str, np.ndarray]:
    out = {n: np.empty((count, *f.shape), f.dtype) for n, f in source.fields.items()}
    stream = source.stream(first, count, count)
    stream.read(out)
    assert stream.cursor == first + count
    return out


def test_samples_are_the_files_in_their_order_again_and_again(chairs: Any) -> None:
    path, images, flows = chairs
    source = plugin.data_source(DataSpec(str(path)))
    assert source is not None and source.size == COUNT
    assert source.fields["data"].shape == (6, ROWS, COLUMNS)
    made = read(source, 3, 4)
    for place, number in enumerate([3, 4, 0, 1]):
        both = np.concatenate(np.moveaxis(images[number], -1, 1))
        np.testing.assert_array_equal(made["data"][place], both)
        np.testing.assert_array_equal(made["label"][place], flows[number])


def test_a_shuffled_epoch_has_each_sample_once_however_it_is_divided(chairs: Any) -> None:
    path, _, flows = chairs
    source = plugin.data_source(DataSpec(str(path), shuffle=True, seed=7))
    whole = read(source, COUNT, COUNT)["label"]
    assert not np.array_equal(whole, flows)
    assert {label.tobytes() for label in whole} == {flow.tobytes() for flow in flows}
    for n in range(COUNT):
        np.testing.assert_array_equal(read(source, COUNT + n, 1)["label"][0], whole[n])


def test_what_middlebury_does_not_know_is_nan(chairs: Any) -> None:
    path, _, flows = chairs
    flows[0, :, 1, 2] = 1.6666667e9
    flo(path.parent.parent / "data" / "0_flow.flo", flows[0])
    label = read(plugin.data_source(DataSpec(str(path))), 0, 1)["label"][0]
    assert np.isnan(label[:, 1, 2]).all() and np.isnan(label).sum() == 2


def test_a_net_trains_on_a_list(chairs: Any, tmp_path: Path) -> None:
    path, _, _ = chairs
    (tmp_path / "net.prototxt").write_text(
        f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
         data_param {{ source: "{path}" batch_size: 3 }} transform_param {{ scale: 0.0039 }} }}
layer {{ name: "flow" type: "Convolution" bottom: "data" top: "flow"
         convolution_param {{ num_output: 2 kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "loss" type: "L1Loss" bottom: "flow" bottom: "label" top: "loss"
         l1_loss_param {{ l2_per_location: true normalize_by_num_entries: true }} }}"""
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" max_iter: 30 random_seed: 1 '
        "snapshot_after_train: false"
    )
    plugins = ["caffe", "onnx", "training", "optical_flow", "reference", "snapshots"]
    with demitasse.compose(plugins=plugins) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt")
        losses = [trainer.step().loss for _ in range(30)]
    assert all(map(math.isfinite, losses)) and np.mean(losses[-5:]) < losses[0]


def test_other_sources_are_others(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("a.png 0\nb.png 1\n")
    for spec in (
        DataSpec(str(tmp_path / "images.txt")),
        DataSpec(str(tmp_path)),
        DataSpec("nothing"),
        DataSpec({"data": np.zeros(3)}),
    ):
        assert plugin.data_source(spec) is None


def test_what_is_wrong_is_told_with_its_file(chairs: Any) -> None:
    path, images, flows = chairs
    data = path.parent.parent / "data"

    def told(match: str, **about: Any) -> None:
        with pytest.raises(DataError, match=match):
            read(plugin.data_source(DataSpec(str(path), **about)), 0, COUNT)

    told("crop_size would crop images but not their flows", options={"crop": 3})
    flo(data / "2_flow.flo", flows[2, :, :3])
    told(r"2_img1\.ppm: it and its flow .*2_flow\.flo have different sizes, 4 x 6 and 3 x 6 pixels")
    (data / "2_flow.flo").write_bytes(b"PIEH" + struct.pack("<ii", 6, 4) + bytes(9))
    told(r"2_flow\.flo: has 21 bytes, but 6 x 4 pixels take 204: it is damaged or cut off")
    (data / "2_flow.flo").write_bytes(b"\x89PNG\r\n\x1a\n")
    told(r"2_flow\.flo: is not a \.flo file, which begins with PIEH; it .*PNG")
    (data / "2_flow.flo").unlink()
    told(r"chairs\.list: no such file: 'data/2_flow\.flo'")
    for n, name in enumerate(("2_img1.ppm", "2_img2.png")):
        cv2.imwrite(str(data / name), images[2, n, :3])
    flo(data / "2_flow.flo", flows[2, :, :3])
    told(r"chairs\.list:3: its data is \(6, 3, 6\), not \(6, 4, 6\) like the first line's")
    (data / "1_img2.png").write_bytes(b"a diary")
    told(r"1_img2\.png: ")
    path.write_text(path.read_text() + "a.png b.png\n")
    told(r"chairs\.list:6: 'a\.png b\.png' does not name two images and a flow")
