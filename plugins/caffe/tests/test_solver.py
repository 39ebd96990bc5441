"""Solvers: every field as Caffe means it, policies by their formulas, mistakes by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import ModelError, Solver
from demitasse_caffe import rates
from demitasse_caffe.plugin import model_reader

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "train" batch_size: 4 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "test" batch_size: 4 } }
layer { name: "deep" type: "Split" bottom: "data" top: "x" include { stage: "deep" } }
layer { name: "shallow" type: "Split" bottom: "data" top: "x" exclude { stage: "deep" } }
"""
MINIMAL = 'net: "net.prototxt"\nbase_lr: 0.1\nlr_policy: "fixed"\nmax_iter: 100\n'


@pytest.fixture
def solve(tmp_path: Path) -> Callable[..., Solver]:
    def solve(text: str = "", overrides: Any = None, base: str = MINIMAL) -> Solver:
        (tmp_path / "net.prototxt").write_text(NET)
        path = tmp_path / "solver.prototxt"
        path.write_text(base + text)
        reader = model_reader(path, {})
        assert reader is not None
        return reader.solver(overrides)

    return solve


def test_a_minimal_solver_has_caffes_defaults(solve: Any) -> None:
    solver = solve()
    assert solver.update == "momentum_update"
    assert solver.update_attributes == {"momentum": 0.0, "decay": 0.0, "regularization": "L2"}
    assert solver.rate == rates.Fixed(0.1)
    assert (solver.max_iterations, solver.passes, solver.average_loss) == (100, 1, 1)
    assert (solver.tests, solver.test_iterations, solver.test_interval) == ((), (), 0)
    assert (solver.test_first, solver.snapshot_last, solver.seed) == (True, True, None)
    assert (solver.display_interval, solver.snapshot_interval, solver.snapshot_prefix) == (0, 0, "")
    assert [layer.name for layer in solver.train.layers] == ["data", "shallow"]
    assert solver.train.phase == "train"
    assert str(solver.location).endswith("solver.prototxt")


def test_every_field_arrives_in_the_record(solve: Any) -> None:
    solver = solve(
        "momentum: 0.9 weight_decay: 0.0005 regularization_type: 'L1' iter_size: 4 average_loss: 20 "
        "test_iter: 10 test_interval: 50 test_initialization: false display: 5 snapshot: 25 "
        "snapshot_prefix: 'out/x' snapshot_after_train: false random_seed: 3 solver_mode: GPU "
        "device_id: 2 snapshot_format: HDF5 test_compute_loss: true debug_info: true"
    )
    assert solver.update_attributes == {"momentum": 0.9, "decay": 0.0005, "regularization": "L1"}
    assert (solver.passes, solver.average_loss) == (4, 20)
    assert (solver.test_iterations, solver.test_interval, solver.test_first) == ((10,), 50, False)
    assert (solver.display_interval, solver.snapshot_interval) == (5, 25)
    assert (solver.snapshot_prefix, solver.snapshot_last, solver.seed) == ("out/x", False, 3)


def test_the_old_solver_type_is_understood(solve: Any) -> None:
    assert solve("solver_type: SGD").update == "momentum_update"
    with pytest.raises(ModelError, match="both type and the old solver_type"):
        solve('solver_type: SGD type: "SGD"')


# Rates against the formulas in Caffe's documentation of lr_policy, by hand.


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
        ("lr_policy: 'poly' power: 2", {0: 0.5, 50: 0.125, 100: 0.0, 150: 0.0}),
        ("lr_policy: 'sigmoid' gamma: 1 stepsize: 5", {5: 0.25, 1000: 0.5}),
        (
            "lr_policy: 'sigmoid' gamma: 1 stepsize: 5",
            {7: 0.5 / (1 + math.exp(-2)), 0: 0.5 / (1 + math.exp(5))},
        ),
    ],
)
def test_the_rate_follows_the_policy(solve: Any, text: str, expected: dict[int, float]) -> None:
    solver = solve(text, base='net: "net.prototxt" base_lr: 0.5 max_iter: 100 ')
    for iteration, rate in expected.items():
        assert solver.rate(iteration) == pytest.approx(rate, rel=1e-12)


def test_a_rate_prints_its_policy_and_numbers(solve: Any) -> None:
    solver = solve(
        "lr_policy: 'inv' gamma: 0.0001 power: 0.75", base='net: "net.prototxt" base_lr: 0.01 '
    )
    assert repr(solver.rate) == "Inv(base_lr=0.01, gamma=0.0001, power=0.75)"


@given(st.integers(0, 10**7), st.floats(0, 10), st.floats(0, 10), st.integers(1, 10**6))
def test_no_rate_fails_however_long_the_run(
    iteration: int, gamma: float, power: float, size: int
) -> None:
    for rate in (
        rates.Step(0.1, gamma, size),
        rates.Exp(0.1, gamma),
        rates.Inv(0.1, gamma, power),
        rates.MultiStep(0.1, gamma, (size, 2 * size)),
        rates.Poly(0.1, power, size),
        rates.Sigmoid(0.1, gamma, size),
    ):
        assert rate(iteration) >= 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base_lr: 0.1 lr_policy: 'steep'", r":2: lr_policy: unknown policy 'steep'; .* 'step'\?"),
        ("base_lr: 0.1", r"lr_policy is missing \(valid: exp, fixed, inv"),
        ("lr_policy: 'fixed'", r"solver\.prototxt: lr_policy 'fixed' needs base_lr"),
        ("base_lr: -1 lr_policy: 'fixed'", r":2: base_lr: -1 is not a number >= 0"),
        ("base_lr: nan lr_policy: 'fixed'", r":2: base_lr: nan is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'step' stepsize: 5", r":2: lr_policy: lr_policy 'step' needs gamma"),
        ("base_lr: 1 lr_policy: 'step' gamma: 1", r"lr_policy 'step' needs stepsize"),
        ("base_lr: 1 lr_policy: 'step' gamma: 1 stepsize: 0", r"stepsize: .* of 1 or more; it is 0"),
        ("base_lr: 1 lr_policy: 'inv' gamma: 1", r"lr_policy 'inv' needs power"),
        ("base_lr: 1 lr_policy: 'poly' power: 1", r"lr_policy 'poly' needs max_iter"),
        ("base_lr: 1 lr_policy: 'multistep' gamma: 1", r"lr_policy 'multistep' needs stepvalue"),
        (
            "base_lr: 1 lr_policy: 'multistep' gamma: 1 stepvalue: 8 stepvalue: 5",
            r":2: stepvalue: must ascend; it is 8, 5",
        ),
        ("base_lr: 1 lr_policy: 'fixed' max_iter: -5", r":2: max_iter: -5 is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed' momentum: inf", r"momentum: inf is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed'\niter_size: 0", r":3: iter_size: 0 is less than 1"),
        ("base_lr: 1 lr_policy: 'fixed' type: 'Adam'", r":2: type: solver type 'Adam' is not supp"),
        ("base_lr: 1 lr_policy: 'fixed' type: 'SDG'", r"unknown solver type 'SDG'; .* 'SGD'\?"),
        ("base_lr: 1 lr_policy: 'fixed' solver_type: ADAM", r"'Adam' is not supported yet; .*: SGD"),
        ("base_lr: 1 lr_policy: 'fixed' clip_gradients: 5", r":2: clip_gradients: is not supported"),
        ("base_lr: 1 lr_policy: 'fixed' weights: 'x'", r":2: weights: is not read; give the weights"),
        ("base_lr: 1 lr_policy: 'fixed' regularization_type: 'L3'", r"unknown regularization 'L3'"),
        ("base_lr: 1 lr_policy: 'fixed' test_iter: 5", r"test_interval: must be positive"),
        ("base_lr: 1 lr_policy: 'fixed' test_iter: 0 test_interval: 5", r"test_iter: 0 is not a pos"),
        (
            "base_lr: 1 lr_policy: 'fixed' test_iter: 1 test_net: 'a' test_net: 'b'",
            r"test_iter: 1 numbers for 2 test nets",
        ),
        ("base_lr: 1 lr_policy: 'fixed' train_net: 'a'", r"one of net, .*; given: net, train_net"),
        ("base_lr: 1 lr_policy: 'fixed' test_state { stage: 'a' }", r"test_state: 1 for 0 test nets"),
        ("base_lr: 1 lr_polici: 'fixed'", r":2:12: .*'lr_polici'; did you mean 'lr_policy'"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_line(solve: Any, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        solve(text, base='net: "net.prototxt"\n')


def test_a_missing_net_lists_what_was_tried(solve: Any) -> None:
    with pytest.raises(
        ModelError, match=r":1: net: file 'x/nett\.prototxt' is not there; tried /.*nett"
    ):
        solve('net: "x/nett.prototxt"', base="")
    with pytest.raises(ModelError, match=r"one of net, net_param, .*; given: none"):
        solve("base_lr: 1 lr_policy: 'fixed'", base="")


# Which nets are trained and tested.


def layers(net: Any) -> list[str]:
    return [layer.name for layer in net.layers]


def test_one_net_serves_training_and_each_test_iter(solve: Any) -> None:
    solver = solve("test_iter: 3 test_iter: 4 test_interval: 10")
    assert [net.phase for net in solver.tests] == ["test", "test"]
    assert solver.test_iterations == (3, 4)
    sources = [net.layers[0].parameters.data_param.source for net in (solver.train, *solver.tests)]
    assert sources == ["train", "test", "test"]


def test_states_choose_layers_by_stage(solve: Any) -> None:
    solver = solve(
        "train_state { stage: 'deep' } test_iter: 1 test_iter: 1 test_interval: 1 "
        "test_state { stage: 'deep' } test_state { }"
    )
    assert layers(solver.train) == ["data", "deep"]
    assert [layers(net) for net in solver.tests] == [["data", "deep"], ["data", "shallow"]]


def test_separate_and_inline_nets_come_in_caffes_order(solve: Any, tmp_path: Path) -> None:
    (tmp_path / "test.prototxt").write_text('layer { name: "own" type: "Silence" }')
    solver = solve(
        "base_lr: 1 lr_policy: 'fixed' test_interval: 1\n"
        "train_net_param { layer { name: 'inline' type: 'Silence' } }\n"
        "test_net: 'test.prototxt' test_iter: 1 test_iter: 2 test_iter: 3\n"
        "test_net_param { layer { name: 'a' type: 'Silence' } }\n"
        "test_net_param {\n layer { name: 'b' type: 'Silence' } }",
        base="",
    )
    assert layers(solver.train) == ["inline"]
    assert solver.train.layers[0].location.line == 2
    assert [layers(net) for net in solver.tests] == [["a"], ["b"], ["own"]]
    assert [net.layers[0].location.line for net in solver.tests] == [4, 6, 1]


def test_a_solver_file_serves_its_nets_by_phase(solve: Any, tmp_path: Path) -> None:
    solve()
    reader = model_reader(tmp_path / "solver.prototxt", {})
    assert reader is not None
    assert reader.net("train").layers[0].parameters.data_param.source == "train"
    assert reader.net("test").layers[0].parameters.data_param.source == "test"


# Overrides.


def test_overrides_are_fields_in_the_files_own_words(solve: Any) -> None:
    solver = solve(
        overrides={
            "max_iter": 7,
            "base_lr": "0.25",
            "lr_policy": "multistep",
            "gamma": 0.5,
            "stepvalue": "1,2,3",
            "test_iter": "5",
            "test_interval": 2,
            "test_initialization": "false",
            "net.layer.data.data_param.batch_size": "9",
            "train_net.layer.data.data_param.source": "digits:train",
            "test_net.layer.data.data_param.source": "digits:test",
        }
    )
    assert solver.max_iterations == 7
    assert solver.rate == rates.MultiStep(0.25, 0.5, (1, 2, 3))
    assert (solver.test_iterations, solver.test_interval, solver.test_first) == ((5,), 2, False)
    (test,) = solver.tests
    for net, source in ((solver.train, "digits:train"), (test, "digits:test")):
        data = net.layers[0].parameters.data_param
        assert (data.source, data.batch_size) == (source, 9)


def test_lists_may_be_python_lists(solve: Any) -> None:
    solver = solve(overrides={"test_iter": [1, 2], "test_interval": 1})
    assert solver.test_iterations == (1, 2)


def test_the_net_itself_may_be_overridden(solve: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.prototxt"
    other.write_text('layer { name: "other" type: "Silence" }')
    assert layers(solve(overrides={"net": str(other)}).train) == ["other"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("max_itr", 5, r"override 'max_itr': unknown field of SolverParameter 'max_itr'; .*'max_iter'"),
        ("max_iter", "ten", r"override 'max_iter': 'ten' is not a whole number that max_iter can"),
        ("base_lr", None, r"override 'base_lr': None is not a number"),
        ("snapshot_format", "HDF", r"unknown value 'HDF'; did you mean 'HDF5'"),
        ("test_iter", "1,x", r"override 'test_iter': '1,x' is not a whole number"),
        ("net.layer.dat.data_param.source", "x", r"net\.prototxt: override .*unknown layer 'dat'"),
        ("max_iter", -1, r"max_iter: -1 is not a number >= 0"),
    ],
)
def test_an_override_that_cannot_be_is_named(solve: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        solve(overrides={key: value})


# Real solvers.


def test_lenets_solver_is_what_its_file_says(shared: Path) -> None:
    path = shared / "prototxt/BVLC+caffe/examples/mnist/lenet_solver.prototxt"
    reader = model_reader(path, {})
    assert reader is not None
    solver = reader.solver()
    assert solver.rate == rates.Inv(0.01, 0.0001, 0.75)
    assert solver.update_attributes == {"momentum": 0.9, "decay": 0.0005, "regularization": "L2"}
    assert (solver.max_iterations, solver.test_iterations, solver.test_interval) == (
        10000,
        (100,),
        500,
    )
    assert solver.rate(10000) == pytest.approx(0.01 * 2**-0.75)
    assert [len(net.layers) for net in (solver.train, *solver.tests)] == [9, 10]


def test_every_real_solver_is_made_or_says_what_it_lacks(shared: Path) -> None:
    made, reasons = 0, []
    for path in sorted(shared.rglob("*solver*.prototxt")):
        try:
            reader = model_reader(path, {})
            assert reader is not None
            reader.solver()
            made += 1
        except ModelError as error:
            reasons.append(str(error))
    assert made >= 40
    expected = (
        "is not supported yet",
        "is not there; tried",
        "unknown field",
        "'step' needs stepsize",
        "'1' is no field",
    )
    assert [reason for reason in reasons if not any(part in reason for part in expected)] == []
