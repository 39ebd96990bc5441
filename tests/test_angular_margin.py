"""Products with a margin of the angle, beside SphereFace's formulas and the training of its fork."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import TOLERANCE, Large, Values, check_agreement
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from margin_cases import CASES
from slopes import parameter, step, train

import demitasse

RANDOM = np.random.default_rng(6)
X = RANDOM.normal(size=(6, 2, 2, 1))
LABEL = np.array([4, 0, 4, 2, 4, 0], float)
MARGINS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "QUADRUPLE": 4}
FACTORS = "base: 40 gamma: 0.5 power: 2 lambda_min: 3"


@pytest.mark.parametrize("name", sorted(CASES))
def test_threads_share_what_is_large(name: str) -> None:
    check_agreement(name, *CASES[name](Large({9: 200, 40: 160})), "float64", 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    drawn = CASES[name](Values(data.draw, dtype))
    check_agreement(name, *drawn, dtype, 5 * TOLERANCE[dtype])


def layer(more: str, tops: str = 'top: "y" top: "factor"') -> str:
    return (
        f'layer {{ name: "scores" type: "MarginInnerProduct" bottom: "x" bottom: "label" {tops} '
        f"margin_inner_product_param {{ {more} weight_filler {{ type: 'gaussian' std: 1 }} }} }}"
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }'
    )


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def of_angle(t: float, margin: int) -> float:
    """The paper's psi."""
    k = min(int(margin * t / np.pi), margin - 1)
    return float((-1) ** k * np.cos(margin * t) - 2 * k)


def scored(x: np.ndarray, w: np.ndarray, margin: int, factor: float) -> tuple[float, Any, Any]:
    """The mean loss, and the gradients of x and of w as vectors of length 1, as the fork has them: one
    sample and class after the other, slopes by differences."""
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    dx, dw, total = np.zeros_like(x), np.zeros_like(w), 0.0
    for i, name in enumerate(LABEL.astype(int)):
        length, y = np.linalg.norm(x[i]), unit @ x[i]
        t = np.arccos(y[name] / length)
        y[name] = (factor * y[name] + length * of_angle(t, margin)) / (1 + factor)
        p = np.exp(y - y.max())
        p /= p.sum()
        total -= np.log(p[name])
        dy = p.copy()
        dy[name] -= 1
        slope = -(of_angle(t + 1e-6, margin) - of_angle(t - 1e-6, margin)) / 2e-6 / np.sin(t)
        away = (of_angle(t, margin) - slope * np.cos(t)) / length
        slope, away = np.array([slope, away]) / np.hypot(slope, away)
        for j, each in enumerate(dy):
            dw[j] += each * x[i]
            if j == name:
                dx[i] += each * (factor * unit[j] + slope * unit[j] + away * x[i]) / (1 + factor)
            else:
                dx[i] += each * unit[j]
    return total / len(x), dx / len(x), dw / len(x)


def factor_at(iteration: int) -> float:
    """FACTORS', after so many iterations."""
    return max(3.0, 40 * (1 + 0.5 * (iteration + 1)) ** -2.0)


@pytest.mark.parametrize("kind", MARGINS)
def test_losses_and_gradients_are_the_forks(runtime: Any, tmp_path: Path, kind: str) -> None:
    text = parameter("x", X) + layer(f"num_output: 5 type: {kind} {FACTORS}")
    trainer = train(runtime, tmp_path, text, LABEL)
    for iteration in range(3):
        before = np.array(trainer.net.params["scores"][0])
        loss, gradients = step(trainer, {"x": X})
        factor = factor_at(iteration)
        expected, dx, dw = scored(X.reshape(6, 4), before, MARGINS[kind], factor)
        assert float(trainer.net.blobs["factor"].data[0]) == pytest.approx(factor, rel=1e-12)
        assert loss == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradients["x"].reshape(6, 4), dx, rtol=1e-6, atol=1e-9)
        moved = before - trainer.net.params["scores"][0]
        lengths = np.linalg.norm(before, axis=1, keepdims=True)
        np.testing.assert_allclose(moved, lengths * dw, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("momentum", "within"), [(0.0, 1e-9), (0.9, 0.05)])
def test_it_is_trained_as_by_the_fork(tmp_path: Path, momentum: float, within: float) -> None:
    """Which overwrites vectors with themselves over their lengths; exactly, if there is no momentum."""
    inputs = 'layer { name: "data" type: "Data" top: "x" top: "label" data_param { batch_size: 6 } }'
    (tmp_path / "net.prototxt").write_text(inputs + layer(f"num_output: 5 type: QUADRUPLE {FACTORS}"))
    (tmp_path / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 50 momentum: {momentum} '
        "weight_decay: 0.01 random_seed: 5"
    )
    x = X.reshape(6, 4)
    with demitasse.compose(plugins=["caffe", "datasets", "training", "reference"]) as runtime:
        trainer = runtime.trainer(
            tmp_path / "solver.prototxt", precision="f64", data={"train": {"data": x, "label": LABEL}}
        )
        w, history = np.array(trainer.net.params["scores"][0]), np.zeros((5, 4))
        for iteration in range(30):
            w = w / np.linalg.norm(w, axis=1, keepdims=True)
            loss, _, dw = scored(x, w, 4, factor_at(iteration))
            assert trainer.step().loss == pytest.approx(loss, rel=within)
            history = momentum * history + 0.1 * (dw + 0.01 * w)
            w = w - history


def test_two_workers_train_as_one_does(tmp_path: Path) -> None:
    inputs = 'layer { name: "data" type: "Data" top: "x" top: "label" data_param { batch_size: 6 } }'
    (tmp_path / "net.prototxt").write_text(inputs + layer(f"num_output: 5 type: TRIPLE {FACTORS}"))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9 momentum: 0.9 random_seed: 5'
    )
    samples = {"train": {"data": X.reshape(6, 4), "label": LABEL}}
    level = demitasse.Level("worker", 2, workers="threads", sync=demitasse.SyncSpec("numa"))
    nodes = demitasse.Level("node")
    machines = [demitasse.Machine("one", (nodes,)), demitasse.Machine("two", (nodes, level))]
    plugins = ["caffe", "datasets", "training", "snapshots", "reference", "numa", "system"]
    losses = []
    for machine in machines:
        with demitasse.compose(machine, plugins=plugins) as runtime:
            trainer = runtime.trainer(tmp_path / "solver.prototxt", precision="f64", data=samples)
            losses.append([trainer.step().loss for _ in range(9)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)


def test_a_test_scores_as_training_does_and_needs_no_second_top(tmp_path: Path) -> None:
    inputs = (
        'layer { name: "in" type: "Input" top: "x" top: "label" input_param { '
        "shape { dim: 6 dim: 2 dim: 2 dim: 1 } shape { dim: 6 } } }"
    )
    text = inputs + layer(f"num_output: 5 type: DOUBLE {FACTORS}", tops='top: "y"')
    (tmp_path / "net.prototxt").write_text(text)
    with demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime:
        net = runtime.net(tmp_path / "net.prototxt", phase="test", precision="f64", seed=1)
        w = np.array(net.params["scores"][0])
        expected, *_ = scored(X.reshape(6, 4), w, 2, factor_at(0))
        assert float(net.forward(x=X, label=LABEL)["loss"]) == pytest.approx(expected, rel=1e-12)


def test_a_label_that_is_no_class_is_told(runtime: Any, tmp_path: Path) -> None:
    wrong = np.where(np.arange(6) == 3, 5.0, LABEL)
    trainer = train(runtime, tmp_path, parameter("x", X) + layer("num_output: 5 type: DOUBLE"), wrong)
    with pytest.raises(demitasse.DataError, match="label 5 of sample 3 of the batch is no"):
        step(trainer, {"x": X})


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "needs a num_output of 1 or more"), ("num_output: 5 axis: 2", "a row per sample")],
)
def test_mistakes_are_told(runtime: Any, tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(demitasse.ModelError, match=said) as caught:
        train(runtime, tmp_path, parameter("x", X) + layer(more), LABEL)
    assert "layer 'scores' (MarginInnerProduct)" in str(caught.value)
