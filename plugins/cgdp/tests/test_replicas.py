"""Replicas on accelerators train as one worker does, with either scheme."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    DataError,
    Level,
    Machine,
    MemorySpace,
    NumericsError,
    SyncSpec,
    compose,
)

Train = Callable[..., Any]

pytestmark = pytest.mark.timeout(300, method="thread")

TYPICAL = {"scheme": "typical"}
SCHEMES = [{}, {"chunk": 1}, {"chunk": 2}, TYPICAL]


def losses(trainer: Any, iterations: int) -> list[float]:
    return [trainer.step(1).loss for _ in range(iterations)]


def of(trainer: Any, name: str) -> list[np.ndarray]:
    """Return each replica's array of that name."""
    return [array for _, kind, array in trainer.arrays() if kind == name]


@pytest.fixture(scope="module")
def alone(toy: ModuleType) -> Callable[..., list[float]]:
    """``alone(iterations, **solver)``: the losses of one worker, without streams."""

    def run(iterations: int, **solver: Any) -> list[float]:
        machine = Machine("toys", (Level("machine"),), fingerprint="any")
        with compose(machine, ["reference", "training", toy.toy()]) as runtime:
            trainer = runtime.trainer(toy.solver(toy.classifier(), **solver), precision="f64")
            return losses(trainer, iterations)

    return run


@pytest.mark.parametrize("sync", SCHEMES, ids=str)
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_losses_in_float64_are_those_of_one(
    train: Train, alone: Callable[..., list[float]], replicas: int, sync: dict[str, Any]
) -> None:
    """With dropout, a batch that does not divide evenly, and shared weights."""
    found = losses(train(replicas, sync=sync), 10)
    np.testing.assert_allclose(found, alone(10), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
@pytest.mark.parametrize("replicas", [2, 4])
def test_ten_losses_in_float32_are_those_of_one(
    train: Train, alone: Callable[..., list[float]], replicas: int, sync: dict[str, Any]
) -> None:
    found = losses(train(replicas, precision="f32", sync=sync), 10)
    np.testing.assert_allclose(found, alone(10), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_all_replicas_test_what_was_learnt_last(
    train: Train, toy: ModuleType, replicas: int, sync: dict[str, Any]
) -> None:
    """And training continues as if nobody had tested."""
    test = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=8),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "hidden label", "loss"),
        phase="test",
    )
    net = dataclasses.replace(test, phase="train")
    found = []
    for count in (1, replicas):
        solver = {"test_iterations": (8,), "rate": 0.5}
        trainer = train(count, net, tests=[test], solver=solver, sync=sync)
        told = []
        for _ in range(3):
            told += [trainer.step(2).loss, trainer.test()["loss"]]
        found.append(told)
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
@pytest.mark.parametrize("solver", [{"passes": 3}, {"snapshot_gradients": True}], ids=str)
def test_several_passes_and_kept_gradients(
    train: Train, alone: Callable[..., list[float]], sync: dict[str, Any], solver: dict[str, Any]
) -> None:
    found = losses(train(3, solver=solver, sync=sync), 10)
    np.testing.assert_allclose(found, alone(10, **solver), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
def test_accelerators_of_several_nodes_train_as_one_worker_does(
    train: Train, alone: Callable[..., list[float]], sync: dict[str, Any]
) -> None:
    """The nodes are threads here; each sums its own accelerators' gradients before all nodes do."""
    memory = (MemorySpace("host", at="accelerator:*"),)
    levels = (
        Level("node", 2, workers="threads", sync=SyncSpec("reference")),
        Level("gpu", 2, workers="streams", memory=memory, sync=SyncSpec("cgdp", sync)),
    )
    trainer = train(4, machine=Machine("toys", levels, fingerprint="any"))
    np.testing.assert_allclose(losses(trainer, 10), alone(10), rtol=0, atol=1e-10)


def test_replicas_have_parameters_and_state_of_their_own_and_the_same_bits(train: Train) -> None:
    trainer = train(3, precision="f32")
    trainer.step(5)
    for name in ("parameters", "history", "gradients"):
        first, *others = of(trainer, name)
        assert len(others) == 2
        for other in others:
            assert not np.shares_memory(first, other)
            assert first.tobytes() == other.tobytes()


def test_whatever_the_chunks_and_threads_the_bits_are_the_same(train: Train) -> None:
    found = []
    for sync in ({"chunk": 1}, {"chunk": 2}, {"chunk": 1, "threads": 3}, {"interval": 1, "step": 2}):
        trainer = train(3, precision="f32", sync=sync)
        trainer.step(6)
        found.append(of(trainer, "parameters")[0].tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
def test_a_run_goes_on_from_its_snapshot(train: Train, tmp_path: Any, sync: dict[str, Any]) -> None:
    """With the same bits: the first replica has all parameters and state when the snapshot is
    written."""
    whole = train(3, sync=sync)
    right = losses(whole, 8)
    before = train(3, sync=sync)
    before.step(5)
    path = before.snapshot(tmp_path / "toy")
    assert losses(train(3, sync=sync, resume=path), 3) == right[5:]


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
def test_a_stretch_of_iterations_is_those_iterations_one_by_one(
    train: Train, sync: dict[str, Any]
) -> None:
    """Replicas wait for each other by themselves, and are not joined in between."""
    stretch, single = train(3, sync=sync), train(3, sync=sync)
    stretch.step(10)
    losses(single, 10)
    assert of(stretch, "parameters")[0].tobytes() == of(single, "parameters")[0].tobytes()


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
@pytest.mark.parametrize("replica", [0, 2])
def test_a_replicas_error_is_raised_and_training_can_go_on(
    train: Train, toy: ModuleType, sync: dict[str, Any], replica: int
) -> None:
    error = DataError("samples.bin: sample 17 is cut off")
    trainer = train(3, source=toy.spoilt(replica, 3, error), sync=sync)
    trainer.step(2)
    with pytest.raises(DataError, match="sample 17"):
        trainer.step(20)
    before = trainer.iteration
    assert 2 <= before < 22
    trainer.step(3)
    assert trainer.iteration == before + 3
    first, *others = of(trainer, "parameters")
    if sync != TYPICAL:  # under that scheme the others get them when the next iteration begins
        assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
def test_what_is_no_number_reaches_no_parameter(
    train: Train, toy: ModuleType, sync: dict[str, Any]
) -> None:
    trainer = train(3, source=toy.spoilt(1, 4, None), sync=sync)
    trainer.step(2)
    with pytest.raises(NumericsError, match="loss is nan"):
        trainer.step(30)
    assert all(np.isfinite(array).all() for array in of(trainer, "parameters"))


@pytest.mark.parametrize("sync", [{}, TYPICAL], ids=str)
def test_an_interrupt_ends_all_and_training_can_go_on(
    train: Train, toy: ModuleType, sync: dict[str, Any]
) -> None:
    """As if Ctrl-C reached a thread that waits for samples."""
    trainer = train(4, source=toy.spoilt(3, 2, KeyboardInterrupt()), sync=sync)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(20)
    trainer.step(2)


def test_the_timeline_has_copies_and_sums_beside_backward(train: Train) -> None:
    """By chunk, in the order of section 3.1: to the host, added, back. The last gradients here become
    final when the first sum is back."""
    trainer = train(2, sync={"chunk": 1})
    told = list[Any]()
    trainer.listeners.append(lambda event: told.append(event.values["spans"]()))
    trainer.step(1)
    for worker in trainer._workers:
        (sync,) = worker.levels

        def first_is_back(sync: Any = sync) -> None:
            chunk = sync._now().chunks[0]
            sync.exchange.wait(lambda: chunk.returned is not None)
            chunk.returned[sync.index][1].wait()

        worker.step.last.insert(-1, first_is_back)
    trainer.step(1)
    spans = {name: (start, stop) for name, start, stop in told[-1]}
    kinds = ("d2h", "accumulate", "h2d")
    assert {name.split()[0] for name in spans} == {*kinds}
    assert len(spans) == 3 * len(trainer.plan.buckets)
    begins, ends = list[float](), list[float]()
    for names in zip(*([n for n in spans if n.startswith(kind)] for kind in kinds), strict=True):
        copied, added, back = (spans[name] for name in names)
        assert copied[0] <= copied[1] <= added[0] <= added[1] <= back[1]
        begins.append(copied[0])
        ends.append(back[1])
    assert ends[0] <= begins[-1]


def test_the_typical_schemes_timeline_has_the_tree(train: Train) -> None:
    """In every iteration, accelerator 0 of 4 sends to 2 and 1, and adds what it gets from 1 and 2."""
    trainer = train(4, sync=TYPICAL)
    told = list[Any]()
    trainer.listeners.append(lambda event: told.append(event.values["spans"]()))
    trainer.step(4)
    assert len(told) == 4
    for spans in told:
        names = ["broadcast to 2", "broadcast to 1", "accumulate from 1", "accumulate from 2"]
        assert [name for name, _, _ in spans] == names
        assert all(start <= stop for _, start, stop in spans)


def test_a_timeline_of_a_stretch_has_each_iterations_spans(train: Train) -> None:
    """Replica 0 may be ahead of the replica that ends an iteration last."""
    trainer = train(3, sync={"chunk": 1})
    told = list[Any]()
    trainer.listeners.append(lambda event: told.append([*event.values["spans"]()]))
    trainer.step(10)
    assert [len(spans) for spans in told] == [3 * len(trainer.plan.buckets)] * 10


def test_the_search_for_chunks_ends_and_says_what_it_found(train: Train) -> None:
    trainer = train(2, sync={"interval": 1, "step": 2, "range": 1})
    (searching,) = [note for note in trainer.notes if "Algorithm 1" in note]
    assert "the search goes on" in searching
    trainer.step(12)  # sizes 1, 2 and 4, and up to two more if 2 beats 1, or 4 beats both
    notes = "\n".join(trainer.notes)
    assert "chunks by Algorithm 1: the best is" in notes
    assert f"of {len(trainer.plan.buckets)} layers with parameters" in notes
    assert "chunks of 1:" in notes
    size = trainer.plan.trainable * 8
    assert f"{size:,} bytes an iteration to the host, and as many back" in notes


def test_the_typical_scheme_says_what_it_takes(train: Train) -> None:
    """Memory on accelerator 0 for each accelerator that it collects from: Table 5's difference."""
    trainer = train(4, sync=TYPICAL)
    trainer.step(1)
    notes = "\n".join(trainer.notes)
    size = trainer.plan.trainable * 8
    assert "0 from 1, 2 from 3, 0 from 2" in notes
    assert f"{size:,} bytes on an accelerator for each it collects from, 2 here" in notes
