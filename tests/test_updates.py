"""The updates of all solvers, on both plugins that compute them: against each formula one number at a
time in double precision, against PyTorch where the mathematics is the same, and slice by slice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import hook
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, Operation
from demitasse_caffe.operations.update import OPERATIONS

WORDS: Mapping[str, Operation] = {**VOCABULARY, **{word.name: word for word in OPERATIONS}}
UPDATES = sorted(name for name, word in WORDS.items() if word.family == "update")
PLUGINS = ("reference", "cpu")
SCALARS = ("iteration", "rate", "scale", "squares")
SEGMENTS = ((0, 5, 1.0, 1.0), (5, 6, 2.0, 0.0), (6, 19, 0.5, 3.0))
Numbers = Mapping[str, float]
NUMBERS: Mapping[str, Numbers] = {
    "adadelta_update": {"momentum": 0.95, "delta": 1e-6},
    "adagrad_update": {"delta": 1e-8},
    "adam_update": {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-8},
    "larc_update": {"momentum": 0.9, "trust": 0.02, "clip": False},
    "lars_update": {"momentum": 0.9, "trust": 0.02},
    "momentum_update": {"momentum": 0.9},
    "nesterov_update": {"momentum": 0.9},
    "rmsprop_update": {"rms_decay": 0.9, "delta": 1e-8},
}
STATES = {name: sum(o.updated for o in WORDS[name].inputs) - 1 for name in UPDATES}


def kernel(plugin: str, request: Request) -> Any:
    (candidate,) = hook(plugin)(request)
    return candidate


def call(plugin: str, name: str, operands: Mapping[str, Any], threads: int = 2, **given: Any) -> None:
    """Do a word once; the operands that it updates change."""
    word = WORDS[name]
    arrays = [operands.get(operand.name) for operand in word.inputs]
    arrays = [None if a is None else np.atleast_1d(a) for a in arrays]
    specs = tuple(None if a is None else TensorSpec(a.shape, str(a.dtype)) for a in arrays)
    known = {key: value for key, value in given.items() if key in word.attributes}
    place = Place("test", threads=threads)
    candidate = kernel(plugin, Request(word, specs, (), {**word.attributes, **known}, place))
    workspace = np.full(candidate.workspace + 64, 255, np.uint8)
    at = -workspace.ctypes.data % 64
    candidate.bind(arrays, [], workspace[at : at + candidate.workspace])()


class Run:
    """Values, their solver state, and a plugin that takes steps."""

    def __init__(self, plugin: str, name: str, values: Any, **given: Any) -> None:
        self.plugin, self.name, self.given = plugin, name, {**NUMBERS[name], **given}
        self.parameter = values.copy()
        kept = ("history", "second")[: STATES[name]]
        self.state = {each: np.zeros_like(self.parameter) for each in kept}

    def step(
        self, gradient: Any, rate: float, iteration: int = 0, scale: float | None = None, **more: Any
    ) -> None:
        operands = {
            "parameter": self.parameter,
            "gradient": np.asarray(gradient, self.parameter.dtype),
            "rate": np.array([rate]),
            "iteration": np.array([iteration], np.uint64),
            "scale": None if scale is None else np.array([scale]),
            **self.state,
            **more,
        }
        segments = self.given["segments"]
        if "squares" in {o.name for o in WORDS[self.name].inputs} and "squares" not in more:
            operands["squares"] = np.zeros(2 * len(segments))
            both = {name: operands[name] for name in ("parameter", "gradient")}
            call(self.plugin, "squares", {**both, "total": operands["squares"]}, segments=segments)
        call(self.plugin, self.name, operands, **self.given)


# The formulas, for one number p with its gradient g (of the loss and of what decays it) and state.


def momentum(p: float, g: float, state: list[float], rate: float, _: int, n: Numbers) -> float:
    state[0] = n["momentum"] * state[0] + rate * g
    return p - state[0]


def nesterov(p: float, g: float, state: list[float], rate: float, _: int, n: Numbers) -> float:
    """As Sutskever et al. (2013) write it, for the point ahead: p is that point."""
    behind = p + n["momentum"] * state[0]  # the state is what was subtracted
    state[0] = n["momentum"] * state[0] + rate * g
    return behind - state[0] - n["momentum"] * state[0]


def adagrad(p: float, g: float, state: list[float], rate: float, _: int, n: Numbers) -> float:
    state[0] += g * g
    return p - rate * g / (math.sqrt(state[0]) + n["delta"])


def rmsprop(p: float, g: float, state: list[float], rate: float, _: int, n: Numbers) -> float:
    state[0] += (1 - n["rms_decay"]) * (g * g - state[0])
    return p - rate * g / (math.sqrt(state[0]) + n["delta"])


def adadelta(p: float, g: float, state: list[float], rate: float, _: int, n: Numbers) -> float:
    state[0] += (1 - n["momentum"]) * (g * g - state[0])
    change = math.sqrt(state[1] + n["delta"]) / math.sqrt(state[0] + n["delta"]) * g
    state[1] += (1 - n["momentum"]) * (change * change - state[1])
    return p - rate * change


def adam(p: float, g: float, state: list[float], rate: float, iteration: int, n: Numbers) -> float:
    """With the delta beside the uncorrected root, "epsilon hat" in the paper."""
    state[0] += (1 - n["momentum"]) * (g - state[0])
    state[1] += (1 - n["momentum2"]) * (g * g - state[1])
    root = math.sqrt(1 - n["momentum2"] ** (iteration + 1))
    rate *= root / (1 - n["momentum"] ** (iteration + 1))
    return p - rate * state[0] / (math.sqrt(state[1]) + n["delta"])


FORMULAS: Mapping[str, Callable[..., float]] = {
    "adadelta_update": adadelta,
    "adagrad_update": adagrad,
    "adam_update": adam,
    "momentum_update": momentum,
    "nesterov_update": nesterov,
    "rmsprop_update": rmsprop,
}


def expected(
    name: str, values: Any, gradients: Any, rates: Sequence[float], scale: float, **given: Any
) -> list[float]:
    """The parameters after all steps, one after the other."""
    after, numbers = [float(p) for p in values], {**NUMBERS[name], **given}
    state = [[0.0, 0.0] for _ in after]
    for iteration, rate in enumerate(rates):
        before = list(after)
        for start, stop, faster, harder in given["segments"]:
            decay = given["decay"] * harder
            step = rate * faster
            length = math.hypot(*before[start:stop])
            steepness = scale * math.hypot(*map(float, gradients[iteration][start:stop]))
            if name == "lars_update" and harder and length and steepness:
                step *= numbers["trust"] * length / (steepness + decay * length)
            if name == "larc_update":
                local = numbers["trust"] * length / steepness if length and steepness else 1.0
                step = (min(rate, local) if numbers["clip"] else rate * local) if faster else 0.0
            for i in range(start, stop):
                p = before[i]
                pull = p if given["regularization"] == "L2" else (p > 0) - (p < 0)
                g = scale * float(gradients[iteration][i]) + decay * pull
                formula = FORMULAS.get(name, momentum)
                after[i] = formula(p, g, state[i], step, iteration, numbers)
    return after


CASES = [
    (name, regularization, scale)
    for name, regularization, scale in itertools.product(UPDATES, ("L1", "L2"), (None, 0.3))
    if (regularization == "L2" or "regularization" in WORDS[name].attributes)
    and (scale is None or any(operand.name == "scale" for operand in WORDS[name].inputs))
]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize(("name", "regularization", "scale"), CASES)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_many_steps_follow_the_formula(
    name: str, plugin: str, regularization: str, scale: float | None, dtype: str, tolerance: float
) -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal(19).astype(dtype)
    values[7] = 0
    gradients = random.standard_normal((25, 19)).astype(dtype)
    rates = [0.05 / (1 + 0.1 * i) for i in range(25)]
    given = {"decay": 0.01, "regularization": regularization, "segments": SEGMENTS}
    run = Run(plugin, name, values, **given)
    for iteration, (gradient, rate) in enumerate(zip(gradients, rates, strict=True)):
        run.step(gradient, rate, iteration, scale)
    wanted = expected(name, values, gradients, rates, 1.0 if scale is None else scale, **given)
    assert np.abs(np.array(wanted) - values).max() > 1e-3
    np.testing.assert_allclose(run.parameter, wanted, rtol=tolerance, atol=tolerance)


# PyTorch. Its SGD keeps the sum of gradients and multiplies it by the rate of the moment, where Caffe
# keeps the sum of steps, each with the rate of its own time: the same as long as the rate does not
# change, plain and with Nesterov's look ahead. Its Adam corrects the root before it adds epsilon, so the
# two agree for an epsilon of 0; the other three are the same.

PEERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adadelta_update": ("Adadelta", {"rho": 0.95, "eps": 1e-6}),
    "adagrad_update": ("Adagrad", {"eps": 1e-8}),
    "adam_update": ("Adam", {"betas": (0.9, 0.99), "eps": 0.0}),
    "momentum_update": ("SGD", {"momentum": 0.9}),
    "nesterov_update": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "rmsprop_update": ("RMSprop", {"alpha": 0.9, "eps": 1e-8}),
}


@pytest.mark.parametrize("name", sorted(PEERS))
def test_updates_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(4)
    values, rate = random.standard_normal(12), 0.03
    kind, options = PEERS[name]
    theirs = torch.tensor(values, requires_grad=True)
    optimiser = getattr(torch.optim, kind)([theirs], lr=rate, weight_decay=0.01, **options)
    given = {"delta": 0.0} if kind == "Adam" else {}
    run = Run("cpu", name, values, decay=0.01, segments=((0, 12, 1.0, 1.0),), **given)
    for iteration in range(30):
        gradient = random.standard_normal(12)
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
        run.step(gradient, rate, iteration)
    np.testing.assert_allclose(run.parameter, theirs.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", ["adadelta_update", "adagrad_update", "adam_update", "rmsprop_update"])
def test_without_a_delta_what_has_no_gradient_stays_where_it_is(name: str, plugin: str) -> None:
    """As parameters behind a ReLU that is never open, and the numbers that pad a layout. The delta is
    what a solver file's 0 becomes."""
    values = np.array([1, -2, 3, 0], np.float32)
    run = Run(plugin, name, values, delta=2.0**-126, segments=((0, 4, 1.0, 1.0),))
    for iteration in range(3):
        run.step([0, 0.5, 0, 0], 0.1, iteration)
    assert run.parameter[[0, 2, 3]].tolist() == [1, 3, 0]
    assert (run.parameter[1] < -2) != (name == "adadelta_update")  # that one's steps grow from delta


# Slices: whoever holds a part of flat memory does it alone, and all come to the same bits.


def cut(segments: Sequence[Any], start: int, stop: int) -> tuple[Any, ...]:
    return tuple(
        (max(a, start) - start, min(b, stop) - start, *multipliers)
        for a, b, *multipliers in segments
        if a < stop and start < b
    )


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", UPDATES)
def test_slices_of_a_span_are_updated_as_the_whole_is(name: str, plugin: str) -> None:
    random = np.random.default_rng(5)
    values = random.standard_normal(19).astype(np.float32)
    gradients = random.standard_normal((4, 19)).astype(np.float32)
    edges = (0, 2, 11, 19)
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    whole = Run(plugin, name, values, decay=0.01, segments=SEGMENTS)
    slices = [
        Run(plugin, name, values[p], decay=0.01, segments=cut(SEGMENTS, p.start, p.stop)) for p in parts
    ]
    for iteration, gradient in enumerate(gradients):
        now = np.concatenate([run.parameter for run in slices])
        lengths = [
            [np.sum(np.square(v[a:b], dtype=np.float64)) for v in (now, gradient)]
            for a, b, *_ in SEGMENTS
        ]
        whole.step(gradient, 0.1, iteration, squares=np.array(lengths).reshape(-1))
        for run, part in zip(slices, parts, strict=True):
            inside = [a < part.stop and part.start < b for a, b, *_ in SEGMENTS]
            run.step(gradient[part], 0.1, iteration, squares=np.array(lengths)[inside].reshape(-1))
    assert np.array_equal(np.concatenate([run.parameter for run in slices]), whole.parameter)
    for key, memory in whole.state.items():
        assert np.array_equal(np.concatenate([run.state[key] for run in slices]), memory)


@pytest.mark.parametrize("name", UPDATES)
def test_any_number_of_threads_makes_the_same_bits(name: str) -> None:
    random = np.random.default_rng(6)
    size = 200_000
    segments = ((0, 7, 1.0, 0.0), (7, 150_001, 1.0, 1.0), (150_001, size, 2.0, 1.0))
    values, gradient = random.standard_normal((2, size)).astype(np.float32)
    results = []
    for threads in (1, 3):
        state = {each: np.full(size, 0.25, np.float32) for each in ("history", "second")}
        operands = {"parameter": values.copy(), "gradient": gradient, "rate": np.array([0.1]), **state}
        operands |= {"iteration": np.array([4], np.uint64), "squares": np.arange(1.0, 7.0)}
        given: dict[str, Any] = {**NUMBERS[name], "decay": 0.01, "segments": segments}
        call("cpu", name, operands, threads, **given)
        results.append(operands["parameter"])
    assert not np.array_equal(results[0], values)
    assert np.array_equal(*results)


# LARS.


@pytest.mark.parametrize("plugin", PLUGINS)
def test_lars_moves_every_parameter_by_the_same_part_of_its_length(plugin: str) -> None:
    random = np.random.default_rng(7)
    values = random.standard_normal(40) * np.repeat([1e-3, 1.0, 50.0, 1.0], 10)
    gradient = random.standard_normal(40) * np.repeat([10.0, 1e-4, 1.0, 1.0], 10)
    segments = tuple((10 * i, 10 * i + 10, 1.0, 0.0 if i == 3 else 1.0) for i in range(4))
    run = Run(plugin, "lars_update", values, trust=0.01, decay=0.0, segments=segments)
    run.step(gradient, 0.5)
    for start, stop, *_ in segments[:3]:
        moved = np.linalg.norm(values[start:stop] - run.parameter[start:stop])
        assert moved == pytest.approx(0.5 * 0.01 * np.linalg.norm(values[start:stop]))
    # What is not decayed, as biases, moves as with plain momentum.
    np.testing.assert_allclose(run.parameter[30:], values[30:] - 0.5 * gradient[30:])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_lars_takes_plain_steps_where_a_length_is_nothing(plugin: str) -> None:
    values, gradient = np.array([0.0, 0.0, 3.0]), np.array([1.0, 2.0, 0.0])
    segments = ((0, 2, 1.0, 1.0), (2, 3, 1.0, 1.0))
    run = Run(plugin, "lars_update", values, decay=0.1, segments=segments)
    run.step(gradient, 0.5)
    np.testing.assert_allclose(run.parameter, [-0.5, -1.0, 3.0 - 0.5 * 0.1 * 3.0])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_larc_moves_by_a_part_of_the_length_but_by_no_more_than_the_rate(plugin: str) -> None:
    values = np.repeat([3.0, 3.0, 0.0, 3.0], 4)
    gradient = np.repeat([2.0, 1e-3, 1.0, 1.0], 4)
    # The rate's multipliers say only whether it moves.
    segments = ((0, 4, 1.0, 1.0), (4, 8, 2.0, 1.0), (8, 12, 1.0, 0.0), (12, 16, 0.0, 1.0))
    moved = {}
    for clip in (False, True):
        run = Run(plugin, "larc_update", values, trust=0.02, decay=0.0, clip=clip, segments=segments)
        run.step(gradient, 0.5)
        moved[clip] = (values - run.parameter)[::4] / gradient[::4]
    local = 0.02 * 3.0 / np.array([2.0, 1e-3])
    np.testing.assert_allclose(moved[False], [0.5 * local[0], 0.5 * local[1], 0.5, 0.0])
    np.testing.assert_allclose(moved[True], [local[0], 0.5, 0.5, 0.0])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_squares_are_summed_in_double_precision(plugin: str) -> None:
    """In float32 a sum of 2**24 ones stops growing; 3e5 numbers of 1e4 next to small ones lose those."""
    values = np.full(300_001, 1e-3, np.float32)
    values[100_000:] = 1e4
    gradient = -2 * values
    segments = ((0, 1, 1.0, 1.0), (1, 200_000, 1.0, 1.0), (200_000, 300_001, 1.0, 1.0))
    total = np.full(6, np.nan)
    operands = {"parameter": values, "gradient": gradient, "total": total}
    call(plugin, "squares", operands, segments=segments)
    wide = values.astype(np.float64)
    sums = [math.fsum(np.square(wide[a:b])) for a, b, *_ in segments]
    np.testing.assert_allclose(total.reshape(-1, 2), [(s, 4 * s) for s in sums], rtol=1e-12)


def test_squares_are_the_same_bits_with_any_number_of_threads() -> None:
    random = np.random.default_rng(8)
    values, gradient = random.standard_normal((2, 400_000)).astype(np.float32)
    segments = ((0, 3, 1.0, 1.0), (3, 250_000, 1.0, 1.0), (250_000, 400_000, 1.0, 1.0))
    totals = []
    for threads in (1, 2, 5):
        total = np.zeros(6)
        operands = {"parameter": values, "gradient": gradient, "total": total}
        call("cpu", "squares", operands, threads, segments=segments)
        totals.append(total.tolist())
    assert totals[0] == totals[1] == totals[2]


# The cpu's kernels against the reference's.


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("name", [*UPDATES, "squares"])
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, tolerance: float, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    edges = np.cumsum([0, *sizes]).tolist()
    multipliers = st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 1.0, 3.0]))
    segments = tuple((a, b, *data.draw(multipliers)) for a, b in itertools.pairwise(edges))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    reals = ("parameter", "gradient", "history", "second")
    operands: dict[str, Any] = {key: random.standard_normal(edges[-1]).astype(dtype) for key in reals}
    if name not in ("momentum_update", "nesterov_update", "larc_update", "lars_update"):
        operands["second"] = np.abs(operands["second"])
        if name != "adam_update":
            operands["history"] = np.abs(operands["history"])
    operands["rate"] = np.array([data.draw(st.sampled_from([0.0, 0.01, 1.0]))])
    operands["iteration"] = np.array([data.draw(st.integers(0, 10**6))], np.uint64)
    operands["scale"] = data.draw(st.sampled_from([None, np.array([0.25])]))
    operands["squares"] = random.uniform(0, 2, 2 * len(segments)).round(1)
    operands["total"] = np.full(2 * len(segments), np.nan)
    attributes: dict[str, Any] = {
        **NUMBERS.get(name, {}),
        **({"clip": data.draw(st.booleans())} if name == "larc_update" else {}),
        "decay": data.draw(st.sampled_from([0.0, 0.004])),
        "regularization": data.draw(st.sampled_from(["L1", "L2"])),
        "segments": segments,
    }
    both = []
    for plugin in PLUGINS:
        copies = {key: None if a is None else a.copy() for key, a in operands.items()}
        call(plugin, name, copies, **attributes)
        both.append([copies[operand.name] for operand in WORDS[name].inputs if operand.updated])
    for theirs, ours in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_cpu_serves_every_update_and_only_kinds_it_knows() -> None:
    numbers = TensorSpec((4,), "float32")
    for name in UPDATES:
        word = WORDS[name]
        specs = [
            {"rate": TensorSpec((1,), "float32"), "iteration": TensorSpec((1,), "uint64")}.get(
                operand.name, TensorSpec((2,), "float64") if operand.name in SCALARS else numbers
            )
            for operand in word.inputs
        ]
        attributes = {**word.attributes, "segments": ((0, 4, 1.0, 1.0),)}
        request = Request(word, tuple(specs), (), attributes, Place("test", threads=1))
        assert list(hook("cpu")(request)) == [], name


# Learning: the digits example, with nothing changed but the solver.

SOLVERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"base_lr": 0.02, "momentum": 0.9},
    "Nesterov": {"base_lr": 0.02, "momentum": 0.9},
    "AdaGrad": {"base_lr": 0.02, "momentum": 0},
    "RMSProp": {"base_lr": 0.002, "momentum": 0, "rms_decay": 0.98},
    "AdaDelta": {"base_lr": 1, "momentum": 0.95, "delta": 1e-6, "lr_policy": "fixed"},
    "Adam": {"base_lr": 0.002, "momentum": 0.9, "momentum2": 0.999},
    "LARS": {"base_lr": 0.2, "momentum": 0.9, "lars_trust": 0.02},
    "LARC": {
        **{"type": "SGD", "base_lr": 0.2, "momentum": 0.9},
        **{"larc": True, "larc_eta": 0.05, "larc_policy": "clip"},
    },
}


@pytest.mark.parametrize("kind", SOLVERS)
def test_every_solver_learns_the_digits(kind: str) -> None:
    """In 100 iterations from 10% of the held-out digits to 80% and more (measured: 85% to 95%)."""
    pytest.importorskip("sklearn")
    path = Path(__file__).parents[1] / "examples/digits/digits_solver.prototxt"
    with demitasse.compose() as runtime:
        trainer = runtime.trainer(path, overrides={"type": kind, **SOLVERS[kind]})
        first = trainer.step(1).loss
        last = trainer.step(99).loss
        assert trainer.test()["accuracy"] >= 0.8
    assert last < 0.25 * first
