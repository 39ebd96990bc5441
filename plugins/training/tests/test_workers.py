"""Workers start, fail and end together."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import DataError, ModelError, PluginError, ShapeError, Weights

Train = Callable[..., Any]

ASIDE = 1
"""A single worker's thread, in which iterations of the main thread are not interrupted."""


@pytest.fixture
def started() -> Callable[[], int]:
    """How many threads have been started since the test began."""
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)


@pytest.mark.timeout(30, method="thread")
@pytest.mark.parametrize("counts", [(2,), (2, 3)], ids=str)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_fails_wakes_the_others_and_its_error_is_raised(
    train: Train, failing: Any, started: Any, counts: tuple[int, ...], worker: int
) -> None:
    """The others wait for its gradients at a barrier, and would wait forever."""
    error = DataError("samples.bin: sample 17 is cut off")
    trainer = train(None, *counts, source=failing(worker, 3, error))
    trainer.step(2)
    assert started() == np.prod(counts)
    with pytest.raises(DataError) as caught:
        trainer.step(5)
    assert caught.value is error
    assert trainer.iteration == 2
    trainer.close()
    assert started() == 0


@pytest.mark.timeout(30, method="thread")
def test_an_error_of_a_stream_that_is_none_of_ours_names_its_layer_and_who_made_it(
    train: Train, failing: Any
) -> None:
    trainer = train(None, 3, source=failing(1, 1, ZeroDivisionError("a bug")))
    with pytest.raises(PluginError) as caught:
        trainer.step(1)
    told = "layer 'samples': ArrayStream of toy: raised ZeroDivisionError reading samples: a bug"
    assert re.fullmatch(rf"{told} \(tests/toy\.py:\d+\)", str(caught.value))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.timeout(30, method="thread")
def test_after_a_failure_all_workers_go_on_from_the_same_samples(
    train: Train, failing: Any, copied: Any, differ: Any
) -> None:
    """All workers repeat the iteration that failed."""
    plain, trainer = train(None, 2), train(None, 2, source=failing(1, 3, DataError("a hiccup")))
    trainer.step(2)
    with pytest.raises(DataError, match="a hiccup"):
        trainer.step(1)
    trainer.step(2)
    plain.step(4)
    assert trainer.iteration == plain.iteration == 4
    assert differ(copied(trainer.net), copied(plain.net)) == 0.0


@pytest.mark.timeout(30, method="thread")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("passes", [1, 2])
def test_what_was_trained_before_samples_that_cannot_be_read_is_kept(
    train: Train, failing: Any, copied: Any, differ: Any, tmp_path: Path, workers: int, passes: int
) -> None:
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4, "passes": passes}
    source = failing(workers - 1, 3 * passes, DataError("samples.bin: sample 17 is cut off"))
    kept = tmp_path / "toy_iter_2.demitasse"
    with pytest.raises(DataError) as caught:
        train(None, workers, solver=solver, source=source).run()
    assert str(caught.value) == f"samples.bin: sample 17 is cut off; iteration 2 is saved in {kept}"
    other = train(None, workers, solver=solver, resume=kept)
    other.run()
    plain = train(None, workers, solver=solver)
    plain.step(4)
    assert differ(copied(other.net), copied(plain.net)) == 0.0


def test_samples_that_cannot_be_read_hide_no_snapshot_that_cannot_be_written(
    train: Train, failing: Any, tmp_path: Path
) -> None:
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4}
    trainer = train(None, solver=solver, source=failing(0, 3, DataError("a hiccup")))
    (tmp_path / "toy_iter_2.demitasse").mkdir()
    with pytest.raises(DataError, match=r"^a hiccup; iteration 2 could not be saved: .*toy_iter_2"):
        trainer.run()


def test_samples_that_cannot_be_read_at_once_make_no_snapshot(
    train: Train, failing: Any, tmp_path: Path
) -> None:
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4}
    with pytest.raises(DataError, match=r"^a hiccup$"):
        train(None, solver=solver, source=failing(0, 1, DataError("a hiccup"))).run()
    assert not [*tmp_path.iterdir()]


def test_closing_ends_the_threads_and_may_be_done_again(train: Train, started: Any) -> None:
    trainer = train(None, 2, 3)
    trainer.step(2)
    assert started() == 6
    for _ in range(2):
        trainer.close()
        assert started() == 0
    for _ in range(2):
        trainer.runtime.close()


def test_a_runtime_closes_the_trainers_that_it_made(
    toy: ModuleType, runtime: Callable[..., Any], started: Any
) -> None:
    made = runtime(2)
    trainers = [made.trainer(toy.solver(toy.classifier())) for _ in range(2)]
    for trainer in trainers:
        trainer.step(1)
    assert started() == 2 * 2
    made.close()
    assert started() == 0


def test_a_trainer_of_one_worker_starts_no_thread_where_no_interrupt_comes(
    train: Train, started: Any
) -> None:
    trainer, found = train(), []

    def step() -> None:
        trainer.step(2)
        found.append(started())

    other = threading.Thread(target=step)
    other.start()
    other.join()
    assert found == [1]  # the calling thread
    trainer.step()
    assert started() == ASIDE


def test_a_trainer_that_cannot_be_made_leaves_no_thread(
    toy: ModuleType, runtime: Callable[..., Any], started: Any, tmp_path: Any
) -> None:
    made = runtime(2)
    wrong = Weights({"scores": [np.zeros((5, 5)), np.zeros(5)]})
    path = made.write(tmp_path / "wrong.demitasse", wrong)
    with pytest.raises(ShapeError):
        made.trainer(toy.solver(toy.classifier()), weights=path)
    made.close()
    assert started() == 0


def test_two_runtimes_of_different_machines_live_in_one_process(
    train: Train, copied: Any, differ: Any
) -> None:
    """Stepped alternately, they do what each does alone."""
    ours, theirs = train(), train(None, 3, solver={"seed": 9})
    for _ in range(5):
        ours.step(1)
        theirs.step(1)
    assert ours.runtime.machine != theirs.runtime.machine
    assert (ours.workers, theirs.workers) == (1, 3)
    for trainer, alone in ((ours, train()), (theirs, train(None, 3, solver={"seed": 9}))):
        alone.step(5)
        assert differ(copied(trainer.net), copied(alone.net)) == 0.0


@pytest.mark.timeout(30, method="thread")
def test_two_runtimes_train_at_the_same_time(train: Train, copied: Any, differ: Any) -> None:
    trainers = [train(None, 2), train(None, 2)]
    threads = [threading.Thread(target=trainer.step, args=(5,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [trainer.iteration for trainer in trainers] == [5, 5]
    assert differ(copied(trainers[0].net), copied(trainers[1].net)) == 0.0


def test_inputs_that_only_the_first_of_several_workers_would_be_given_are_refused(
    toy: ModuleType, train: Train
) -> None:
    net = toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 8)),
        toy.layer("score", "InnerProduct", "data", "score", outputs=1, loss_weights=(1.0,)),
    )
    alone = train(net)
    alone.net.blobs["data"].data[...] = 1.0
    assert alone.step().loss != 0.0
    with pytest.raises(ModelError, match=r"of the first worker only.*\(data=\), or one work"):
        train(net, 2).step()


def test_what_was_trained_before_a_listener_failed_is_kept(
    train: Train, copied: Any, differ: Any, tmp_path: Path
) -> None:
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4}
    trainer = train(None, solver=solver)

    def listen(event: Any) -> None:
        if (event.kind, event.iteration) == ("iteration", 3):
            raise OSError(errno.ENOSPC, "No space left on device", "log")

    trainer.listeners.append(listen)
    kept = tmp_path / "toy_iter_3.demitasse"
    with pytest.raises(OSError) as caught:
        trainer.run()
    assert str(caught.value).endswith(f"No space left on device; iteration 3 is saved in {kept}: 'log'")
    other, plain = train(None, solver=solver, resume=kept), train(None, solver=solver)
    other.run()
    plain.step(4)
    assert differ(copied(other.net), copied(plain.net)) == 0.0


def test_samples_of_a_stranger_s_that_fail_end_a_run_in_the_same_way(
    train: Train, failing: Any, tmp_path: Path
) -> None:
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4}
    with pytest.raises(PluginError, match=r"a bug .*; iteration 2 is saved in .*toy_iter_2"):
        train(None, solver=solver, source=failing(0, 3, ZeroDivisionError("a bug"))).run()


def test_what_a_kernel_has_left_half_done_is_not_kept(
    train: Train, toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed after the forward pass, when some parameters may have been updated and others not."""
    trainer = train(solver={"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 4})
    trainer.step(2)

    def broken() -> None:
        raise PluginError("a kernel's bug")

    trainer._workers[0].step.last.append(broken)
    with pytest.raises(PluginError, match=r"^a kernel's bug$"):
        trainer.run()
    assert not [*tmp_path.iterdir()]
