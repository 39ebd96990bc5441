"""Solvers: every field with Caffe's meaning, policies by their formulas, mistakes by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demitasse import ModelError, Solver
from demitasse.operations import VOCABULARY
from demitasse_caffe import rates
from demitasse_caffe.operations.update import OPERATIONS
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
    assert (solver.clip, solver.weights, solver.debug) == (0.0, (), False)
    assert solver.snapshot_suffixes == (".demitasse", ".caffemodel", ".solverstate")
    assert not solver.snapshot_gradients
    assert [layer.name for layer in solver.train.layers] == ["data", "shallow"]
    assert solver.train.phase == "train"
    assert str(solver.location).endswith("solver.prototxt")


def test_every_field_arrives_in_the_record(solve: Any) -> None:
    solver = solve(
        "momentum: 0.9 weight_decay: 0.0005 regularization_type: 'L1' iter_size: 4 average_loss: 20 "
        "test_iter: 10 test_interval: 50 test_initialization: false display: 5 snapshot: 25 "
        "snapshot_prefix: 'out/x' snapshot_after_train: false random_seed: 3 solver_mode: GPU "
        "device_id: 2 snapshot_format: HDF5 snapshot_diff: true test_compute_loss: true "
        "debug_info: true clip_gradients: 10"
    )
    assert solver.update_attributes == {"momentum": 0.9, "decay": 0.0005, "regularization": "L1"}
    assert (solver.passes, solver.average_loss) == (4, 20)
    assert (solver.test_iterations, solver.test_interval, solver.test_first) == ((10,), 50, False)
    assert (solver.display_interval, solver.snapshot_interval) == (5, 25)
    assert (solver.snapshot_prefix, solver.snapshot_last, solver.seed) == ("out/x", False, 3)
    assert (solver.snapshot_gradients, solver.debug) == (True, True)
    # Caffe clips the sum over iter_size and then divides; here gradients are the mean from the start.
    assert solver.clip == 2.5


COMMON = {"decay": 0.25, "regularization": "L2"}


@pytest.mark.parametrize(
    ("text", "update", "attributes"),
    [
        ("type: 'SGD' momentum: 0.9", "momentum_update", {"momentum": 0.9}),
        ("type: 'Nesterov' momentum: 0.9", "nesterov_update", {"momentum": 0.9}),
        ("type: 'AdaGrad'", "adagrad_update", {"delta": 1e-8}),
        ("type: 'AdaGrad' delta: 0.001 momentum: 0", "adagrad_update", {"delta": 0.001}),
        ("type: 'RMSProp'", "rmsprop_update", {"rms_decay": 0.99, "delta": 1e-8}),
        ("type: 'RMSProp' rms_decay: 0", "rmsprop_update", {"rms_decay": 0.0, "delta": 1e-8}),
        ("type: 'AdaDelta' momentum: 0.95", "adadelta_update", {"momentum": 0.95, "delta": 1e-8}),
        ("type: 'Adam'", "adam_update", {"momentum": 0.0, "momentum2": 0.999, "delta": 1e-8}),
        (
            "type: 'Adam' momentum: 0.9 momentum2: 0.99 delta: 1e-6",
            "adam_update",
            {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-6},
        ),
    ],
)
def test_every_type_is_its_update_with_caffes_defaults(
    solve: Any, text: str, update: str, attributes: dict[str, float]
) -> None:
    solver = solve(f"weight_decay: 0.25 {text}")
    assert (solver.update, solver.update_attributes) == (update, {**attributes, **COMMON})


@pytest.mark.parametrize("kind", ["AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_a_delta_of_0_is_as_little_as_keeps_0_over_0_a_number(solve: Any, kind: str) -> None:
    assert 0 < solve(f"type: '{kind}' delta: 0").update_attributes["delta"] < 1e-37


def test_larc_is_nvidias(solve: Any) -> None:
    solver = solve("momentum: 0.75 weight_decay: 0.25 larc: true larc_eta: 0.002")
    assert solver.update == "larc_update"
    assert solver.update_attributes == {
        "momentum": 0.75,
        "trust": pytest.approx(0.0005),
        "clip": False,
        "decay": 0.25,
    }
    assert solve("larc: true larc_policy: 'clip'").update_attributes["clip"] is True
    assert solve("larc: false larc_policy: 'clip'").update == "momentum_update"


def test_lars_is_an_addition_of_ours(solve: Any) -> None:
    solver = solve("type: 'LARS' momentum: 0.9 weight_decay: 0.25 lars_trust: 0.002")
    assert solver.update == "lars_update"
    assert solver.update_attributes == {"momentum": 0.9, "trust": 0.002, "decay": 0.25}
    assert solve("type: 'LARS'").update_attributes["trust"] == 0.001


@pytest.mark.parametrize("kind", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_the_old_solver_type_is_understood(solve: Any, kind: str) -> None:
    assert solve(f"solver_type: {kind.upper()}").update == solve(f"type: '{kind}'").update
    with pytest.raises(ModelError, match="both type and the old solver_type"):
        solve('solver_type: SGD type: "SGD"')


def test_updates_are_words_that_the_plugin_brings(solve: Any) -> None:
    words = {word.name: word for word in OPERATIONS} | dict(VOCABULARY)
    for kind in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "LARS"):
        solver = solve(f"type: '{kind}'")
        assert words[solver.update].family == "update"
        assert set(solver.update_attributes) == set(words[solver.update].attributes) - {"segments"}


def test_a_snapshot_is_written_in_the_format_that_is_asked_for(solve: Any) -> None:
    """Our own format is always written as well, because Caffe's formats have no place for cursors."""
    assert solve("snapshot_format: BINARYPROTO").snapshot_suffixes == (
        ".demitasse",
        ".caffemodel",
        ".solverstate",
    )
    assert solve("snapshot_format: HDF5").snapshot_suffixes == (
        ".demitasse",
        ".caffemodel.h5",
        ".solverstate.h5",
    )


def test_weights_are_found_as_nets_are(solve: Any, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("a.caffemodel", "b.caffemodel.h5", "models/c.caffemodel"):
        (tmp_path / name).touch()
    solver = solve("weights: 'a.caffemodel, b.caffemodel.h5' weights: 'models/c.caffemodel'")
    found = ("a.caffemodel", "b.caffemodel.h5", "models/c.caffemodel")
    assert [Path(name) for name in solver.weights] == [tmp_path / name for name in found]
    for given in ("models/c.caffemodel", '"models/c.caffemodel"'):
        solver = solve(overrides={"weights": given})
        assert [Path(name) for name in solver.weights] == [tmp_path / "models/c.caffemodel"]


def test_gradients_are_not_clipped_below_a_norm_of_0(solve: Any) -> None:
    assert solve("clip_gradients: -1").clip == 0.0
    assert solve("clip_gradients: 35").clip == 35.0


def test_a_net_that_is_tested_0_times_is_no_test_net(solve: Any) -> None:
    """Solvers whose net has no data for the phase are like this; Caffe's tests then do nothing."""
    solver = solve("test_iter: 0 test_interval: 1000000")
    assert (solver.tests, solver.test_iterations) == ((), ())
    solver = solve("test_iter: 0 test_iter: 3 test_interval: 10")
    assert (len(solver.tests), solver.test_iterations) == (1, (3,))


def test_a_solver_that_is_to_train_nothing_is_read(solve: Any) -> None:
    """Scripts that only rewrite weights use such solvers; Caffe never computes their rate."""
    solver = solve(base="net: 'net.prototxt' base_lr: 0.1 lr_policy: 'poly' power: 0.5 max_iter: 0")
    assert (solver.max_iterations, solver.rate(0), solver.rate(3)) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base_lr: 0.1 lr_policy: 'steep'", r":2: lr_policy: unknown policy 'steep'; .* 'step'\?"),
        ("base_lr: 0.1", r"lr_policy is missing \(valid: exp, fixed, inv"),
        ("lr_policy: 'fixed'", r"solver\.prototxt: lr_policy 'fixed' needs base_lr"),
        ("base_lr: -1 lr_policy: 'fixed'", r":2: base_lr: -1 is not a number >= 0"),
        ("base_lr: nan lr_policy: 'fixed'", r":2: base_lr: nan is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'step' gamma: 1", r"lr_policy 'step' needs stepsize"),
        ("base_lr: 1 lr_policy: 'step' gamma: 1 stepsize: 0", r"stepsize: .* of 1 or more; it is 0"),
        ("base_lr: 1 lr_policy: 'poly' power: 1", r"lr_policy 'poly' needs max_iter"),
        ("base_lr: 1 lr_policy: 'sigmoid'", r":2: lr_policy: lr_policy 'sigmoid' needs stepsize"),
        ("base_lr: 1 lr_policy: 'exp' gamma: -1", r":2: gamma: -1 is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed' max_iter: -5", r":2: max_iter: -5 is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed' momentum: inf", r"momentum: inf is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed'\niter_size: 0", r":3: iter_size: 0 is less than 1"),
        ("base_lr: 1 lr_policy: 'fixed' type: 'SDG'", r":2: type: unknown solver .*'SDG'; .*'SGD'\?"),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'adam'",
            r"unknown solver type 'adam'; .*'Adam'\? \(valid",
        ),
        ("base_lr: 1 lr_policy: 'fixed' solver_type: ADAMS", r"'ADAMS'"),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'AdaGrad'\nmomentum: 0.9",
            r":3: momentum: solver type 'AdaGrad' has no momentum; it is 0\.9",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'RMSProp'\nmomentum: 0.9",
            r":3: momentum: solver type 'RMSProp' has no momentum",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'RMSProp' rms_decay: 1",
            r"rms_decay: solver type 'RMSProp' needs a number from 0 to below 1; it is 1",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'RMSProp' rms_decay: -0.5",
            r"rms_decay: .* from 0 to below 1; it is -0\.5",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'Adam' momentum2: nan",
            r":2: momentum2: solver type 'Adam' needs a number from 0 to below 1; it is nan",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'AdaDelta' momentum: 1",
            r"momentum: solver type 'AdaDelta' needs a number from 0 to below 1; it is 1",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' momentum: 9",
            r":2: momentum: solver type 'SGD' needs a number from 0 to 1; it is 9, which would make upd",
        ),
        ("base_lr: 1 lr_policy: 'fixed' type: 'Adam' delta: -1", r"delta: -1 is not a number >= 0"),
        ("base_lr: 1 lr_policy: 'fixed' type: 'Adam' delta: inf", r"delta: inf is not a number >= 0"),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'Adam' larc: true",
            r"larc: is for type 'SGD' with regularization_type 'L2'",
        ),
        ("base_lr: 1 lr_policy: 'fixed' larc: true larc_eta: 0", r"larc_eta: 0 is not a number > 0"),
        ("base_lr: 1 lr_policy: 'fixed' larc_policy: 'clp'", r"larc_policy 'clp'; did you mean 'clip'"),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'LARS' lars_trust: 0",
            r"lars_trust: 0 is not a number > 0",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed'\nlars_trust: 0.1",
            r":3: lars_trust: applies to type 'LARS' only; the type is 'SGD'",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' type: 'LARS' regularization_type: 'L1'",
            r"regularization_type: type 'LARS' supports L2 only",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed'\nclip_gradients: 0",
            r":3: clip_gradients: 0 is not a norm that gradients",
        ),
        ("base_lr: 1 lr_policy: 'fixed' clip_gradients: inf", r"clip_gradients: inf is not a norm"),
        ("base_lr: 1 lr_policy: 'fixed' clip_gradients: nan", r"clip_gradients: nan is not a norm"),
        (
            "base_lr: 1 lr_policy: 'fixed'\nweights: 'x.h5'",
            r":3: weights: file 'x\.h5' was not found; tried",
        ),
        (
            "base_lr: 1 lr_policy: 'fixed' weights: 'net.prototxt,'",
            r"weights: a name between the commas",
        ),
        ("base_lr: 1 lr_policy: 'fixed' regularization_type: 'L3'", r"unknown regularization_type 'L3'"),
        (
            "base_lr: 1 lr_policy: 'fixed' test_iter: 5",
            r":\d+: test_iter: needs test_interval, which is",
        ),
        ("base_lr: 1 test_iter: 5 test_interval: 0", r":\d+: test_interval: 0 is less than 1"),
        ("base_lr: 1 lr_policy: 'fixed' test_iter: -1 test_interval: 5", r"test_iter: -1 is not a num"),
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
        ModelError, match=r":1: net: file 'x/nett\.prototxt' was not found; tried /.*nett"
    ):
        solve('net: "x/nett.prototxt"', base="")
    with pytest.raises(ModelError, match=r"one of net, net_param, .*; given: none"):
        solve("base_lr: 1 lr_policy: 'fixed'", base="")


def test_a_net_that_is_no_file_is_told_with_its_line(solve: Any) -> None:
    with pytest.raises(ModelError, match=r":2: net: file has an empty name$"):
        solve('\nnet: ""', base="")
    with pytest.raises(ModelError, match=r":2: net: file '\.' is a folder; a file is needed here"):
        solve('\nnet: "."', base="")


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


def test_inline_nets_may_each_have_a_form_of_their_own(solve: Any) -> None:
    solver = solve(
        "base_lr: 1 lr_policy: 'fixed' test_interval: 1 test_iter: 1 test_iter: 2\n"
        "train_net_param { layer { name: 'inline' type: 'Silence' } }\n"
        "test_net_param { layers { name: 'old' type: SILENCE } }\n"
        "test_net_param { layer { name: 'new' type: 'Silence' } }",
        base="",
    )
    assert [layers(net) for net in solver.tests] == [["old"], ["new"]]
    assert [net.layers[0].location.line for net in solver.tests] == [3, 4]


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
        ("lr", 0.1, r"override 'lr': unknown field 'lr'; did you mean 'base_lr'\?$"),
        ("batch_size", 8, r"'batch_size'; did you mean that of a data layer .*layer\.NAME\.data_param"),
        ("max_itr", 5, r"override 'max_itr': unknown field of SolverParameter 'max_itr'; .*'max_iter'"),
        ("max_iter", "ten", r"override 'max_iter': 'ten' is not a whole number that max_iter can"),
        ("base_lr", None, r"override 'base_lr': None is not a number"),
        ("snapshot_format", "HDF", r"unknown value 'HDF'; did you mean 'HDF5'"),
        ("test_iter", "1,x", r"override 'test_iter': '1,x' is not a whole number"),
        ("net.layer.dat.data_param.source", "x", r"net\.prototxt: override .*unknown layer 'dat'"),
        (
            "data.batch_size",
            2,
            r"field of SolverParameter 'data'; .*; a layer's is layer\.NAME\.FIELD, a",
        ),
        (
            "net.data.batch_size",
            2,
            r"field of NetParameter 'data' .*; 'data' is a layer: layer\.data\.b",
        ),
        ("layer.data.batch_size", 2, r"; data_param has it: data_param\.batch_size$"),
        ("max_iter", -1, r"prototxt: override 'max_iter': -1 is not a number >= 0"),
        ("lr_policy", "stp", r"prototxt: override 'lr_policy': unknown policy 'stp'; .*'step'"),
        ("test_state.0.level", 1, r"prototxt: override 'test_state\.0\.level': 1 for 0 test nets"),
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


def test_solvers_of_every_type_are_made_from_real_files(shared: Path) -> None:
    folder = shared / "prototxt/BVLC+caffe/examples/mnist"
    made = {}
    for name in ("lenet_solver_adam", "lenet_solver_rmsprop", "lenet_adadelta_solver"):
        reader = model_reader(folder / f"{name}.prototxt", {})
        assert reader is not None
        made[name] = reader.solver()
    adam, rmsprop, adadelta = made.values()
    assert adam.update_attributes == {
        "momentum": 0.9,
        "momentum2": 0.999,
        "delta": 1e-8,
        "decay": 0.0,
        "regularization": "L2",
    }
    assert (rmsprop.update, rmsprop.update_attributes["rms_decay"]) == ("rmsprop_update", 0.98)
    assert (adadelta.update, adadelta.update_attributes["delta"]) == ("adadelta_update", 1e-6)
    for name in ("adadelta", "adagrad", "nesterov"):
        reader = model_reader(folder / f"mnist_autoencoder_solver_{name}.prototxt", {})
        assert reader is not None
        solver = reader.solver()
        assert (solver.update, solver.test_iterations) == (f"{name}_update", (500, 100))


def test_every_real_solver_is_made_or_says_what_it_lacks(shared: Path) -> None:
    """What they lack is a net or folder that only their author has, support for a fork's field, a
    stepsize, or a single device instead of a list: Caffe itself would read none of these files."""
    made, reasons = 0, []
    for path in sorted(shared.rglob("*solver*.prototxt")):
        try:
            reader = model_reader(path, {})
            assert reader is not None
            reader.solver()
            made += 1
        except ModelError as error:
            reasons.append(str(error))
    assert made >= 53
    expected = (
        "was not found; tried",
        "'multifixed' is of Intel's fork",
        "'step' needs stepsize",
        "'1' is not a field",
    )
    assert [reason for reason in reasons if not any(part in reason for part in expected)] == []
