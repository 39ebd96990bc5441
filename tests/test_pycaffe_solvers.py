"""What pycaffe scripts do with solvers: step by hand, look, edit, test, snapshot, resume."""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pycaffe_nets import scripts_run_with
from real_files import DATA

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import ModelError, NumericsError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)

LENET = DATA / "caffemodel" / "everpeace+caffe" / "examples" / "mnist"
needs_data = pytest.mark.skipif(not LENET.is_dir(), reason=f"no caffemodels under {DATA}")

PLUGINS = ["caffe", "datasets", "reference", "training", "snapshots"]
RANDOM = {"type": "gaussian", "std": 0.3}
SOLVER = """
train_net: "train.prototxt" test_net: "test.prototxt" test_iter: 3 test_interval: 4
base_lr: 0.1 lr_policy: "step" gamma: 0.5 stepsize: 3 weight_decay: 0.01
max_iter: 10 snapshot_prefix: "snaps/toy" random_seed: 3
"""


@pytest.fixture(autouse=True)
def runtime(no_threads_left: None) -> Iterator[demitasse.Runtime]:
    with scripts_run_with(PLUGINS) as made:
        yield made


def spec(source: str, batch: int = 5) -> Any:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(ntop=2, source=source, batch_size=batch)
    n.hidden = L.InnerProduct(n.data, num_output=6, weight_filler=RANDOM)
    n.relu = L.ReLU(n.hidden, in_place=True)
    n.drop = L.Dropout(n.relu, dropout_ratio=0.3, in_place=True)
    n.score = L.InnerProduct(n.drop, num_output=10, weight_filler=RANDOM)
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


Make = Callable[..., Any]


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """``solver(more, made=caffe.SGDSolver)``: a solver of a toy on scikit-learn's digits."""
    monkeypatch.chdir(tmp_path)
    Path("train.prototxt").write_text(str(spec("digits:train")))
    Path("test.prototxt").write_text(str(spec("digits:test", 7)))

    def make(more: str = "momentum: 0.9", made: Any = caffe.SGDSolver) -> Any:
        Path("solver.prototxt").write_text(SOLVER + more)
        return made("solver.prototxt")

    return make


def arrays(net: caffe.Net) -> list[np.ndarray]:
    return [blob.data.copy() for blobs in net.params.values() for blob in blobs]


def equal(some: list[np.ndarray], others: list[np.ndarray], tolerance: float = 0.0) -> bool:
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(some, others, strict=True)
    )


def test_steps_are_those_of_a_training_run(solver: Make, runtime: demitasse.Runtime) -> None:
    """With momentum, decay, a falling rate, dropout, and two passes an iteration."""
    stepped = solver("momentum: 0.9 iter_size: 2")
    stepped.step(5)
    with runtime.trainer("solver.prototxt") as trainer:
        trainer.step(5)
        expected = [array for arrays in trainer.net.params.values() for array in arrays]
    assert stepped.iter == 5
    assert equal(arrays(stepped.net), expected, 1e-6)


def test_clipped_gradients_are_a_training_runs_too(solver: Make, runtime: demitasse.Runtime) -> None:
    stepped = solver("momentum: 0.9 clip_gradients: 0.3")
    stepped.step(3)
    with runtime.trainer("solver.prototxt") as trainer:
        trainer.step(3)
        expected = [array for arrays in trainer.net.params.values() for array in arrays]
    assert equal(arrays(stepped.net), expected, 1e-6)
    free = solver("momentum: 0.9")
    free.step(3)
    assert not equal(arrays(stepped.net), arrays(free.net), 1e-4)


def test_the_nets_have_the_same_live_parameters(solver: Make) -> None:
    made = solver()
    net, tested = made.net, made.test_nets[0]
    assert net.blobs["data"].shape == (5, 1, 8, 8)
    assert tested.blobs["data"].shape == (7, 1, 8, 8)
    net.params["score"][0].data[...] = 0
    net.params["score"][1].data[...] = np.arange(10)
    assert (tested.forward()["loss"] > 1).all()
    assert np.allclose(tested.blobs["score"].data, np.arange(10))
    view, before = net.params["hidden"][0].data, net.params["hidden"][0].data.copy()
    made.step(1)
    assert not np.array_equal(view, before), "steps are seen in arrays taken before"
    tested.share_with(net)
    assert np.shares_memory(tested.params["hidden"][0].data, view)
    apart = caffe.Net("test.prototxt", caffe.TEST)
    made.share_weights(apart)
    assert np.shares_memory(apart.params["hidden"][0].data, view)


def test_an_edit_between_steps_is_in_the_next_step(solver: Make) -> None:
    made = solver("momentum: 0")
    made.net.params["hidden"][0].data[...] = 0
    made.net.params["hidden"][1].data[...] = -1
    made.step(1)
    assert not made.net.blobs["hidden"].data.any(), "rectified"
    assert not made.net.params["hidden"][0].diff.any()
    assert np.allclose(made.net.params["hidden"][1].data, -1 + 0.1 * 0.01), "decay alone"


def test_gradients_and_batches_can_be_looked_at(solver: Make) -> None:
    made = solver("momentum: 0")
    before = made.net.params["score"][0].data.copy()
    made.step(1)
    blobs = made.net.blobs
    scores = blobs["score"].data.astype(np.float64)
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    label = blobs["label"].data.astype(int)
    assert float(blobs["loss"].data) == pytest.approx(
        -np.log(probability[range(5), label]).mean(), rel=1e-5
    )
    gradient = ((probability - np.eye(10)[label]) / 5).T @ blobs["hidden"].data
    assert np.allclose(made.net.params["score"][0].diff, gradient, atol=1e-6)
    after = before - 0.1 * (gradient + 0.01 * before)
    assert np.allclose(made.net.params["score"][0].data, after, atol=1e-6)


@pytest.mark.parametrize("more", ["", "clip_gradients: 0.5"])
@pytest.mark.parametrize("made", [caffe.SGDSolver, caffe.AdamSolver])
def test_an_iteration_made_by_hand(solver: Make, made: Any, more: str) -> None:
    """clear, forward, backward and apply_update on the same samples are a step."""
    whole, by_hand = (solver(f"momentum: 0.9 {more}", made) for _ in range(2))
    whole.step(1)
    by_hand.net.clear_param_diffs()
    by_hand.net.forward()
    by_hand.net.backward()
    by_hand.apply_update()
    assert equal(arrays(whole.net), arrays(by_hand.net), 1e-7)
    assert by_hand.iter == 0


def test_callbacks_at_the_start_and_when_gradients_are_there(solver: Make) -> None:
    made, told = solver("momentum: 0 iter_size: 2"), []
    diff = made.net.params["score"][0].diff

    def start() -> None:
        told.append(("start", made.iter, bool(diff.any())))

    def gradients() -> None:
        told.append(("gradients", made.iter, bool(diff.any())))
        for blobs in made.net.params.values():
            for blob in blobs:
                blob.diff[...] = 0

    made.add_callback(start, gradients)
    before = arrays(made.net)
    made.step(2)
    assert told == [(what, i, what == "gradients") for i in range(2) for what in ("start", "gradients")]
    rates = (1 - 0.1 * 0.01) ** 2  # what a callback does to gradients counts: decay alone is left
    assert equal(arrays(made.net), [rates * array for array in before], 1e-6)


def test_another_thread_s_forward_waits_for_the_iteration(solver: Make) -> None:
    """It would write to the activations that the iteration goes back through."""
    made, free = solver(), list[bool]()

    def look() -> None:
        free.append(made.net.turn.acquire(blocking=False))

    def another_looks() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    made.add_callback(another_looks, another_looks)
    made.step(2)
    assert free == [False] * 4
    assert made.net.turn.acquire(blocking=False)
    made.net.turn.release()


def test_callbacks_of_the_net_surround_its_layers_in_every_pass_of_a_step(solver: Make) -> None:
    """As Caffe's own train.py times layers: per layer, in each of iter_size passes, and changing
    nothing."""
    plain = solver("momentum: 0.9 iter_size: 2")
    plain.step(3)
    made, told = solver("momentum: 0.9 iter_size: 2"), []
    for place in ("before_forward", "after_forward", "before_backward", "after_backward"):
        getattr(made.net, place)(lambda layer, place=place: told.append((place, layer)))
    made.step(1)
    count = len(made.net.layers)
    ahead = [(f"{when}_forward", i) for i in range(count) for when in ("before", "after")]
    back = [(f"{when}_backward", i) for i in reversed(range(count)) for when in ("before", "after")]
    assert told == 2 * [*ahead, *back]
    made.step(2)
    assert equal(arrays(made.net), arrays(plain.net), 1e-6)
    assert np.allclose(made.net.blobs["loss"].data, plain.net.blobs["loss"].data)


def test_the_learning_rate_is_told_and_can_be_set(solver: Make) -> None:
    made = solver("momentum: 0")
    assert made.lr == pytest.approx(0.1)
    made.step(3)
    assert made.lr == pytest.approx(0.05)
    made.param.base_lr = 0.02
    assert made.lr == pytest.approx(0.01)
    before = made.net.params["score"][0].data.copy()
    made.step(1)
    gradient = made.net.params["score"][0].diff + 0.01 * before
    assert np.allclose(made.net.params["score"][0].data, before - 0.01 * gradient, atol=1e-7)


def test_a_script_for_several_devices_trains_on_one(solver: Make) -> None:
    """Its sum over all solvers is one solver's gradients."""
    plain, made = solver("momentum: 0"), solver("momentum: 0")
    nccl = caffe.NCCL(made, caffe.NCCL.new_uid())
    nccl.bcast()
    made.add_callback(nccl)
    made.net.after_backward(nccl)
    for each in (plain, made):
        each.step(2)
    assert np.array_equal(*(each.net.params["score"][0].data for each in (plain, made)))
    with pytest.raises(TypeError, match="two functions, or an NCCL"):
        made.add_callback(lambda: None)


def test_tests_are_made_and_told_at_their_intervals(
    solver: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "demitasse.pycaffe")
    made = solver("display: 2")
    made.step(5)
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "Testing" in line] == [
        "Iteration 0, Testing net (#0)",
        "Iteration 4, Testing net (#0)",
    ]
    assert [line.split(" (")[0] for line in said if "), loss = " in line] == [
        "Iteration 0",
        "Iteration 2",
        "Iteration 4",
    ]
    loss = float(made.net.blobs["loss"].data)
    assert f"    Train net output #0: loss = {loss:g} (* 1 = {loss:g} loss)" in said
    assert said[-1] == "Iteration 4, lr = 0.05"


def test_what_readers_pass_over_in_a_file_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a logging configuration, which shows warnings alone."""
    monkeypatch.chdir(tmp_path)
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 2]})
    n.score = L.InnerProduct(n.data, num_output=1)
    n.loss = L.Reduction(n.score, loss_weight=1)
    text = str(n.to_proto())
    Path("n.prototxt").write_text(text + "default_forward_type: FLOAT16\n")
    Path("s.prototxt").write_text(
        'net: "n.prototxt" base_lr: 0.1 lr_policy: "fixed" solver_data_type: FLOAT\n'
    )
    made = caffe.get_solver("s.prototxt")
    again = caffe.Net("n.prototxt", caffe.TEST)
    made.net.save("w.caffemodel")
    # A field of number 2047, which no message of Caffe has, behind the layers.
    Path("w.caffemodel").write_bytes(Path("w.caffemodel").read_bytes() + b"\xf8\x7f\x01")
    again.copy_from("w.caffemodel")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 3, told
    names = ("default_forward_type", "solver_data_type", "2047")
    assert all(name in line for name, line in zip(names, sorted(told), strict=True)), told


def test_a_solvers_own_tests_read_the_arrays_that_the_script_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, batch in (("train", 4), ("test", 5)):
        n = caffe.NetSpec()
        n.data, n.label = L.MemoryData(batch_size=batch, channels=1, height=2, width=3, ntop=2)
        n.score = L.InnerProduct(n.data, num_output=3, weight_filler=RANDOM)
        n.loss = L.SoftmaxWithLoss(n.score, n.label)
        Path(f"{name}.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" test_net: "test.prototxt" test_iter: 2 test_interval: 2 '
        'base_lr: 0.1 lr_policy: "fixed" snapshot_after_train: false'
    )
    caplog.set_level(logging.INFO, "demitasse.pycaffe")
    made = caffe.get_solver("solver.prototxt")
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(10, 1, 2, 3)), random.integers(0, 3, 10)
    made.net.set_input_arrays(x[:8], labels[:8])
    made.test_nets[0].set_input_arrays(x, labels)
    expected = []
    for _ in range(3):
        W, b = (blob.data.astype(np.float64) for blob in made.net.params["score"])
        score = x.reshape(10, -1) @ W.T + b
        chosen = score[np.arange(10), labels]
        expected.append(float(np.mean(np.log(np.exp(score).sum(axis=1)) - chosen)))
        made.step(1)
    said = [record.getMessage() for record in caplog.records]
    told = [float(line.split(" = ")[1].split()[0]) for line in said if "Test net" in line]
    assert told == pytest.approx([expected[0], expected[2]], rel=1e-4)


def test_a_log_on_standard_error_has_glogs_form(
    solver: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("demitasse.pycaffe"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("demitasse.pycaffe"), "level", logging.WARNING)
    caffe.init_log()
    caffe.init_log()
    solver("display: 1 snapshot: 1").step(1)
    lines = capsys.readouterr().err.splitlines()
    form = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.(cpp|py):\d+\] "
    assert all(re.match(form, line) for line in lines)
    assert sum("Iteration 0, lr = 0.1" in line for line in lines) == 1, "once, however often it is asked"
    assert any("Snapshotting to binary proto file" in line for line in lines)


def test_solve_goes_to_the_end_and_on_from_a_snapshot(solver: Make) -> None:
    made = solver("snapshot: 6 momentum: 0.9")
    made.solve()
    assert made.iter == 10
    other = solver("snapshot: 6 momentum: 0.9")
    other.restore("snaps/toy_iter_6.demitasse")
    assert other.iter == 6
    other.solve()
    assert equal(arrays(other.net), arrays(made.net)), "to the same bits"
    third = solver("snapshot: 6 momentum: 0.9")
    third.solve("snaps/toy_iter_6.solverstate")
    assert equal(arrays(third.net), arrays(made.net)), "from Caffe's own files"
    net = caffe.Net("test.prototxt", "snaps/toy_iter_10.caffemodel", caffe.TEST)
    assert equal(arrays(net), arrays(made.net))


def test_the_solver_is_that_of_the_class_or_of_the_file(solver: Make) -> None:
    assert type(solver('type: "AdaGrad"', caffe.get_solver)) is caffe.AdaGradSolver
    made = solver('type: "SGD"', caffe.NesterovSolver)
    assert made.param.type == "Nesterov"
    assert (made.param.max_iter, made.param.test_interval) == (10, 4)
    assert made.param.stepsize == 3


@pytest.mark.parametrize(
    "made",
    [
        caffe.SGDSolver,
        caffe.NesterovSolver,
        caffe.AdaGradSolver,
        caffe.RMSPropSolver,
        caffe.AdaDeltaSolver,
        caffe.AdamSolver,
    ],
)
def test_every_solver_learns(solver: Make, made: Any) -> None:
    more = {
        caffe.RMSPropSolver: "rms_decay: 0.9",
        caffe.AdaGradSolver: "",
        caffe.AdaDeltaSolver: "momentum: 0.95 delta: 1e-6",
    }
    trained = solver(more.get(made, "momentum: 0.9"), made)
    before = arrays(trained.net)
    trained.step(2)
    after = arrays(trained.net)
    assert not equal(before, after)
    assert all(np.isfinite(array).all() for array in after)


def test_a_loss_that_is_no_number_stops_before_it_is_learnt(solver: Make) -> None:
    made = solver()
    made.net.params["score"][0].data[0, 0] = np.nan
    made.net.params["score"][1].data[...] = np.nan
    before = made.net.params["hidden"][0].data.copy()
    with pytest.raises(NumericsError, match="iteration 0: the loss is nan"):
        made.step(1)
    assert np.array_equal(made.net.params["hidden"][0].data, before)


def test_nets_outlive_their_solver_and_end_their_reading(
    solver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the samples lay in a file: a thread reads ahead.
    monkeypatch.setattr("demitasse_datasets.samples.ArraySamples.mapped", True)
    made = solver()
    net = made.net
    del made
    gc.collect()
    assert net.forward()["loss"] > 0
    reading = threading.active_count()
    del net
    gc.collect()
    assert threading.active_count() < reading


def test_a_net_is_no_solver(solver: Make) -> None:
    solver()
    with pytest.raises(ModelError, match=r"train.prototxt: is a net; a solver is needed here"):
        caffe.SGDSolver("train.prototxt")
    with pytest.raises(ModelError, match="no such file"):
        caffe.get_solver("solvers.prototxt")


def test_solvers_are_read_from_files_of_any_name(solver: Make) -> None:
    solver()
    Path("tmp8zq").write_text(
        SOLVER.replace("train_net", "net").replace('test_net: "test.prototxt"', "")
    )
    made = caffe.get_solver("tmp8zq")
    made.step(1)
    assert made.test_nets[0].blobs["data"].shape == (5, 1, 8, 8)


@needs_data
def test_going_on_from_a_state_that_caffe_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LeNet after 10,000 iterations on MNIST: the loss goes on from there, at its falling rate."""
    monkeypatch.chdir(tmp_path)
    text = (LENET / "lenet_train_test.prototxt").read_text()
    for name, file in (("train", "train-images-idx3-ubyte.gz"), ("test", "t10k-images-idx3-ubyte.gz")):
        text = re.sub(f'"[^"]*mnist[_-]{name}[^"]*"', f'"{DATA / "mnist" / file}"', text)
    Path("net.prototxt").write_text(text)
    solver = (LENET / "lenet_solver.prototxt").read_text()
    Path("solver.prototxt").write_text(re.sub(r'\nnet: "[^"]*"', '\nnet: "net.prototxt"', solver))
    with scripts_run_with(None):
        made = caffe.SGDSolver("solver.prototxt")
        made.restore(LENET / "lenet_iter_10000.solverstate")
        assert made.iter == 10000
        assert made.lr == pytest.approx(0.01 * 2**-0.75)
        losses = []
        for _ in range(10):
            made.step(1)
            losses.append(float(made.net.blobs["loss"].data))
        assert np.mean(losses) < 0.05
        assert float(made.test_nets[0].forward()["accuracy"]) > 0.97


def test_fine_tuning_from_a_file(solver: Make) -> None:
    made = solver()
    made.step(3)
    made.net.save("tuned.caffemodel")
    other = solver()
    other.net.copy_from("tuned.caffemodel")
    assert equal(arrays(other.net), arrays(made.net))
    assert equal(arrays(other.test_nets[0]), arrays(made.net))


def test_logistic_regression_on_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two features decide; data from an HDF5 list, as the notebook has it."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 4)).astype(np.float32)
    labels = (features[:, 0] + features[:, 1] > 0).astype(np.float32)
    with h5py.File("train.h5", "w") as file:
        file["data"], file["label"] = features, labels
    Path("train.txt").write_text("train.h5\n")
    n = caffe.NetSpec()
    n.data, n.label = L.HDF5Data(batch_size=10, source="train.txt", ntop=2)
    n.score = L.InnerProduct(n.data, num_output=2, weight_filler={"type": "xavier"})
    n.accuracy = L.Accuracy(n.score, n.label)
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    Path("net.prototxt").write_text(str(n.to_proto()))
    solver = caffe.proto.caffe_pb2.SolverParameter()
    solver.train_net = "net.prototxt"
    solver.test_net.append("net.prototxt")
    solver.test_interval, solver.max_iter = 1000, 200
    solver.test_iter.append(20)
    solver.base_lr, solver.momentum, solver.lr_policy = 0.1, 0.9, "fixed"
    solver.solver_mode = caffe.proto.caffe_pb2.SolverParameter.GPU
    solver.snapshot_prefix, solver.snapshot_after_train = "lr", False
    Path("solver.prototxt").write_text(str(solver))
    made = caffe.get_solver("solver.prototxt")
    made.solve()
    scores = [float(made.test_nets[0].forward()["accuracy"]) for _ in range(20)]
    assert np.mean(scores) > 0.95


@pytest.mark.parametrize("forced", [False, True])
def test_a_net_without_a_loss_learns_from_the_scripts_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: bool
) -> None:
    """A generator's net gets its gradients from another net, as in adversarial training."""
    monkeypatch.chdir(tmp_path)
    n, random = caffe.NetSpec(), np.random.default_rng(0)
    n.noise = L.Input(shape={"dim": [4, 3]})
    n.made = L.InnerProduct(n.noise, num_output=2, weight_filler=RANDOM)
    message = n.to_proto()
    message.force_backward = forced
    Path("made.prototxt").write_text(str(message))
    Path("s.prototxt").write_text('net: "made.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9')
    solver = caffe.SGDSolver("s.prototxt")
    expected = [blob.data.astype(float) for blob in solver.net.params["made"]]
    speed = [np.zeros_like(array) for array in expected]
    for _ in range(3):
        noise, slope = random.normal(size=(4, 3)), random.normal(size=(4, 2))
        solver.net.forward(noise=noise)
        solver.net.clear_param_diffs()
        solver.net.blobs["made"].diff[...] = slope
        solver.net.backward()
        assert np.allclose(solver.net.blobs["noise"].diff, slope @ expected[0], atol=1e-5)
        solver.apply_update()
        for array, moving, gradient in zip(
            expected, speed, (slope.T @ noise, slope.sum(0)), strict=True
        ):
            moving[...] = 0.9 * moving + 0.1 * gradient
            array -= moving
    for blob, array in zip(solver.net.params["made"], expected, strict=True):
        assert np.allclose(blob.data, array, atol=1e-5)
