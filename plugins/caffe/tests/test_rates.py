"""Learning rate policies compared with Caffe's own steps, which keep a count; warm-up and linear
scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import ModelError
from demitasse_caffe import rates
from demitasse_caffe.plugin import model_reader

NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "samples" batch_size: 64 } }
layer { name: "loss" type: "Silence" bottom: "data" bottom: "label" }
"""
MINIMAL = 'net: "net.prototxt"\nbase_lr: 0.1\nmax_iter: 200\nlr_policy: "fixed"\n'

Rate = Callable[[int], float]


@pytest.fixture
def rate(tmp_path: Path) -> Callable[..., Rate]:
    def rate(text: str, base: str = MINIMAL, net: str = NET) -> Rate:
        (tmp_path / "net.prototxt").write_text(net)
        path = tmp_path / "solver.prototxt"
        path.write_text(base + text)
        reader = model_reader(path, {})
        assert reader is not None
        return reader.solver().rate

    return rate


class Counting:
    """The rates of successive iterations, computed like a solver that counts the steps taken."""

    def __init__(self, policy: str, **fields: Any) -> None:
        self.policy, self.fields, self.steps = policy, fields, 0

    def __call__(self, iteration: int) -> float:
        base, gamma = 0.1, self.fields.get("gamma", 1.0)
        power, size = self.fields.get("power", 1.0), self.fields.get("stepsize", 1)
        if self.policy == "step":
            self.steps += iteration > 0 and iteration % size == 0
        if self.policy == "multistep":
            self.steps += iteration in self.fields["stepvalue"]
        return {
            "fixed": lambda: base,
            "step": lambda: base * math.prod([gamma] * self.steps),
            "multistep": lambda: base * math.prod([gamma] * self.steps),
            "exp": lambda: base * math.prod([gamma] * iteration),
            "inv": lambda: base / (1 + gamma * iteration) ** power,
            "poly": lambda: base * ((200 - iteration) / 200) ** power,
            "sigmoid": lambda: base / (1 + math.exp(-gamma * (iteration - size))),
        }[self.policy]()


POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("fixed", {}),
    ("step", {"gamma": 0.5, "stepsize": 7}),
    ("exp", {"gamma": 0.99}),
    ("inv", {"gamma": 0.01, "power": 0.75}),
    ("multistep", {"gamma": 0.1, "stepvalue": [3, 50, 51, 180]}),
    ("poly", {"power": 1.5}),
    ("sigmoid", {"gamma": 0.05, "stepsize": 90}),
    ("sigmoid", {"gamma": 0.0, "stepsize": 90}),
    ("sigmoid", {"gamma": -0.5, "stepsize": 90}),
]


def written(policy: str, fields: dict[str, Any]) -> str:
    lines = [f"lr_policy: '{policy}'"]
    for name, value in fields.items():
        lines += [f"{name}: {each}" for each in (value if isinstance(value, list) else [value])]
    return "\n".join(lines)


@pytest.mark.parametrize(("policy", "fields"), POLICIES)
def test_every_policy_is_caffes_at_every_iteration(
    rate: Any, policy: str, fields: dict[str, Any]
) -> None:
    ours = rate(written(policy, fields), base='net: "net.prototxt" base_lr: 0.1 max_iter: 200\n')
    caffes = Counting(policy, **fields)
    for iteration in range(200):
        assert ours(iteration) == pytest.approx(caffes(iteration), rel=1e-12), iteration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr_policy: 'fixed'", {0: 0.5, 1000: 0.5}),
        ("lr_policy: 'step' gamma: 0.1 stepsize: 10", {0: 0.5, 9: 0.5, 10: 0.05, 25: 0.005}),
        ("lr_policy: 'exp' gamma: 0.5", {0: 0.5, 1: 0.25, 3: 0.0625}),
        ("lr_policy: 'inv' gamma: 1 power: 0.5", {0: 0.5, 3: 0.25, 24: 0.1}),
        (
            "lr_policy: 'multistep' gamma: 0.1 stepvalue: 5 stepvalue: 8",
            {0: 0.5, 4: 0.5, 5: 0.05, 7: 0.05, 8: 0.005, 99: 0.005},
        ),
        ("lr_policy: 'multistep' gamma: 0.1", {0: 0.5, 99: 0.5}),
        (  # Caffe counts them in their order, at most one in each iteration
            "lr_policy: 'multistep' gamma: 0.1 stepvalue: 8 stepvalue: 5 stepvalue: 8 stepvalue: 20",
            {5: 0.5, 7: 0.5, 8: 0.05, 9: 0.005, 10: 0.0005, 19: 0.0005, 20: 0.00005},
        ),
        ("lr_policy: 'poly' power: 2", {0: 0.5, 50: 0.125, 100: 0.0, 150: 0.0}),
        # Missing values are 0, as in Caffe.
        ("lr_policy: 'poly'", {0: 0.5, 50: 0.5}),
        ("lr_policy: 'inv' gamma: 1", {0: 0.5, 50: 0.5}),
        ("lr_policy: 'inv' power: 1", {0: 0.5, 50: 0.5}),
        ("lr_policy: 'sigmoid' stepsize: 5", {0: 0.25, 50: 0.25}),
        ("lr_policy: 'step' stepsize: 5", {0: 0.5, 4: 0.5, 5: 0.0}),
        ("lr_policy: 'exp'", {0: 0.5, 1: 0.0}),
        ("lr_policy: 'sigmoid' gamma: 1 stepsize: 5", {5: 0.25, 1000: 0.5}),
        ("lr_policy: 'sigmoid' gamma: -1 stepsize: 5", {0: 0.5 / (1 + math.exp(-5)), 5: 0.25}),
        (
            "lr_policy: 'sigmoid' gamma: 1 stepsize: 5",
            {7: 0.5 / (1 + math.exp(-2)), 0: 0.5 / (1 + math.exp(5))},
        ),
    ],
)
def test_the_rate_follows_the_policys_formula(rate: Any, text: str, expected: dict[int, float]) -> None:
    """The formulas from Caffe's documentation of lr_policy, worked out by hand."""
    found = rate(text, base='net: "net.prototxt" base_lr: 0.5 max_iter: 100 ')
    for iteration, wanted in expected.items():
        assert found(iteration) == pytest.approx(wanted, rel=1e-12)


def test_a_rate_prints_its_policy_and_numbers(rate: Any) -> None:
    found = rate("lr_policy: 'inv' gamma: 0.0001 power: 0.75", base='net: "net.prototxt" base_lr: 0.01 ')
    assert repr(found) == "Inv(base_lr=0.01, gamma=0.0001, power=0.75)"


@given(st.integers(0, 10**7), st.floats(0, 10), st.floats(0, 10), st.integers(1, 10**6))
def test_no_rate_fails_however_long_the_run(
    iteration: int, gamma: float, power: float, size: int
) -> None:
    for each in (
        rates.Step(0.1, gamma, size),
        rates.Exp(0.1, gamma),
        rates.Inv(0.1, gamma, power),
        rates.MultiStep(0.1, gamma, (size, 2 * size)),
        rates.Poly(0.1, power, size),
        rates.Sigmoid(0.1, gamma, size),
    ):
        assert each(iteration) >= 0


@pytest.mark.parametrize("least", ["", "min_lr: 0.01"])
@pytest.mark.parametrize(("policy", "fields"), POLICIES)
def test_a_state_has_the_steps_that_caffe_has_counted(
    rate: Any, policy: str, fields: dict[str, Any], least: str
) -> None:
    """Caffe counts steps when it computes a rate, so the last iteration before a snapshot decides."""
    base = 'net: "net.prototxt" base_lr: 0.1 max_iter: 200\n'
    taken = rates.StepsTaken(rate(f"{written(policy, fields)}\n{least}", base=base))
    caffes = Counting(policy, **fields)
    assert taken(0) == {}
    for iteration in range(200):
        caffes(iteration)
        assert taken(iteration + 1).get("current_step", 0) == caffes.steps, iteration


# Warm-up.


def test_rates_of_stages_hold_up_to_an_iteration(rate: Callable[..., Rate]) -> None:
    stages = "lr_policy: 'multifixed' stagelr: [0.5, 2, 0.25] stageiter: [2, 5, 9]"
    found = rate(stages, base='net: "net.prototxt"\nmax_iter: 200\n')
    assert list(map(found, range(12))) == [0.5] * 3 + [2.0] * 3 + [0.25] * 6
    warm = rate(f"{stages} base_lr: 3 warmup_iter: 2 warmup_start_lr: 1", base='net: "net.prototxt"\n')
    assert list(map(warm, range(4))) == [1.0, 2.0, 0.5, 2.0]


@pytest.mark.parametrize(("policy", "fields"), POLICIES)
def test_a_warm_up_rises_to_base_lr_and_leaves_the_policy_as_it_is(
    rate: Any, policy: str, fields: dict[str, Any]
) -> None:
    """As in Intel's fork, the policy counts its iterations from the start of the run."""
    base = 'net: "net.prototxt" base_lr: 0.1 max_iter: 200\n' + written(policy, fields)
    plain, warm = rate("", base), rate("\nwarmup_iter: 20 warmup_start_lr: 0.02", base)
    for iteration in range(20):
        rising = ((20 - iteration) * 0.02 + iteration * 0.1) / 20
        assert warm(iteration) == pytest.approx(rising, rel=1e-12)
        assert warm.steps(iteration) == 0
    for iteration in range(20, 200):
        assert warm(iteration) == plain(iteration)
        assert warm.steps(iteration) == plain.steps(iteration)


def test_a_warm_up_begins_at_nothing_unless_told(rate: Any) -> None:
    warm = rate("warmup_iter: 4")
    assert [warm(i) for i in range(6)] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1])
    assert repr(warm) == "WarmUp(first=0.0, last=0.1, iterations=4, then=Fixed(base_lr=0.1))"


def test_a_rate_may_fall_in_its_warm_up(rate: Any) -> None:
    warm = rate("warmup_iter: 2 warmup_start_lr: 0.3")
    assert [warm(i) for i in range(3)] == pytest.approx([0.3, 0.2, 0.1])


@given(st.integers(1, 1000), st.floats(0, 10), st.floats(0, 10))
def test_a_warm_up_stays_between_its_ends(iterations: int, first: float, last: float) -> None:
    warm = rates.WarmUp(first, last, iterations, rates.Fixed(last))
    low, high = sorted((first, last))
    for iteration in {0, iterations // 2, iterations - 1, iterations, iterations + 5}:
        assert low * (1 - 1e-12) <= warm(iteration) <= high * (1 + 1e-12)
    assert (warm(0), warm(iterations)) == (first, last)


# NVIDIA's fork.


@pytest.mark.parametrize(("policy", "fields"), POLICIES)
def test_a_ramp_rises_by_the_square_and_leaves_the_policy_as_it_is(
    rate: Any, policy: str, fields: dict[str, Any]
) -> None:
    base = 'net: "net.prototxt" base_lr: 0.1 max_iter: 200\n' + written(policy, fields)
    plain, ramped = rate("", base), rate("\nrampup_interval: 20 rampup_lr: 0.02", base)
    for iteration in range(20):
        assert ramped(iteration) == pytest.approx(0.02 + 0.08 * (iteration / 20) ** 2, rel=1e-9)
    for iteration in range(20, 200):
        assert ramped(iteration) == plain(iteration)
    assert rate("\nrampup_interval: 2", base)(0) == 0.0


@pytest.mark.parametrize(("policy", "fields"), POLICIES)
def test_a_rate_does_not_fall_below_the_least(rate: Any, policy: str, fields: dict[str, Any]) -> None:
    """A poly rate approaches the minimum by its own curve and does not reach it early."""
    base = 'net: "net.prototxt" base_lr: 0.1 max_iter: 200\n' + written(policy, fields)
    plain, bounded = rate("", base), rate("\nmin_lr: 0.04", base)
    for iteration in range(0, 210):
        wanted = max(plain(iteration), 0.04)
        if policy == "poly":
            wanted = 0.04 + plain(iteration) * 0.06 / 0.1
        assert bounded(iteration) == pytest.approx(wanted, rel=1e-6)


# Linear scaling.


def test_the_rate_grows_with_the_samples_of_an_iteration(rate: Any) -> None:
    """64 samples in each of four passes, with a base_lr for 32 samples: 8 times the rate."""
    scaled = rate("base_batch_size: 32 iter_size: 4")
    assert [scaled(i) for i in (0, 7)] == pytest.approx([0.8, 0.8])


def test_a_scaled_rate_warms_up_from_the_rate_that_is_not_scaled(rate: Any) -> None:
    """From eta to k eta, as in Goyal et al. (2017)."""
    scaled = rate("base_batch_size: 16 warmup_iter: 3")
    assert [scaled(i) for i in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    told = rate("base_batch_size: 16 warmup_iter: 2 warmup_start_lr: 0")
    assert [told(i) for i in range(3)] == pytest.approx([0, 0.2, 0.4])


def test_a_smaller_batch_makes_the_rate_smaller(rate: Any) -> None:
    assert rate("base_batch_size: 256")(0) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("warmup_iter: -1", r":5: warmup_iter: -1 is not a number >= 0"),
        ("warmup_iter: 5\nwarmup_start_lr: -1", r":6: warmup_start_lr: -1 is not a number >= 0"),
        ("warmup_iter: 5 warmup_start_lr: nan", r"warmup_start_lr: nan is not a number >= 0"),
        ("warmup_start_lr: 0.01", r":5: warmup_start_lr: needs warmup_iter, which is not given"),
        ("warm_up_iter: 5", r":5:1: .*'warm_up_iter'; did you mean 'warmup_iter'"),
        ("rampup_lr: 0.01", r":5: rampup_lr: needs rampup_interval, which is not given"),
        (
            "rampup_interval: 5 warmup_iter: 5",
            r"makes the rate rise quadratically, warmup_iter linearly; give only one",
        ),
        ("rampup_interval: -5", r":5: rampup_interval: -5 is not a number >= 0"),
        ("min_lr: 0.2", r":5: min_lr: 0.2 is above base_lr 0.1"),
        ("base_batch_size: 0", r":5: base_batch_size: 0 is less than 1"),
        (
            "lr_policy: 'plateu'",
            r"unknown policy 'plateu'.* \(valid: exp, fixed, inv, multifixed, multistep, poly",
        ),
        (
            "lr_policy: 'multifixed'",
            r"needs a stagelr and a stageiter for each stage; given: 0 and 0",
        ),
        (
            "lr_policy: 'multifixed' stagelr: [1, 2] stageiter: 5 stageiter: 5",
            r"solver.prototxt:2: stageiter: 5, 5 must rise",
        ),
        (
            "lr_policy: 'multifixed' stagelr: -1 stageiter: 5",
            r"solver.prototxt:2: stagelr: -1 is not a number >= 0",
        ),
        (
            "lr_policy: 'multifixed' stagelr: 1 stageiter: 5 base_batch_size: 4",
            r"base_batch_size: multiplies base_lr, which lr_policy 'multifixed' does not use",
        ),
    ],
)
def test_a_mistake_is_named_with_its_field_and_line(rate: Any, text: str, message: str) -> None:
    base = MINIMAL if "lr_policy" not in text else 'net: "net.prototxt" base_lr: 1\n'
    with pytest.raises(ModelError, match=message):
        rate(text, base)


def test_a_rate_for_a_batch_needs_a_batch(rate: Any) -> None:
    net = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 } } }'
    with pytest.raises(ModelError, match=r"base_batch_size: no layer of the net that is trained has a"):
        rate("base_batch_size: 32", net=net)


# A real file.


def test_the_warm_up_of_a_real_solver(shared: Path) -> None:
    path = shared / "prototxt/amirgholami+SqueezeNext/1.0-G-SqNxt-23/solver.prototxt"
    reader = model_reader(path, {})
    assert reader is not None
    rate = reader.solver().rate
    assert [rate(i) for i in (0, 390, 780)] == pytest.approx([0.1, 0.25, 0.4 * (1 - 780 / 150136) ** 2])
