"""Samples of which each has a shape of its own, as images in batches of one: what nets are given, what
they learn from them, and what is said of those that they cannot take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from small_nets import WORKERS

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import DataError

SIZES = ((24, 30), (31, 25), (24, 30), (20, 41), (31, 25), (27, 27))
"""Rows and columns of images; each third one is as large as one before."""
CLASSES = 3
SCALE = 0.01


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


def photo(number: int) -> np.ndarray:
    """An image (rows, columns, channels) of noise."""
    return np.random.default_rng(number).integers(0, 256, (*SIZES[number], 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with images and a list of them."""
    monkeypatch.chdir(tmp_path)
    for number in range(len(SIZES)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), photo(number))
    lines = [f"{number}.png {number % CLASSES}\n" for number in range(len(SIZES))]
    (tmp_path / "list.txt").write_text("".join(lines))
    return tmp_path


LISTED = """
layer { name: "data" type: "ImageData" top: "data" top: "label" transform_param { scale: 0.01 }
  image_data_param { source: "list.txt" batch_size: 1 } }
"""
STORED = """
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.01 }
  data_param { source: "stored" backend: LMDB batch_size: 1 } }
"""
NET = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "mean" type: "Pooling" bottom: "conv" top: "mean"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "mean" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.05 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed" max_iter: 9
random_seed: 5 snapshot_prefix: "kept" test_initialization: false
"""


def solver(folder: Path, text: str, more: str = "") -> Path:
    (folder / "net.prototxt").write_text(text)
    (folder / "solver.prototxt").write_text(SOLVER + more)
    return folder / "solver.prototxt"


def stored(runtime: Any, folder: Path) -> None:
    """The same images as a database, each encoded as it is."""
    runtime.program("convert_samples", folder / "list.txt", folder / "stored", encoded="png")


class ByHand:
    """The net, its gradients and its updates in NumPy, in float64, image by image."""

    def __init__(self, params: dict[str, list[np.ndarray]], clip: float = np.inf) -> None:
        self._clip = clip
        self.parameters = [np.array(p, np.float64) for name in ("conv", "ip") for p in params[name]]
        self._before = [np.zeros_like(p) for p in self.parameters]

    def passed(self, number: int) -> tuple[float, list[np.ndarray]]:
        """The loss of an image, and the gradients."""
        w, b, v, c = self.parameters
        x = photo(number).transpose(2, 0, 1) * SCALE
        parts = sliding_window_view(x, (3, 3), (1, 2))  # channel, row, column, 3, 3
        y = np.einsum("cijkl,ockl->oij", parts, w) + b[:, None, None]
        mean = np.maximum(y, 0).mean((1, 2))
        score = v @ mean + c
        share = np.exp(score - score.max())
        share /= share.sum()
        label = number % CLASSES
        slope = share - np.eye(CLASSES)[label]
        dy = (v.T @ slope)[:, None, None] * (y > 0) / y[0].size
        gradients = [
            np.einsum("cijkl,oij->ockl", parts, dy),
            dy.sum((1, 2)),
            np.outer(slope, mean),
            slope,
        ]
        return float(-np.log(share[label])), gradients

    def iteration(self, numbers: list[int]) -> float:
        """An iteration over some images; its loss."""
        made = [self.passed(number) for number in numbers]
        total = [sum(each) / len(numbers) for each in zip(*(g for _, g in made), strict=True)]
        size = float(np.sqrt(sum((gradient**2).sum() for gradient in total)))
        for i, before in enumerate(self._before):
            before *= 0.9
            before += 0.05 * (total[i] * min(1, self._clip / size) + 0.001 * self.parameters[i])
            self.parameters[i] -= before
        return float(np.mean([loss for loss, _ in made]))


@pytest.mark.parametrize("kind", ["listed", "stored"])
def test_a_net_is_given_each_image_as_large_as_it_is(runtime: Any, folder: Path, kind: str) -> None:
    stored(runtime, folder)
    (folder / "net.prototxt").write_text(LISTED if kind == "listed" else STORED)
    net = runtime.net(folder / "net.prototxt")
    for number in [*range(len(SIZES)), 0, 1]:
        out = net.forward()
        assert out["label"].item() == number % CLASSES
        wanted = photo(number).transpose(2, 0, 1)[None] * np.float32(SCALE)
        np.testing.assert_allclose(out["data"], wanted, rtol=1e-6)
        assert net.blobs["data"].shape == wanted.shape


@pytest.mark.parametrize("kind", ["listed", "stored"])
@pytest.mark.parametrize("passes", [1, 4])
def test_training_follows_the_formula(runtime: Any, folder: Path, kind: str, passes: int) -> None:
    stored(runtime, folder)
    path = solver(folder, (LISTED if kind == "listed" else STORED) + NET, f"iter_size: {passes}")
    with runtime.trainer(path, precision="f64") as trainer:
        by_hand = ByHand(trainer.net.params)
        for iteration in range(8):
            numbers = [(iteration * passes + n) % len(SIZES) for n in range(passes)]
            assert trainer.step().loss == pytest.approx(by_hand.iteration(numbers), rel=1e-10)
            assert trainer.net.blobs["data"].shape[2:] == SIZES[numbers[-1]]
        learned = [p for name in ("conv", "ip") for p in trainer.net.params[name]]
        for mine, wanted in zip(learned, by_hand.parameters, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "more",
    ["clip_gradients: 0.05", 'type: "Adam" momentum2: 0.99', "debug_info: true display: 1"],
)
def test_images_of_one_size_are_learned_from_as_by_one_plan(
    runtime: Any, folder: Path, more: str
) -> None:
    for number in range(len(SIZES)):
        cv2.imwrite(str(folder / f"{number}.png"), photo(number)[:20, :25])
    losses = []
    for sizes in ("", "new_height: 20 new_width: 25"):
        text = LISTED.replace("batch_size: 1", f"batch_size: 1 shuffle: true {sizes}") + NET
        with runtime.trainer(solver(folder, text, f"iter_size: 2 {more}"), precision="f64") as trainer:
            losses.append([trainer.step().loss for _ in range(6)])
    np.testing.assert_allclose(*losses, rtol=1e-11)


def test_a_training_goes_on_from_a_snapshot_to_the_same_bits(runtime: Any, folder: Path) -> None:
    path = solver(folder, LISTED.replace("batch_size: 1", "batch_size: 1 shuffle: true") + NET)
    with runtime.trainer(path) as trainer:
        trainer.step(3)
        kept = trainer.snapshot(folder / "kept")
        told = [trainer.step().loss for _ in range(5)]
    with runtime.trainer(path, resume=kept) as trainer:
        assert [trainer.step().loss for _ in range(5)] == told


def test_the_layers_that_are_followed_are_told(runtime: Any, folder: Path) -> None:
    path = solver(folder, LISTED + NET)
    with runtime.trainer(path) as trainer:
        assert trainer.varying == ["data"]
    assert runtime.net(folder / "net.prototxt").varying == ["data"]
    whole = LISTED.replace("batch_size: 1", "batch_size: 1 new_height: 20 new_width: 20")
    with runtime.trainer(solver(folder, whole + NET)) as trainer:
        assert trainer.varying == []


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_finds_an_iteration_done_or_not_begun(
    runtime: Any, folder: Path, before: bool, passes: int
) -> None:
    path = solver(folder, LISTED.replace("batch_size: 1", "batch_size: 1 shuffle: true") + NET)
    path.write_text(path.read_text() + f"iter_size: {passes}")
    with runtime.trainer(path) as plain, runtime.trainer(path) as other:
        plain.step(5)
        other.step(2)
        worker = other._workers[0]
        assert worker.whole
        row = worker.passes.outer.last
        (call,) = row

        def interrupted() -> None:  # Python raises it where it is back from compiled code
            row[:] = [call]
            if not before:
                call()
            raise KeyboardInterrupt

        row[:] = [interrupted]
        with pytest.raises(KeyboardInterrupt):
            other.step(5)
        assert other.iteration == (2 if before else 3)
        other.step(5 - other.iteration)
        for layer, arrays in plain.net.params.items():
            for mine, theirs in zip(arrays, other.net.params[layer], strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_a_look_at_the_times_of_entries_changes_nothing(runtime: Any, folder: Path) -> None:
    path = solver(folder, LISTED + NET)
    with runtime.trainer(path) as plain, runtime.trainer(path) as looked:
        for _ in range(4):
            assert plain.step().loss == looked.step().loss
            layers = {entry.layer for entry, _ in looked.profile(1)}
            assert {"conv", "mean", "ip", "loss"} <= layers


def test_scores_are_of_what_has_one_shape_in_all_batches(runtime: Any, folder: Path) -> None:
    """A map of the image's size has no mean."""
    more = """
    layer { name: "map" type: "Power" bottom: "data" top: "map" power_param { scale: 2 }
      include { phase: TEST } }"""
    path = solver(folder, LISTED + NET + more, "test_iter: 6 test_interval: 100")
    with runtime.trainer(path, precision="f64") as trainer:
        by_hand = ByHand(trainer.net.params)
        wanted = np.mean([by_hand.passed(number)[0] for number in range(6)])
        for _ in range(2):
            assert trainer.test() == {"loss": pytest.approx(wanted, rel=1e-12)}
            trainer.step()
            by_hand.iteration([trainer.iteration - 1])
            wanted = np.mean([by_hand.passed(number)[0] for number in range(6)])


def test_scores_of_images_of_one_size_are_of_that_size(runtime: Any, folder: Path) -> None:
    """Whatever the net was planned for before."""
    for number in range(2, len(SIZES)):
        cv2.imwrite(str(folder / f"{number}.png"), photo(1))
    lines = (folder / "list.txt").read_text().splitlines()
    (folder / "list.txt").write_text("\n".join([*lines[:1], *lines[2:]]))
    (folder / "net.prototxt").write_text(LISTED.replace("batch_size: 1", "batch_size: 1 rand_skip: 2"))
    net = next(
        made
        for seed in range(20)
        if (made := runtime.net(folder / "net.prototxt", seed=seed)).forward()["data"].shape[2:]
        == SIZES[1]
    )
    wanted = photo(1).transpose(2, 0, 1)[None] * SCALE
    for _ in range(2):
        np.testing.assert_allclose(net.test(3)["data"], wanted, rtol=1e-5)
    assert "data" not in net.test(5)


def test_an_image_that_the_net_cannot_take_is_named_and_what_was_trained_is_kept(
    runtime: Any, folder: Path
) -> None:
    cv2.imwrite(str(folder / "3.png"), photo(0)[:2])
    path = solver(folder, LISTED + NET)
    told = r"list\.txt:4: .*3\.png: the net cannot take samples of data \(3, 2, 30\): .*layer 'conv'"
    with (
        runtime.trainer(path) as trainer,
        pytest.raises(DataError, match=told + r".*; iteration 3 is saved in .*_iter_3\.demitasse"),
    ):
        trainer.run()
    cv2.imwrite(str(folder / "3.png"), photo(3))
    (kept,) = Path(folder).glob("*_iter_3.demitasse")
    with runtime.trainer(path, resume=kept) as trainer, runtime.trainer(path) as plain:
        plain.step(3)
        assert [trainer.step().loss for _ in range(3)] == [plain.step().loss for _ in range(3)]


def test_an_image_that_cannot_be_read_is_named(runtime: Any, folder: Path) -> None:
    (folder / "2.png").write_bytes(b"no image")
    with runtime.trainer(solver(folder, LISTED + NET)) as trainer:
        trainer.step(2)
        with pytest.raises(DataError, match=r"list\.txt:3: 2\.png: it is not an image"):
            trainer.step()
        cv2.imwrite(str(folder / "2.png"), photo(2))
        trainer.step()
        assert trainer.iteration == 3


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("sync", ["reference", "parameter_server", "numa"])
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_each_take_an_image_and_learn_together(
    folder: Path, workers: int, sync: str, passes: int
) -> None:
    """Under weak scaling, where a batch of the file is each worker's own."""
    (folder / "hw.toml").write_text(WORKERS.format(count=workers).replace("reference", sync))
    path = solver(folder, LISTED + NET, f"iter_size: {passes} clip_gradients: 0.2")
    with (
        demitasse.compose(hw=folder / "hw.toml", plugins=[f"+{sync}"]) as runtime,
        runtime.trainer(path, precision="f64", scaling="weak") as trainer,
    ):
        by_hand = ByHand(trainer.net.params, clip=0.2 / passes)  # Caffe's is of the passes' sum
        each = workers * passes
        for iteration in range(6):
            numbers = [(iteration * each + n) % len(SIZES) for n in range(each)]
            assert trainer.step().loss == pytest.approx(by_hand.iteration(numbers), rel=1e-10)
        learned = [p for name in ("conv", "ip") for p in trainer.net.params[name]]
        for mine, wanted in zip(learned, by_hand.parameters, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12)


def test_workers_that_each_take_an_image_normalise_it_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each pass is planned for its own image, which a user's layer may even run twice."""
    (folder / "hw.toml").write_text(WORKERS.format(count=2))
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }\n'
    text = LISTED + NET.replace('layer { name: "relu"', norm + 'layer { name: "relu"')
    with demitasse.compose(folder / "hw.toml") as made:
        trainer = made.trainer(solver(folder, text), scaling="weak")
        losses = [trainer.step().loss for _ in range(3)]
        trainer.close()
    assert np.isfinite(losses).all()
    told = [each.getMessage() for each in caplog.records if each.name == "demitasse.training"]
    assert any(
        "layer 'norm': each of the 2 workers has" in each and "samples vary in shape" in each
        for each in told
    )


def test_workers_that_share_a_batch_of_several_sizes_say_what_to_do(folder: Path) -> None:
    path = solver(folder, LISTED.replace("batch_size: 1", "batch_size: 2") + NET)
    (folder / "hw.toml").write_text(WORKERS.format(count=2))
    with (
        demitasse.compose(hw=folder / "hw.toml") as runtime,
        runtime.trainer(path) as trainer,
        pytest.raises(DataError, match=r"1\.png: field 'data' has shape .* batches of one for images"),
    ):
        trainer.step()


def test_a_script_follows_them_too(folder: Path) -> None:
    path = solver(folder, LISTED + NET, "iter_size: 2")
    net = caffe.Net(str(folder / "net.prototxt"), caffe.TEST)
    for number in range(3):
        net.forward()
        assert net.blobs["data"].data.shape == (1, 3, *SIZES[number])
        net.forward(start="conv")  # again, with the samples that are there
        assert net.blobs["data"].data.shape == (1, 3, *SIZES[number])
    trained = caffe.get_solver(str(path))
    by_hand = ByHand({name: [p.data.copy() for p in each] for name, each in trained.net.params.items()})
    for iteration in range(4):
        trained.step(1)
        by_hand.iteration([(iteration * 2 + n) % len(SIZES) for n in range(2)])
    learned = [p.data for name in ("conv", "ip") for p in trained.net.params[name]]
    for mine, wanted in zip(learned, by_hand.parameters, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=1e-6)


@pytest.mark.usefixtures("no_threads_left")
def test_what_reads_ahead_ends_with_the_net(folder: Path) -> None:
    (folder / "net.prototxt").write_text(LISTED)
    with demitasse.compose() as runtime:
        net = runtime.net(folder / "net.prototxt")
        net.forward()
