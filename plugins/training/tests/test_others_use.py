"""Nets and trainers in threads and forked processes; mistakes in third-party plugins."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demitasse import (
    DataError,
    DemitasseError,
    GradientSync,
    PluginError,
    WorkerError,
    compose,
)

Make = Callable[..., Any]


def test_threads_that_share_a_net_get_their_own_answers(toy: ModuleType, runtime: Make) -> None:
    definition = toy.net(
        toy.layer("data", "Input", "", "data", shape=(2, 8)),
        toy.layer("first", "InnerProduct", "data", "first", outputs=200),
        toy.layer("second", "InnerProduct", "first", "second", outputs=8),
        phase="test",
    )
    net = runtime().net(definition, precision="f64")
    (W, b), (V, c) = net.params["first"], net.params["second"]
    batches = np.random.default_rng(2).normal(size=(200, 2, 8))
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda batch: net.forward(data=batch)["second"], batches)
        wrong = [
            number
            for number, (batch, answer) in enumerate(zip(batches, answers, strict=True))
            if not np.allclose(answer, (batch @ W.T + b) @ V.T + c, atol=1e-10)
        ]
    assert wrong == []


def test_a_closed_trainer_is_looked_at_and_saved_but_does_not_go_on(
    toy: ModuleType, runtime: Make, tmp_path: Path
) -> None:
    trainer = runtime().trainer(toy.solver(toy.classifier()), precision="f64")
    trainer.step(2)
    trainer.close()
    with pytest.raises(WorkerError, match="this trainer is closed; make another"):
        trainer.step(1)
    assert trainer.iteration == 2 and trainer.net.params
    assert trainer.snapshot(tmp_path / "kept").is_file()
    trainer.close()


@pytest.fixture
def at_work(toy: ModuleType, train: Make) -> Iterator[tuple[Any, Future[Any], threading.Event]]:
    """A trainer with which another thread has begun five iterations, their future, and the event that
    lets them continue."""
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(toy.ArraySource):  # type: ignore[name-defined, misc]
        def stream(self, first: int, count: int, step: int) -> Any:
            stream = super().stream(first, count, step)
            read = stream.read

            def slowly(out: Any) -> None:
                inside.set()
                go_on.wait(20)
                read(out)

            stream.read = slowly
            return stream

    trainer = train(None, source=lambda spec: Waiting(toy.images()))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(trainer.step, 5)
        assert inside.wait(20)
        try:
            yield trainer, first, go_on
        finally:
            go_on.set()


@pytest.mark.parametrize("asked", ["step", "run", "test", "snapshot", "profile"])
def test_a_second_thread_is_refused_whatever_it_asks(at_work: Any, asked: str) -> None:
    trainer, first, go_on = at_work
    with pytest.raises(WorkerError, match=r"running in another thread.*stop= and save="):
        getattr(trainer, asked)()
    go_on.set()
    assert first.result(20).iteration == 5
    assert trainer.step().iteration == 6


def test_a_trainer_that_is_closed_while_another_thread_trains_ends_after_an_iteration(
    at_work: Any,
) -> None:
    trainer, first, go_on = at_work
    done = list[int]()
    trainer.listeners.append(lambda event: done.append(event.iteration))
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(trainer.close)
        while not trainer._crew.closed:
            assert not closing.done()
        go_on.set()
        closing.result(20)
    with pytest.raises(WorkerError, match="this trainer is closed"):
        first.result(20)
    assert done == [trainer.iteration] == [1]


def test_threads_that_test_a_net_at_once_get_the_same_scores(toy: ModuleType, runtime: Make) -> None:
    net = runtime().net(toy.classifier(phase="test"))
    alone = net.test(6)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(net.test, [6] * 6)) == [alone] * 6


def _step(trainer: Any, said: Any) -> None:
    try:
        trainer.step()
        said.put("stepped")
    except DemitasseError as error:
        said.put(f"{type(error).__name__}: {error}")


@pytest.mark.timeout(60)
def test_a_trainer_from_before_a_fork_refuses_to_work_in_the_child(train: Make) -> None:
    trainer = train(None, 2)
    trainer.step()
    forking = multiprocessing.get_context("fork")
    said = forking.SimpleQueue()
    with warnings.catch_warnings():  # about a fork in a process with threads, which is tested here
        warnings.simplefilter("ignore", DeprecationWarning)
        child = forking.Process(target=_step, args=(trainer, said))
        child.start()
    child.join(30)
    assert child.exitcode == 0
    assert said.get().startswith("PlanError: this trainer was made before its process was forked")
    assert trainer.step().iteration == 2


class Apart(GradientSync):
    """A synchronisation that does not set its index and size."""


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda group: None,
            "plugin 'strange': gradient_sync returned None, which is not a GradientSync",
        ),
        (lambda group: Apart(), r"plugin 'strange': Apart has size 1, but there are 2 siblings.*index"),
    ],
    ids=["none", "apart"],
)
def test_a_synchronisation_that_is_none_is_named(
    toy: ModuleType, made: Callable[[Any], Any], words: str
) -> None:
    strange = toy.plugin("strange", gradient_sync=made)
    machine = toy.machine(2, sync=("strange",))
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    with compose(machine, plugins) as runtime, pytest.raises(PluginError, match=words):
        runtime.trainer(toy.solver(toy.classifier()), precision="f64")


def test_a_layer_type_that_returns_no_tensors_is_named(toy: ModuleType, runtime: Make) -> None:
    kind = SimpleNamespace(name="Strange", parameters={}, build=lambda *given: None)
    strange = toy.plugin("strange", layer_types=lambda: [kind])
    definition = toy.net(
        toy.layer("data", "Input", "", "data", shape=(2, 8)),
        toy.layer("odd", "Strange", "data", "odd"),
        phase="test",
    )
    with pytest.raises(PluginError, match=r"'odd'.*build returned None, not a list of tensors"):
        runtime(plugins=[strange]).net(definition)


def test_arrays_for_one_phase_alone_are_told_beside_the_missing_file(tmp_path: Path) -> None:
    layers = (
        'layer {{ name: "d" type: "Data" top: "data" top: "label" include {{ phase: {0} }} '
        'data_param {{ source: "nowhere" batch_size: 4 }} }} '
    )
    rest = (
        'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" '
        "inner_product_param { num_output: 3 } } "
        'layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "l" }'
    )
    net = "".join(layers.format(phase) for phase in ("TRAIN", "TEST")) + rest
    solver = f'net_param {{ {net} }} base_lr: 0.1 lr_policy: "fixed" test_iter: 1 test_interval: 10'
    arrays = {"data": np.zeros((8, 5), np.float32), "label": np.zeros(8, np.int64)}
    path = tmp_path / "solver.prototxt"
    path.write_text(solver)
    words = r"nowhere.*data has arrays for 'train', but none for 'test'"
    with compose() as runtime, pytest.raises(DataError, match=words):
        runtime.trainer(path, data={"train": arrays})
