"""Nets train on one and on four emulated core groups with the same results as elsewhere."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_files import DATA

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    FlatMemory,
    Group,
    Level,
    Machine,
    MemorySpace,
    Span,
    SyncSpec,
    Team,
    arrange,
    compose,
    load_machine,
)
from demitasse_sw26010.gradient_sync import HandshakeSum, sum_seconds
from demitasse_sw26010.model import figures
from demitasse_sw26010.reproduction.training import CORE_GROUPS

ROOT = Path(__file__).parents[3]
SOLVER = ROOT / "examples/digits/digits_solver.prototxt"
PLUGINS = ("caffe", "training", "datasets", "sw26010", "snapshots")


def core_groups(count: int) -> Machine:
    memory = (MemorySpace("ddr3"),)
    sync = SyncSpec("sw26010", {"scheme": "handshake"})
    level = Level("core_group", count, workers="threads", memory=memory, kernels="sw26010", sync=sync)
    return Machine("mesh", (level,), PLUGINS, fingerprint="any")


def trained(machine: Machine | str, iterations: int, solver: Path) -> tuple[float, dict[str, Any]]:
    with compose(machine) as runtime:
        trainer = runtime.trainer(solver)
        loss = trainer.step(iterations).loss
        return loss, {
            f"{layer} {i}": np.array(array)
            for layer, arrays in trainer.net.params.items()
            for i, array in enumerate(arrays)
        }


@pytest.mark.parametrize("count", [1, 4])
def test_ten_iterations_are_those_of_the_cpu_plugin(count: int) -> None:
    loss, found = trained(core_groups(count), 10, SOLVER)
    right_loss, right = trained(str(ROOT / "hwdesc/laptop.toml"), 10, SOLVER)
    assert loss == pytest.approx(right_loss, rel=1e-6)
    for name, array in right.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-6 * np.abs(array).max())


@pytest.mark.slow
def test_digits_are_learned_as_with_the_cpu_plugin() -> None:
    scores = []
    for machine in (core_groups(1), core_groups(4), str(ROOT / "hwdesc/laptop.toml")):
        with compose(machine) as runtime:
            trainer = runtime.trainer(SOLVER)
            trainer.step(600)
            scores.append(trainer.test()["accuracy"])
    assert scores == pytest.approx([scores[-1]] * 3, abs=0.01)
    assert min(scores) > 0.94


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_lenets_ten_iterations_are_those_of_float64(count: int, tmp_path: Path) -> None:
    """The reference computes in float64. A float32 kernel may choose the other one of two nearly equal
    neighbours in a pooling window, after which the trajectories differ by more than rounding."""
    if not (DATA / "mnist").is_dir():
        pytest.skip(f"no MNIST under {DATA}; DEMITASSE_SHARED names the folder with data/mnist")
    (tmp_path / "mnist").symlink_to(DATA / "mnist")
    for file in (ROOT / "examples/mnist").glob("*.prototxt"):
        shutil.copy(file, tmp_path)
    solver = tmp_path / "lenet_solver.prototxt"
    level = Level("node", memory=(MemorySpace("host"),))
    plugins = ("caffe", "training", "datasets", "reference", "snapshots")
    reference = Machine("reference", (level,), plugins, fingerprint="any")
    loss, found = trained(core_groups(count), 10, solver)
    right_loss, right = trained(reference, 10, solver)
    assert loss == pytest.approx(right_loss, rel=1e-6)
    for name, array in right.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=5e-6 * np.abs(array).max())


def test_the_descriptions_load() -> None:
    node = load_machine(ROOT / "hwdesc/sw26010-node.toml")
    assert (node.simulated, len(arrange(node, "float32")), node.level("cpe").count) == (True, 4, 64)
    whole = load_machine(ROOT / "hwdesc/taihulight.toml")
    assert whole.simulated
    assert whole.level("supernode").count * whole.level("node").count == 40960


@pytest.mark.parametrize("name", ["sw26010-node", "taihulight"])
def test_a_core_group_is_the_one_described(name: str) -> None:
    """The figures on which kernels' counts rest are those of the descriptions."""
    machine = load_machine(ROOT / f"hwdesc/{name}.toml")
    group, cpe = machine.level("core_group"), machine.level("cpe")
    (ddr3,), (ldm,) = group.memory, cpe.memory
    assert ddr3.bandwidth is not None and ddr3.bandwidth.value == figures.DMA_BANDWIDTH
    assert ldm.capacity is not None and ldm.capacity.value == figures.LDM_BYTES
    assert cpe.peak is not None and cpe.count * cpe.peak.value == pytest.approx(figures.PEAK)
    assert cpe.clock is not None and cpe.clock.value == figures.CLOCK
    assert tuple(cpe.mesh) == (figures.MESH, figures.MESH)
    assert group.count == CORE_GROUPS


def test_core_group_0_sums_and_the_others_copy() -> None:
    """Sums are in double precision if gradients are."""
    size, little = 4, 2.0**-40
    gradients = [np.full(9, i + 1 + little) for i in range(size)]
    team = Team(size, [FlatMemory(np.full(9, float(i)), g) for i, g in enumerate(gradients)])
    syncs = [HandshakeSum(Group(("cg",), i, team, "float64", {})) for i in range(size)]
    span = Span(2, 7)
    bucket = Bucket(0, span, ("layer",))
    works = [(sync.reduce(bucket, span), sync.distribute(bucket, span)) for sync in syncs]

    def worker(index: int) -> None:
        for _ in range(3):
            reduce, distribute = works[index]
            assert reduce is not None
            assert distribute is not None
            reduce()
            if index == 0:
                team.memory[0].parameters[2:7] -= 1
            distribute()

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    # Each round adds 2 + 3 + 4 to what core group 0 has.
    one, sum_of_all = 1 + little, 28 + 10 * little
    assert team.memory[0].gradients.tolist() == [one, one, *[sum_of_all] * 5, one, one]
    for i in range(1, size):
        assert team.memory[i].parameters.tolist() == [i, i, *[-3] * 5, i, i]
    assert [len(sync.owned(span)) for sync in syncs] == [5, 0, 0, 0]
    assert sum(syncs[0].costs(bucket, span)) == sum_seconds(len(span), size) > 0
    assert sum_seconds(10**6, 4) > sum_seconds(10**6, 2) > sum_seconds(10**6, 1) == 0


def test_a_failed_sibling_ends_the_wait() -> None:
    team = Team(2, [FlatMemory(np.zeros(4), np.zeros(4)) for _ in range(2)])
    sync = HandshakeSum(Group(("cg",), 1, team, "float32", {}))
    work = sync.reduce(Bucket(0, Span(0, 4), ()), Span(0, 4))
    assert work is not None
    team.barrier.abort()
    with pytest.raises(threading.BrokenBarrierError):
        work()


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    with pytest.raises(DescriptionError, match=r"handshak'.*did you mean 'handshake'"):
        HandshakeSum(Group(("cg",), 0, Team(2), "float32", {"scheme": "handshak"}))
    with pytest.raises(CompositionError, match="other processes"):
        HandshakeSum(Group(("node",), 0, None, "float32", {}, remote=True))
