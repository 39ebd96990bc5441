"""Weights and solver states that Caffe itself saved: they score what another reader gives with them on
the whole test sets, in every form, and a training run goes on from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from real_files import DATA

import demitasse
from demitasse import Runtime

MNIST, CIFAR = DATA / "mnist", DATA / "cifar10"
EVERPEACE = DATA / "caffemodel/everpeace+caffe/examples"
ICT = DATA / "caffemodel/ICT-CHASE+On-accelerator-training/examples/cifar10"
SINGLE = DATA / "caffemodel/skywang666+SingleCaffe/examples/cifar10"

pytestmark = pytest.mark.skipif(
    not (MNIST.is_dir() and CIFAR.is_dir() and EVERPEACE.is_dir()),
    reason=f"no MNIST, CIFAR-10 and caffemodels under {DATA}",
)

SCORES = {
    "LeNet, V1": (EVERPEACE / "mnist/lenet_train_test", "lenet_iter_10000", 0.9905),
    "quick at 4,000, V1": (
        EVERPEACE / "cifar10/cifar10_quick_train_test",
        "cifar10_quick_iter_4000",
        0.6854,
    ),
    "quick at 4,000, ICT": (ICT / "cifar10_quick_train_test", "cifar10_quick_iter_4000", 0.7212),
    "quick at 4,000, SingleCaffe": (
        SINGLE / "cifar10_quick_train_test",
        "cifar10_quick_iter_4000",
        0.7155,
    ),
    "quick at 5,000, V1": (
        EVERPEACE / "cifar10/cifar10_quick_train_test",
        "cifar10_quick_iter_5000",
        0.7491,
    ),
    "full, V1": (EVERPEACE / "cifar10/cifar10_full_train_test", "cifar10_full_iter_70000", 0.8211),
}
"""Net, weights and OpenCV 4's accuracy on the whole test set."""

SLOW = ("quick at 4,000, ICT", "quick at 5,000, V1")
"""As the others."""


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with demitasse.compose() as composed:
        yield composed


Unpacked = Callable[[Mapping[str, str]], dict[str, str]]


@pytest.fixture
def unpacked(unpacked_cifar: Callable[[str], Path]) -> Unpacked:
    """Overrides whose files of CIFAR-10 are those that are unpacked once for all tests."""

    def path(value: str) -> str:
        name = Path(value).name
        return str(unpacked_cifar(name.removesuffix(".bin.xz"))) if name.endswith(".bin.xz") else value

    return lambda overrides: {key: path(value) for key, value in overrides.items()}


def whole_test_set(net: Path) -> dict[str, str]:
    """Overrides that name the test set where ours lies."""
    if "lenet" in net.name:
        return {"layer.mnist.data_param.source": str(MNIST / "t10k-images-idx3-ubyte.gz")}
    return {
        "layer.cifar.data_param.source": str(CIFAR / "test_batch.bin.xz"),
        "layer.cifar.transform_param.mean_file": str(DATA / "mean/cifar10_mean.binaryproto"),
    }


def accuracy(runtime: Runtime, net: Path, weights: Path, unpacked: Unpacked) -> float:
    path = net.with_suffix(".prototxt")
    made = runtime.net(path, weights=weights, overrides=unpacked(whole_test_set(net)))
    return float(made.test(100)["accuracy"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCORES],
)
def test_a_caffemodel_scores_what_another_reader_gives(
    runtime: Runtime, unpacked: Unpacked, name: str
) -> None:
    net, weights, expected = SCORES[name]
    found = accuracy(runtime, net, net.with_name(f"{weights}.caffemodel"), unpacked)
    assert found == pytest.approx(expected, abs=0.0005)


def test_every_form_of_weights_scores_the_same(
    runtime: Runtime, unpacked: Unpacked, tmp_path: Path
) -> None:
    net, name, expected = SCORES["LeNet, V1"]
    weights = runtime.read(net.with_name(f"{name}.solverstate")).weights()
    for suffix in ("caffemodel", "caffemodel.h5", "solverstate", "solverstate.h5", "demitasse"):
        path = runtime.write(tmp_path / f"w.{suffix}", weights)
        found = accuracy(runtime, net, path, unpacked)
        assert found == pytest.approx(expected, abs=0.0005), suffix


DIMENSIONS = "layer.data.input_param.shape.0.dim"


def test_hdf5_gives_the_outputs_of_protobuf(runtime: Runtime, tmp_path: Path) -> None:
    samples = np.random.default_rng(3).normal(0, 50, (5, 3, 32, 32)).astype(np.float32)
    net = ICT / "cifar10_quick.prototxt"
    for name in ("cifar10_quick_iter_5000.caffemodel.h5", "cifar10_quick_iter_4000.caffemodel"):
        weights = runtime.read(ICT / name).weights()
        outputs = []
        for path in (ICT / name, tmp_path / "w.caffemodel", tmp_path / "w.caffemodel.h5"):
            if path.parent == tmp_path:
                runtime.write(path, weights)
            made = runtime.net(net, weights=path, overrides={DIMENSIONS: "5,3,32,32"})
            outputs.append(np.array(made.forward(data=samples)["prob"]))
        assert np.array_equal(outputs[0], outputs[1])
        assert np.array_equal(outputs[0], outputs[2])
        assert np.ptp(outputs[0]) > 0.1


# Training goes on.


LENET = {
    "train_net.layer.mnist.data_param.source": str(MNIST / "train-images-idx3-ubyte.gz"),
    "test_net.layer.mnist.data_param.source": str(MNIST / "t10k-images-idx3-ubyte.gz"),
}
QUICK = {
    "train_net.layer.cifar.data_param.source": str(CIFAR / "data_batch_1.bin.xz"),
    "test_net.layer.cifar.data_param.source": str(CIFAR / "test_batch.bin.xz"),
    "net.layer.cifar.transform_param.mean_file": str(DATA / "mean/cifar10_mean.binaryproto"),
}


@pytest.mark.parametrize(
    ("solver", "state", "overrides", "iteration", "expected", "fresh"),
    [
        (EVERPEACE / "mnist/lenet_solver", "lenet_iter_10000.solverstate", LENET, 10_000, 0.006, 2.3),
        pytest.param(
            ICT / "cifar10_quick_solver",
            "cifar10_quick_iter_4000.solverstate",
            QUICK,
            4000,
            0.7,
            2.3,
            marks=pytest.mark.slow,
        ),
        (
            ICT / "cifar10_quick_solver_lr1",
            "cifar10_quick_iter_5000.solverstate.h5",
            QUICK,
            5000,
            0.6,
            2.3,
        ),
    ],
    ids=["lenet", "quick", "quick in HDF5"],
)
def test_a_run_goes_on_from_a_real_state_with_the_loss_that_it_had(
    runtime: Runtime,
    unpacked: Unpacked,
    solver: Path,
    state: str,
    overrides: dict[str, str],
    iteration: int,
    expected: float,
    fresh: float,
) -> None:
    path, overrides = solver.with_suffix(".prototxt"), unpacked(overrides)
    trainer = runtime.trainer(path, resume=solver.with_name(state), overrides=overrides)
    assert trainer.iteration == iteration
    losses = [trainer.step(1).loss for _ in range(20)]
    assert np.mean(losses) == pytest.approx(expected, rel=0.5)
    assert max(losses) < fresh / 2, "a wrong history or wrong weights would have thrown it off"
    anew = runtime.trainer(path, overrides=overrides)
    assert anew.step(1).loss == pytest.approx(fresh, abs=0.2)


def test_a_run_goes_on_to_the_same_bits_from_the_state_that_it_wrote(
    runtime: Runtime, tmp_path: Path
) -> None:
    """By the two files of Caffe's, in both formats, as the trainer's own snapshots would have it."""
    solver = EVERPEACE / "mnist/lenet_solver.prototxt"
    start = EVERPEACE / "mnist/lenet_iter_10000.solverstate"
    trainer = runtime.trainer(solver, resume=start, overrides=LENET)
    trainer.step(3)
    weights = runtime.read(trainer.snapshot(tmp_path / "ours")).weights()
    expected = [trainer.step(1).loss for _ in range(4)]
    for suffix in ("", ".h5"):
        runtime.write(tmp_path / f"x_iter_10003.caffemodel{suffix}", weights)
        state = runtime.write(tmp_path / f"x_iter_10003.solverstate{suffix}", weights)
        again = runtime.trainer(solver, resume=state, overrides=LENET)
        assert again.iteration == 10_003
        assert [again.step(1).loss for _ in range(4)] == expected


def test_the_history_matters(runtime: Runtime, tmp_path: Path) -> None:
    """The step after a state is not that of the same weights without it."""
    solver = EVERPEACE / "mnist/lenet_solver.prototxt"
    start = EVERPEACE / "mnist/lenet_iter_10000.solverstate"
    weights = runtime.read(start).weights()
    trainer = runtime.trainer(solver, resume=start, overrides=LENET)
    before = trainer.net.params["ip2"][1].copy()
    trainer.step(1)
    moved = before - trainer.net.params["ip2"][1]
    pushed = 0.9 * weights.state["history"]["ip2"][1]
    rest = moved - pushed
    weights.state["history"]["ip2"][1][:] = 0
    other = runtime.trainer(
        solver, resume=runtime.write(tmp_path / "x.solverstate", weights), overrides=LENET
    )
    other.step(1)
    assert np.allclose(before - other.net.params["ip2"][1], rest, atol=1e-7)
    assert np.abs(pushed).max() > 1e-6
