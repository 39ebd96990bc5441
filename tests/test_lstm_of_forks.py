"""The LSTM of caffe-lstm, in both forms that forks have it: beside formulas, and slow loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recurrent_formulas import lstm, sigmoid
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(5)
X, TARGET = RANDOM.normal(size=(5, 3, 2, 1)), RANDOM.normal(size=(5, 3, 4))
CONT = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], float)
WHOLE = np.array([[0.0] * 3] + [[1.0] * 3] * 4)
"""The indicators of sequences that are whole batches."""


def layer(bottoms: str = "x", more: str = "") -> str:
    named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return (
        f'layer {{ name: "it" type: "Lstm" {named} top: "y" lstm_param {{ num_output: 4 {more} '
        f'weight_filler {{ type: "gaussian" std: 0.7 }} bias_filler {{ type: "gaussian" std: 0.5 }} '
        f"}} }}\n"
    )


def inputs(**shapes: tuple[int, ...]) -> str:
    tops = " ".join(f'top: "{name}"' for name in shapes)
    dims = (" ".join(f"dim: {n}" for n in shape) for shape in shapes.values())
    given = " ".join(f"shape {{ {each} }}" for each in dims)
    return f'layer {{ name: "in" type: "Input" {tops} input_param {{ {given} }} }}\n'


def formula(x: np.ndarray, cont: np.ndarray, p: Any) -> np.ndarray:
    w_x, w_h, b = (np.asarray(each, np.float64) for each in p)
    return lstm(x, cont, None, [w_x, b, w_h])


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def net(runtime: Any, folder: Path, text: str) -> Any:
    (folder / "net.prototxt").write_text(text)
    return runtime.net(folder / "net.prototxt", precision="f64", seed=3)


def test_steps_of_streams_are_sequences_by_themselves(runtime: Any, tmp_path: Path) -> None:
    made = net(runtime, tmp_path, inputs(x=X.shape) + layer())
    assert [a.shape for a in made.params["it"]] == [(16, 2), (16, 4), (16,)]
    expected = formula(X, WHOLE, made.params["it"])
    for _ in range(2):  # a batch is not what the last one goes on in
        np.testing.assert_allclose(made.forward(x=X)["y"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(15, 2), (15, 2, 1), (15, 1, 2, 1)])
def test_rows_are_steps_of_batch_size_streams(
    runtime: Any, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    text = inputs(x=shape, clip=(15, 1)) + layer("x clip", "batch_size: 3")
    made = net(runtime, tmp_path, text)
    y = made.forward(x=X.reshape(shape), clip=CONT.reshape(15, 1))["y"]
    assert y.shape == (15, 4)
    expected = formula(X, CONT, made.params["it"]).reshape(15, 4)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_without_batch_size_rows_are_steps_of_one_stream(runtime: Any, tmp_path: Path) -> None:
    made = net(runtime, tmp_path, inputs(x=(5, 2)) + layer())
    x = X[:, 0, :, 0]
    expected = formula(x[:, None], WHOLE[:, :1], made.params["it"])[:, 0]
    np.testing.assert_allclose(made.forward(x=x)["y"], expected, rtol=1e-12, atol=1e-12)


def test_indicators_have_a_batch_go_on_where_the_last_one_ended(runtime: Any, tmp_path: Path) -> None:
    x, cont = RANDOM.normal(size=(10, 3, 2)), np.concatenate([CONT, CONT])
    cont[5] = [1, 0, 1]
    made = net(runtime, tmp_path, inputs(x=(5, 3, 2), clip=(5, 3)) + layer("x clip"))
    whole = formula(x, cont, made.params["it"])
    for part in (slice(0, 5), slice(5, 10)):
        y = made.forward(x=x[part], clip=cont[part])["y"]
        np.testing.assert_allclose(y, whole[part], rtol=1e-10, atol=1e-12)


def gradients(x: np.ndarray, p: list[np.ndarray], bound: float) -> tuple[np.ndarray, ...]:
    """Of x, and the parameters, of half the squared distance to TARGET over 5: a step after the other,
    each sum's gradient cut."""
    w_x, w_h, b = p
    steps, streams, units = TARGET.shape
    h, c = np.zeros((2, steps + 1, streams, units))
    gates, made = np.zeros((steps, streams, 4, units)), []
    for t in range(steps):
        go = WHOLE[t][:, None]
        z = (x[t].reshape(streams, -1) @ w_x.T + go * (h[t] @ w_h.T) + b).reshape(streams, 4, units)
        gates[t] = np.concatenate([sigmoid(z[:, :3]), np.tanh(z[:, 3:])], 1)
        i, f, o, g = (gates[t][:, k] for k in range(4))
        c[t + 1] = go * f * c[t] + i * g
        h[t + 1] = o * np.tanh(c[t + 1])
    dx, dp = np.zeros_like(x), [np.zeros_like(each) for each in p]
    dh, dc = np.zeros((2, streams, units))
    for t in reversed(range(steps)):
        go = WHOLE[t][:, None]
        i, f, o, g = (gates[t][:, k] for k in range(4))
        dh = dh + (h[t + 1] - TARGET[t]) / 5
        tanh = np.tanh(c[t + 1])
        dc = dc + dh * o * (1 - tanh**2)
        sums = [dc * g * i * (1 - i), dc * go * c[t] * f * (1 - f), dh * tanh * o * (1 - o)]
        dz = np.concatenate([*sums, dc * i * (1 - g**2)], 1).clip(-bound, bound)
        made.append(np.abs(dz).max())
        dx[t] = (dz @ w_x).reshape(x[t].shape)
        for place, more in enumerate((dz.T @ x[t].reshape(streams, -1), dz.T @ (go * h[t]), dz.sum(0))):
            dp[place] += more
        dh, dc = go * (dz @ w_h), go * dc * f
    assert max(made) <= bound
    return dx, *dp


@pytest.mark.parametrize("bound", [0, 0.02])
def test_gradients_are_cut_where_they_enter_a_gate(runtime: Any, tmp_path: Path, bound: float) -> None:
    values = {"x": X, "target": TARGET}
    text = "".join(parameter(name, value) for name, value in values.items())
    text += layer("x", f"clipping_threshold: {bound}")
    text += 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "target" }'
    trainer = train(runtime, tmp_path, text, CONT)
    before = [a.copy() for a in trainer.net.params["it"]]
    loss, found = step(trainer, values)
    assert loss == pytest.approx(((formula(X, WHOLE, before) - TARGET) ** 2).sum() / 10, rel=1e-12)
    moved = [b - a for a, b in zip(trainer.net.params["it"], before, strict=True)]
    limit = bound or np.inf
    for made, expected in zip((found["x"], *moved), gradients(X, before, limit), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-12)
        assert expected.any()
    uncut = gradients(X, before, np.inf)
    slopes = slope(lambda x: float(((formula(x, WHOLE, before) - TARGET) ** 2).sum() / 10), X)
    np.testing.assert_allclose(uncut[0], slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (inputs(x=(5, 2)) + layer().replace("num_output: 4", ""), "needs a num_output of 1 or more"),
        (inputs(x=(5, 2)) + layer("x", "batch_size: 2"), "not a multiple of batch_size 2"),
        (inputs(x=(5, 2)) + layer("x", "clipping_threshold: -1"), "clipping_threshold -1 is not"),
        (
            inputs(x=(5, 3, 2), clip=(5, 2)) + layer("x clip"),
            "an indicator for each of 5 steps of 3 streams",
        ),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "net.prototxt").write_text(text)
    with (
        demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime,
        pytest.raises(demitasse.ModelError, match=said) as caught,
    ):
        runtime.net(tmp_path / "net.prototxt")
    assert "layer 'it' (Lstm)" in str(caught.value)
