"""Caffe's recurrent layers against PyTorch's, against sequences run one by one, and against slopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import TOLERANCE, Large, Values, check_agreement, hook, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recurrent_formulas import lstm, rnn, sigmoid
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(23)


# Kernels.


def sequence(v: Any, gates: int) -> tuple[Any, ...]:
    """(z, w, cont, h, c, s)."""
    steps, streams, units = v.number(1, 5), v.number(1, 5), v.number(1, 20)
    cont = v.random.integers(0, 2, (steps, streams)).astype(v.one_of(v.dtype, "uint8"))
    s = v.real(streams, gates * units) if v.one_of(True, False) else None
    states = v.real(1, streams, units), v.real(1, streams, units)
    return v.real(steps, streams, gates * units), v.real(gates * units, units), cont, *states, s


def _lstm(v: Any) -> Any:
    return list(sequence(v, 4)), {}


def _lstm_backward(v: Any) -> Any:
    z, w, cont, _, c, _ = sequence(v, 4)
    shape = (*cont.shape, w.shape[1])
    carried, cells, gates = v.real(*shape), v.real(*shape), sigmoid(z).astype(v.dtype)
    given = {"bound": v.one_of(0.0, 0.25)}
    return [v.real(*shape), w, cont, c, carried, cells, gates], given


def _rnn(v: Any) -> Any:
    z, w, cont, h, _, s = sequence(v, 1)
    return [z, w, cont, h, s], {}


def _rnn_backward(v: Any) -> Any:
    z, w, cont, _, _, _ = sequence(v, 1)
    return [v.real(*z.shape), w, cont, np.tanh(z).astype(v.dtype), v.real(*z.shape)], {}


def _lstm_step(v: Any) -> Any:
    z, _, cont, h, *_ = sequence(v, 4)
    return [h, z[:1].copy(), cont[:1].copy()], {}


def _lstm_step_backward(v: Any) -> Any:
    (c, z, cont), _ = _lstm_step(v)
    arriving = [v.real(*c.shape) if v.one_of(True, False) else None for _ in range(2)]
    return [*arriving, c, cont, v.real(*c.shape), sigmoid(z).astype(v.dtype)], {}


def _recall(v: Any) -> Any:
    return [v.real(*v.shape())], {}


def _remember(v: Any) -> Any:
    shape = v.shape()
    return [v.real(*shape), v.real(*shape)], {}


CASES = {
    "lstm": _lstm,
    "lstm_backward": _lstm_backward,
    "lstm_step": _lstm_step,
    "lstm_step_backward": _lstm_step_backward,
    "rnn": _rnn,
    "rnn_backward": _rnn_backward,
    "recall": _recall,
    "remember": _remember,
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_threads_share_what_is_large(name: str) -> None:
    check_agreement(name, *CASES[name](Large({5: 15, 20: 120})), "float64", 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    drawn = CASES[name](Values(data.draw, dtype))
    check_agreement(name, *drawn, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["lstm", "lstm_step", "rnn"])
def test_what_nobody_reads_is_not_kept(name: str) -> None:
    """Where no gradient is wanted, the gates and what is carried stay in the kernel."""
    draw = np.random.default_rng(1)
    steps, streams, units, gates = 4, 3, 5, 1 if name == "rnn" else 4
    z, w = draw.normal(size=(steps, streams, gates * units)), draw.normal(size=(gates * units, units))
    h, c = draw.normal(size=(2, 1, streams, units))
    cont = draw.integers(0, 2, (steps, streams)).astype(float)
    inputs = {"lstm": [z, w, cont, h, c, None], "rnn": [z, w, cont, h, None]}
    inputs["lstm_step"] = [c, z[:1].copy(), cont[:1].copy()]
    request = make_request(name, inputs[name], {}, "float64")
    optional = [operand.optional for operand in request.operation.outputs]
    fewer = tuple(None if o else x for o, x in zip(optional, request.outputs, strict=True))
    (whole,), (short,) = (hook("cpu")(each) for each in (request, replace(request, outputs=fewer)))
    expected = run(whole, request, inputs[name])
    made = run(short, replace(request, outputs=fewer), inputs[name])
    for theirs, ours in zip(expected, made, strict=True):
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)


# Formulas: each sequence of each stream by itself, from a state of zeros.


FORMULAS = {"LSTM": lstm, "RNN": rnn}
CONT = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], float)
X, S, TARGET = (
    RANDOM.normal(size=(5, 3, 2, 1)),
    RANDOM.normal(size=(3, 2)),
    RANDOM.normal(size=(5, 3, 4)),
)
FILL = (
    "recurrent_param { num_output: 4 weight_filler { type: 'gaussian' std: 0.7 } "
    "bias_filler { type: 'gaussian' std: 0.5 } MORE }"
)


def layer(kind: str, bottoms: str = "x cont", tops: str = "y", more: str = "", exposed: str = "") -> str:
    named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    named += "".join(f' top: "{top}"' for top in tops.split())
    return f'layer {{ name: "it" type: "{kind}" {named} {more} {FILL.replace("MORE", exposed)} }}\n'


def inputs(**shapes: tuple[int, ...]) -> str:
    tops = " ".join(f'top: "{name}"' for name in shapes)
    dims = (" ".join(f"dim: {n}" for n in shape) for shape in shapes.values())
    given = " ".join(f"shape {{ {each} }}" for each in dims)
    return f'layer {{ name: "in" type: "Input" {tops} input_param {{ {given} }} }}\n'


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def net(runtime: Any, folder: Path, text: str, precision: str = "f64") -> Any:
    (folder / "net.prototxt").write_text(text)
    return runtime.net(folder / "net.prototxt", precision=precision, seed=3)


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", FORMULAS)
def test_outputs_are_those_of_the_sequences_one_by_one(
    runtime: Any, tmp_path: Path, kind: str, static: bool, precision: str
) -> None:
    more = {"s": S} if static else {}
    given = {"x": X, "cont": CONT, **more}
    text = inputs(**{name: a.shape for name, a in given.items()})
    made = net(runtime, tmp_path, text + layer(kind, "x cont s" if static else "x cont"), precision)
    learned = [a.astype(np.float64) for a in made.params["it"]]
    expected = FORMULAS[kind](X, CONT, S, learned)
    within = 1e-5 if precision == "f32" else 1e-12
    np.testing.assert_allclose(made.forward(**given)["y"], expected, rtol=within, atol=within)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", FORMULAS)
def test_gradients_are_the_slopes_of_the_sequences_one_by_one(
    runtime: Any, tmp_path: Path, kind: str, static: bool
) -> None:
    values = {"x": X, "target": TARGET, "s": S}
    text = "".join(parameter(name, value) for name, value in values.items())
    text += layer(kind, "x label s" if static else "x label")
    text += 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "target" }'
    trainer = train(runtime, tmp_path, text, CONT)
    before = [a.copy() for a in trainer.net.params["it"]]
    loss, gradients = step(trainer, values)
    after = trainer.net.params["it"]

    def formula(x: np.ndarray, s: np.ndarray, *p: np.ndarray) -> float:
        return float(((FORMULAS[kind](x, CONT, s, list(p)) - TARGET) ** 2).sum() / 10)

    every = [X, S, *before]
    assert loss == pytest.approx(formula(*every), rel=1e-12)
    moved = [gradients["x"], gradients["s"], *(b - a for a, b in zip(after, before, strict=True))]
    for position, gradient in enumerate(moved):

        def one(value: np.ndarray, position: int = position) -> float:
            return formula(*every[:position], value, *every[position + 1 :])

        np.testing.assert_allclose(gradient, slope(one, every[position]), rtol=1e-6, atol=1e-9)
    assert static == bool(gradients["s"].any())


def test_parameters_have_caffe_s_order_shapes_and_specifications(tmp_path: Path) -> None:
    shapes = {"x": (5, 3, 2, 1), "cont": (5, 3), "s": (3, 7)}
    with demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime:
        made = net(runtime, tmp_path, inputs(**shapes) + layer("LSTM", "x cont s"))
        assert [a.shape for a in made.params["it"]] == [(16, 2), (16,), (16, 7), (16, 4)]
        made = net(runtime, tmp_path, inputs(**shapes) + layer("LSTM"))
        assert [a.shape for a in made.params["it"]] == [(16, 2), (16,), (16, 4)]
        made = net(runtime, tmp_path, inputs(**shapes) + layer("RNN", "x cont s"))
        expected = [(4, 2), (4,), (4, 7), (4, 4), (4, 4), (4,)]
        assert [a.shape for a in made.params["it"]] == expected
        twice = layer("LSTM", more='param { name: "w" } param { lr_mult: 0 } param { name: "h" }')
        other = twice.replace('name: "it"', 'name: "other"').replace('top: "y"', 'top: "z"')
        made = net(runtime, tmp_path, inputs(**shapes) + twice + other)
        one, two = made.params["it"], made.params["other"]
        assert [np.shares_memory(a, b) for a, b in zip(one, two, strict=True)] == [True, False, True]


# States.


@pytest.mark.parametrize("kind", FORMULAS)
def test_a_batch_goes_on_where_the_last_one_ended(runtime: Any, tmp_path: Path, kind: str) -> None:
    x = RANDOM.normal(size=(10, 3, 2))
    cont = np.concatenate([CONT, CONT])
    cont[5] = [1, 0, 1]
    made = net(runtime, tmp_path, inputs(x=(5, 3, 2), cont=(5, 3)) + layer(kind))
    whole = FORMULAS[kind](x, cont, None, list(made.params["it"]))
    for part in (slice(0, 5), slice(5, 10)):
        y = made.forward(x=x[part], cont=cont[part])["y"]
        np.testing.assert_allclose(y, whole[part], rtol=1e-10, atol=1e-12)
    again = made.forward(x=x[:5], cont=np.concatenate([np.zeros((1, 3)), cont[1:5]]))["y"]
    np.testing.assert_allclose(again[:, 0], whole[:5, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("kind", "states"), [("LSTM", ("h", "c")), ("RNN", ("h",))])
def test_exposed_states_come_and_go_by_blobs(
    runtime: Any, tmp_path: Path, kind: str, states: tuple[str, ...]
) -> None:
    """Run in halves with its states handed on, a layer gives what it gives at once."""
    x, cont = RANDOM.normal(size=(6, 3, 2)), np.ones((6, 3))
    cont[4, 1] = 0
    shapes = {"x": (3, 3, 2), "cont": (3, 3), "s": (3, 2), **dict.fromkeys(states, (1, 3, 4))}
    bottoms, tops = " ".join(shapes), " ".join(["y", *(f"last_{name}" for name in states)])
    text = inputs(**shapes) + layer(kind, bottoms, tops, exposed="expose_hidden: true")
    made = net(runtime, tmp_path, text)
    expected = FORMULAS[kind](x, cont, S, list(made.params["it"]))
    handed = {name: np.zeros((1, 3, 4)) for name in states}
    for part in (slice(0, 3), slice(3, 6)):
        outputs = made.forward(x=x[part], cont=cont[part], s=S, **handed)
        np.testing.assert_allclose(outputs["y"], expected[part], rtol=1e-10, atol=1e-12)
        handed = {name: outputs[f"last_{name}"] for name in states}
    if kind == "LSTM":
        np.testing.assert_array_equal(handed["h"][0], outputs["y"][-1])


def test_no_gradient_reaches_or_leaves_exposed_states(runtime: Any, tmp_path: Path) -> None:
    values = {"x": X, "h": RANDOM.normal(size=(1, 3, 4)), "c": RANDOM.normal(size=(1, 3, 4))}
    text = "".join(parameter(name, value) for name, value in values.items())
    text += layer("LSTM", "x label h c", "y last_h last_c", exposed="expose_hidden: true")
    text += 'layer { name: "sum" type: "Reduction" bottom: "last_h" top: "sum" loss_weight: 1 }'
    _, gradients = step(train(runtime, tmp_path, text, CONT), values)
    assert not any(gradient.any() for gradient in gradients.values())


@pytest.mark.parametrize(("options", "within"), [({"retain": "all"}, 0), ({"precision": "bf16"}, 3e-2)])
def test_a_recurrence_runs_in_any_plan(
    runtime: Any, tmp_path: Path, options: dict[str, str], within: float
) -> None:
    """Its neighbours may be stored in fewer bits; it computes in float32."""
    product = (
        'layer { name: "p" type: "InnerProduct" bottom: "x" top: "p" inner_product_param { axis: 2 '
        'num_output: 6 weight_filler { type: "xavier" } } }'
    )
    text = (
        inputs(x=(5, 3, 2, 1), cont=(5, 3)) + product + layer("LSTM", "p cont") + layer("RNN", "y cont")
    )
    (tmp_path / "net.prototxt").write_text(
        text.replace('name: "it" type: "RNN"', 'name: "rnn" type: "RNN"').replace(
            'bottom: "y" bottom: "cont" top: "y"', 'bottom: "y" bottom: "cont" top: "z"'
        )
    )
    made = [runtime.net(tmp_path / "net.prototxt", seed=3, **each) for each in ({}, options)]
    for _ in range(2):
        plain, other = (each.forward(x=X, cont=np.ones((5, 3)))["z"] for each in made)
        np.testing.assert_allclose(other, plain, rtol=0, atol=within)


# One step.


def test_an_lstm_unit_is_one_step(runtime: Any, tmp_path: Path) -> None:
    c, z = RANDOM.normal(size=(1, 3, 4)), RANDOM.normal(size=(1, 3, 16))
    cont, weigh = np.array([[1.0, 0, 1]]), RANDOM.normal(size=(2, 1, 3, 4))
    text = parameter("c", c) + parameter("z", z) + parameter("u", weigh[0]) + parameter("v", weigh[1])
    text += """
layer { name: "it" type: "LSTMUnit" bottom: "c" bottom: "z" bottom: "label" top: "cell" top: "hidden" }
layer { name: "a" type: "EuclideanLoss" bottom: "cell" bottom: "u" top: "a" }
layer { name: "b" type: "EuclideanLoss" bottom: "hidden" bottom: "v" top: "b" loss_weight: 2 }
"""

    def formula(c: np.ndarray, z: np.ndarray) -> float:
        i, f, o, g = np.split(z, 4, 2)
        cell = cont[:, :, None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        return float(((cell - weigh[0]) ** 2).sum() / 2 + ((hidden - weigh[1]) ** 2).sum())

    loss, gradients = step(
        train(runtime, tmp_path, text, cont), {"c": c, "z": z, "u": weigh[0], "v": weigh[1]}
    )
    assert loss == pytest.approx(formula(c, z), rel=1e-12)
    of_c, of_z = slope(lambda x: formula(x, z), c), slope(lambda x: formula(c, x), z)
    np.testing.assert_allclose(gradients["c"], of_c, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(gradients["z"], of_z, rtol=1e-6, atol=1e-9)


# Errors.


@pytest.mark.parametrize(
    ("shapes", "text", "message"),
    [
        ({"x": (5, 3, 2), "cont": (3, 5)}, layer("LSTM"), r"cont .* \(steps, streams\)"),
        ({"x": (5,), "cont": (5, 1)}, layer("RNN"), r"x .* \(steps, streams, \.\.\.\)"),
        (
            {"x": (5, 3, 2), "cont": (5, 3), "s": (2, 2)},
            layer("LSTM", "x cont s"),
            "x_static .* should have 3 streams",
        ),
        (
            {"x": (5, 3, 2), "cont": (5, 3)},
            layer("LSTM", exposed="expose_hidden: true"),
            "has 2 bottoms and 1 tops; with expose_hidden: true the bottoms are x, cont, an optional "
            "x_static, h, c, and the tops the output, h, c",
        ),
        (
            {"x": (5, 3, 2), "cont": (5, 3)},
            layer("LSTM", tops="y h c"),
            "with expose_hidden: false the bottoms are x, cont, an optional x_static, and",
        ),
        (
            {"x": (5, 3, 2), "cont": (5, 3), "h": (1, 3, 5)},
            layer("RNN", "x cont h", "y last", exposed="expose_hidden: true"),
            r"h \(1, 3, 5\) should be \(1, 3, 4\)",
        ),
        ({"x": (5, 3, 2), "cont": (5, 3)}, layer("LSTM").replace("num_output: 4", ""), "a num_output"),
        (
            {"x": (1, 3, 4), "cont": (1, 3), "z": (1, 3, 15)},
            layer("LSTMUnit", "x z cont", "c h"),
            r"c \(1, 3, 4\), z \(1, 3, 15\)",
        ),
    ],
)
def test_a_recurrence_that_cannot_be_says_why_and_where(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], text: str, message: str
) -> None:
    with (
        demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime,
        pytest.raises(demitasse.ModelError, match=rf"net.prototxt:2: layer 'it' .*{message}"),
    ):
        net(runtime, tmp_path, inputs(**shapes) + text)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_time_is_not_divided_among_workers(tmp_path: Path, kind: str) -> None:
    (tmp_path / "net.prototxt").write_text(
        'name: "n" layer { name: "data" type: "Data" top: "x" top: "cont" '
        'data_param { source: "given" batch_size: 4 } }\n'
        f'layer {{ name: "r" type: "{kind}" bottom: "x" bottom: "cont" top: "y" '
        "recurrent_param { num_output: 3 } }\n"
        'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }'
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1'
    )
    (tmp_path / "two.toml").write_text(
        'schema = 1\nname = "two"\n[[level]]\nname = "worker"\ncount = 2\nworkers = "threads"\n'
        'cores = 2\nsync = { plugin = "reference" }\n'
    )
    data = {"train": {"data": np.zeros((4, 2, 5)), "label": np.zeros((4, 2))}}
    told = rf"net.prototxt:2.*layer 'r' \({kind}\).*2 workers.*time"
    plugins = ["caffe", "training", "datasets", "reference"]
    with (
        demitasse.compose(tmp_path / "two.toml", plugins) as runtime,
        pytest.raises(demitasse.ModelError, match=told),
    ):
        runtime.trainer(tmp_path / "solver.prototxt", data=data)
