"""Sequences whose labels are shorter than they: their loss beside all paths written out, and nets of the
forks with CTC."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import TOLERANCE, Large, Values, check_agreement, hook, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slopes import parameter, step, train
from small_nets import WORKERS

import demitasse
from demitasse import DataError, ModelError


def _labels(v: Any, samples: int, length: int, classes: int) -> Any:
    """Of one type: loops are compiled for each."""
    return v.random.integers(-1, classes, (samples, length, 1)).astype(v.dtype)


def _case(v: Any) -> Any:
    steps, samples, classes = v.number(1, 7), v.number(1, 5), v.number(2, 6)
    label = _labels(v, samples, v.number(1, 4), classes)
    taken = v.one_of(None, v.random.integers(0, steps + 1, samples).astype(v.dtype))
    return [v.real(steps, samples, classes), label, taken], {"blank": v.one_of(0, classes - 1)}


def _backward(v: Any) -> Any:
    (x, *rest), attributes = _case(v)
    return [v.real(x.shape[1]), x, *rest], attributes


def _decoded(v: Any) -> Any:
    (x, label, _), attributes = _case(v)
    return [np.ascontiguousarray(x.transpose(1, 0, 2)), label], attributes


CASES = {"ctc_loss": _case, "ctc_loss_backward": _backward, "sequences_right": _decoded}


@pytest.mark.parametrize("name", sorted(CASES))
def test_threads_share_what_is_large(name: str) -> None:
    drawn = CASES[name](Large({7: 40, 5: 60, 6: 30, 4: 9}))
    check_agreement(name, *drawn, "float64", 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    check_agreement(name, *CASES[name](Values(data.draw, dtype)), dtype, TOLERANCE[dtype])


def read(path: Sequence[int], blank: int) -> list[int]:
    """What a path says."""
    return [c for c, _ in itertools.groupby(path) if c != blank]


def written_out(x: np.ndarray, label: Sequence[int], blank: int) -> float:
    """Minus the log of the chances of all paths of a sample (steps, classes) that say its label."""
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    wanted = [c for c in label if c != blank]
    chance = sum(
        np.prod([shares[t, c] for t, c in enumerate(path)])
        for path in itertools.product(range(x.shape[1]), repeat=len(x))
        if read(path, blank) == wanted
    )
    return float(-np.log(chance)) if chance else 0.0


@pytest.mark.parametrize("plugin", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("label", "blank"),
    [([1, 2], 0), ([1, 1], 0), ([0, 0, 0], 0), ([2, 0, 2], 0), ([0, 1, 2], 2), ([1, 1, 1], 0)],
)
def test_the_loss_is_that_of_all_paths_and_its_gradient_the_slope(
    plugin: str, label: list[int], blank: int
) -> None:
    """Of four steps, in which 1, 1, 1 cannot be said."""
    x = np.random.default_rng(sum(label)).normal(size=(4, 2, 3))
    labels = np.array([label, [blank] * len(label)], np.float64)
    inputs: list[Any] = [x, labels, None]
    request = make_request("ctc_loss", inputs, {"blank": blank}, "float64")
    (candidate,) = hook(plugin)(request)
    *_, losses = run(candidate, request, inputs)
    wanted = [written_out(x[:, n], labels[n].astype(int).tolist(), blank) for n in range(2)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    dlosses = np.array([2.0, -0.5])
    inputs = [dlosses, x, labels, None]
    request = make_request("ctc_loss_backward", inputs, {"blank": blank}, "float64")
    (candidate,) = hook(plugin)(request)
    *_, dx = run(candidate, request, inputs)
    for t, n, c in np.ndindex(x.shape):
        sides = []
        for h in (1e-5, -1e-5):
            moved = x[:, n].copy()
            moved[t, c] += h
            sides.append(written_out(moved, labels[n].astype(int).tolist(), blank))
        assert dx[t, n, c] == pytest.approx(dlosses[n] * (sides[0] - sides[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("blank", [0, 5])
@pytest.mark.parametrize("trial", range(6))
def test_pytorch_has_the_same_losses_and_gradients(blank: int, trial: int) -> None:
    """Of labels that are empty, have repeats, or are too long for a sample's steps, of which PyTorch is
    asked to count nothing, too."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    random = np.random.default_rng(trial)
    steps, samples, classes = int(random.integers(2, 30)), 7, 6
    x, dlosses = random.normal(0, 3, (steps, samples, classes)), random.normal(size=samples)
    label = random.integers(-1 if trial % 2 else 0, classes, (samples, 9)).astype(np.float64)
    label[0] = blank
    taken = random.integers(1, steps + 1, samples)
    said = [row[: np.argmax(row < 0) if (row < 0).any() else None] for row in label]
    said = [row[row != blank].astype(int) for row in said]
    tx = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.ctc_loss(
        tx.log_softmax(2),
        torch.tensor(np.concatenate(said)),
        torch.tensor(taken),
        torch.tensor([len(row) for row in said]),
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
    theirs.backward(torch.tensor(dlosses))
    inputs: list[Any] = [x, label, taken.astype(np.float64)]
    for plugin in ("reference", "cpu"):
        for name, operands, wanted in (
            ("ctc_loss", inputs, theirs.detach()),
            ("ctc_loss_backward", [dlosses, *inputs], tx.grad),
        ):
            request = make_request(name, operands, {"blank": blank}, "float64")
            (candidate,) = hook(plugin)(request)
            made = run(candidate, request, operands)[-1]
            np.testing.assert_allclose(made, wanted.numpy(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("plugin", ["reference", "cpu"])
def test_what_a_net_reads_is_compared_with_the_label(plugin: str) -> None:
    best = np.array([[1, 1, 0, 1, 2], [0, 0, 0, 0, 0], [1, 2, 2, 2, 1], [1, 2, 2, 0, 2]])
    x = np.eye(3)[best]
    for labels, right in (
        ([[1, 1, 2], [0, 0, 0], [1, 2, 1], [1, 2, 2]], [1, 1, 1, 1]),
        ([[1, 2, 0], [1, 0, 0], [1, 2, 0], [0, 1, 2]], [0, 0, 0, 0]),
    ):
        inputs = [x, np.array(labels, np.float64)]
        request = make_request("sequences_right", inputs, {"blank": 0}, "float64")
        (candidate,) = hook(plugin)(request)
        assert run(candidate, request, inputs)[-1].tolist() == right


@pytest.mark.parametrize("plugin", ["reference", "cpu"])
@pytest.mark.parametrize("wrong", [3, -2, 0.5])
def test_a_label_that_is_no_class_is_named(plugin: str, wrong: float) -> None:
    x, labels = np.zeros((4, 2, 3)), np.array([[1, 2], [0, wrong]])
    request = make_request("ctc_loss", [x, labels, None], {"blank": 0}, "float64")
    (candidate,) = hook(plugin)(request)
    with pytest.raises(DataError, match=f"label {wrong:g} of sample 1 of the batch is no"):
        run(candidate, request, [x, labels, None])


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


X = np.random.default_rng(8).normal(size=(5, 3, 4))
LABELS = np.array([[1, 2, 0], [3, 3, 0], [0, 0, 0]], float)


@pytest.mark.parametrize(
    ("kind", "about"),
    [
        ("CtcLoss", "blank_label: 0 alphabet_size: 4 time_step: 5"),
        ("WarpCTCLoss", "blank_index: 0"),
    ],
)
def test_the_mean_is_told_and_the_sum_is_learned_from(
    runtime: Any, tmp_path: Path, kind: str, about: str
) -> None:
    text = parameter("x", X) + (
        f'layer {{ name: "loss" type: "{kind}" bottom: "x" bottom: "label" top: "loss" '
        f"ctc_loss_param {{ {about} }} }}"
    )
    trainer = train(runtime, tmp_path, text, LABELS, "f64")
    loss, gradients = step(trainer, {"x": X})
    each = [written_out(X[:, n], LABELS[n].astype(int).tolist(), 0) for n in range(3)]
    assert loss == pytest.approx(np.mean(each), rel=1e-12)
    moved = X.copy()
    moved[2, 1, 3] += 1e-5
    slope = (written_out(moved[:, 1], [3, 3, 0], 0) - each[1]) / 1e-5
    assert gradients["x"][2, 1, 3] == pytest.approx(slope, rel=1e-4)


def net(runtime: Any, folder: Path, text: str) -> Any:
    (folder / "net.prototxt").write_text(
        'layer { name: "i" type: "Input" top: "x" top: "y" input_param { shape { dim: [5, 3, 4] } '
        f"shape {{ dim: [3, 2] }} }} }}\n{text}"
    )
    return runtime.net(folder / "net.prototxt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('type: "CtcLoss" ctc_loss_param { time_step: 4 }', "time_step: 4 }, but .* has 5"),
        ('type: "CtcLoss" ctc_loss_param { alphabet_size: 9 }', "alphabet_size: 9 }, but .* has 4"),
        ('type: "CtcLoss" ctc_loss_param { blank_label: 4 }', "the blank 4 one of the classes"),
        ('type: "LabelsequenceAccuracy"', "a row for each sample"),
    ],
)
def test_what_cannot_be_says_why(runtime: Any, tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        net(runtime, tmp_path, f'layer {{ name: "l" bottom: "x" bottom: "y" top: "z" {text} }}')


def test_an_indicator_is_of_sequences_that_are_a_batch_each(runtime: Any, tmp_path: Path) -> None:
    text = (
        'layer { name: "c" type: "ContinuationIndicator" top: "c" '
        "continuation_indicator_param { time_step: 4 batch_size: 3 } }"
    )
    found = net(runtime, tmp_path, text).forward(x=np.zeros((5, 3, 4)), y=np.zeros((3, 2)))
    np.testing.assert_array_equal(found["c"], [[0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]])


NET = """
layer { name: "data" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 16 channels: 3 height: 1 width: 9 } }
layer { name: "steps" type: "Permute" bottom: "data" top: "steps"
  permute_param { order: 3 order: 0 order: 1 order: 2 } }
layer { name: "cont" type: "ContinuationIndicator" top: "cont"
  continuation_indicator_param { time_step: 9 batch_size: 16 } }
layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "lstm"
  recurrent_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "lstm" top: "fc"
  inner_product_param { axis: 2 num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "CtcLoss" bottom: "fc" bottom: "label" top: "loss"
  ctc_loss_param { blank_label: 3 alphabet_size: 4 time_step: 9 } }
layer { name: "back" type: "Permute" bottom: "fc" top: "back" include { phase: TEST }
  permute_param { order: 1 order: 0 order: 2 } }
layer { name: "right" type: "LabelsequenceAccuracy" bottom: "back" bottom: "label" top: "right"
  include { phase: TEST } labelsequence_accuracy_param { blank_label: 3 } }
"""


def test_a_net_learns_to_read(runtime: Any, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 type: "Adam" momentum: 0.9 momentum2: 0.999 max_iter: 400 '
        'lr_policy: "fixed" test_iter: 4 test_interval: 1000 snapshot_after_train: false random_seed: 2'
    )
    data = {"train": signs(320), "test": signs(64, 6)}
    with runtime.trainer(tmp_path / "solver.prototxt", data=data) as trainer:
        assert trainer.test()["right"] < 0.3
        trainer.step(400)
        assert trainer.test()["right"] > 0.9


def signs(count: int, seed: int = 5) -> dict[str, np.ndarray]:
    """Three signs of one to three steps each, with nothing between or behind them, in noise."""
    random = np.random.default_rng(seed)
    data = random.normal(0, 0.1, (count, 3, 1, 9)).astype(np.float32)
    labels = np.full((count, 3), 3)
    for n in range(count):
        at = 0
        for i in range(random.integers(1, 4)):
            labels[n, i] = sign = random.integers(0, 3)
            length = random.integers(1, 3)
            data[n, sign, 0, at : at + length] += 1
            at += length + 1  # a gap, without which two signs alike would be one
    return {"data": data, "label": labels}


def trained(folder: Path, workers: int, net: str, precision: str = "f64", **options: Any) -> Any:
    """Losses of some steps, scores of a test and a parameter, of so many workers."""
    (folder / "hw.toml").write_text(WORKERS.format(count=workers))
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" test_iter: 2 '
        "test_interval: 99 random_seed: 3 snapshot_after_train: false"
    )
    data = {"train": signs(64), "test": signs(32, 6)}
    with (
        demitasse.compose(hw=folder / "hw.toml", plugins=["-tuning"]) as runtime,
        runtime.trainer(
            folder / "solver.prototxt", data=data, precision=precision, **options
        ) as trainer,
    ):
        losses = [trainer.step().loss for _ in range(3)]
        return losses, trainer.test(), np.array(trainer.net.params["lstm"][1])


@pytest.mark.parametrize("kind", ["CtcLoss", "WarpCTCLoss", "CTCLoss"])
def test_workers_divide_samples_wherever_they_lie(tmp_path: Path, kind: str) -> None:
    """Of 16 samples, two workers have 8 each, three 6, 5 and 5."""
    net = NET.replace('"CtcLoss"', f'"{kind}"').replace("blank_label: 3 a", "blank_index: 3 a")
    losses, scores, weights = trained(tmp_path, 1, net)
    assert losses[2] < losses[0]
    for workers in (2, 3):
        found, test, moved = trained(tmp_path, workers, net)
        np.testing.assert_allclose(found, losses, rtol=1e-12)
        assert test == pytest.approx(scores, rel=1e-12)
        np.testing.assert_allclose(moved, weights, rtol=1e-9, atol=1e-13)


def test_a_test_tells_how_close_and_how_many_are_right(tmp_path: Path) -> None:
    net = NET + (
        'layer { name: "acc" type: "CTCGreedyDecoder" bottom: "fc" bottom: "label" top: "acc" '
        "ctc_decoder_param { blank_index: 3 } include { phase: TEST } }"
    )
    _, scores, _ = trained(tmp_path, 3, net)
    assert scores["acc.line"] == pytest.approx(scores["right"])
    assert scores["acc.line"] <= scores["acc.edit"] <= 1
    assert set(scores) == {"acc.edit", "acc.line", "right", "loss"}


BOTH_WAYS = """
layer { name: "turned" type: "Reverse" bottom: "steps" top: "turned" }
layer { name: "lstm2" type: "Lstm" bottom: "turned" top: "lstm2"
  lstm_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "again" type: "Reverse" bottom: "lstm2" top: "again" }
layer { name: "both" type: "Concat" bottom: "lstm" bottom: "again" top: "both"
  concat_param { axis: 2 } }
layer { name: "sum" type: "Eltwise" bottom: "both" bottom: "both" top: "sum" }
layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" """
PERMUTED = """type: "Permute" bottom: "data" top: "steps"
  permute_param { order: 3 order: 0 order: 1 order: 2 }"""
TRANSPOSED = """type: "Transpose" bottom: "data" top: "turn"
  transpose_param { dim: 3 dim: 2 dim: 0 dim: 1 } }
layer { name: "flat" type: "Reshape" bottom: "turn" top: "steps"
  reshape_param { shape { dim: -1 } axis: 1 num_axes: 2 }"""


@pytest.mark.parametrize("steps", [PERMUTED, TRANSPOSED])
def test_workers_divide_what_goes_both_ways(tmp_path: Path, steps: str) -> None:
    """As DeepDetect's net, and as caffe_ocr's, where a reshape makes the samples' axis the second."""
    net = NET.replace('layer { name: "fc" type: "InnerProduct" bottom: "lstm" ', BOTH_WAYS)
    net = net.replace(PERMUTED, steps)
    assert steps in net
    assert '"lstm2"' in net
    losses, scores, weights = trained(tmp_path, 1, net)
    found, test, moved = trained(tmp_path, 3, net)
    np.testing.assert_allclose(found, losses, rtol=1e-12)
    assert test == pytest.approx(scores, rel=1e-12)
    np.testing.assert_allclose(moved, weights, rtol=1e-9, atol=1e-13)


def test_workers_drop_the_same_numbers_of_a_sample(tmp_path: Path) -> None:
    """Behind an LSTM samples lie along the second axis."""
    dropping = 'layer { name: "d" type: "Dropout" bottom: "lstm" top: "lstm" }\nlayer { name: "fc"'
    net = NET.replace('layer { name: "fc"', dropping)
    losses, _, weights = trained(tmp_path, 1, net)
    found, _, moved = trained(tmp_path, 3, net)
    np.testing.assert_allclose(found, losses, rtol=1e-12)
    np.testing.assert_allclose(moved, weights, rtol=1e-9, atol=1e-13)


def test_workers_do_not_divide_steps(tmp_path: Path) -> None:
    """Where what is read has steps first, as ChWick's examples."""
    net = NET.replace('bottom: "steps"', 'bottom: "data"')
    with pytest.raises(ModelError, match=r"streams lie along axis 1 .* train it with one worker"):
        trained(tmp_path, 2, net)
