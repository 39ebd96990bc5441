"""An option of a run states how many workers train, or that every number is tried once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    CompositionError,
    DemitasseError,
    Event,
    Level,
    Machine,
    Runtime,
    SyncSpec,
    compose,
)
from demitasse_parameter_server import trials

Composed = Callable[..., Runtime]

CORES = 4
FREE = (Level("node", cores=CORES),)

pytestmark = pytest.mark.timeout(300, method="thread")


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = trials.memory()
    assert memory is not None
    return memory


@pytest.fixture
def composed(toy: ModuleType, no_threads_left: None) -> Iterator[Composed]:
    """``composed(levels, more plugins, **the plugin's options)``."""
    with ExitStack() as stack:

        def make(levels: Any = FREE, more: Any = (), **options: Any) -> Runtime:
            names = ["parameter_server", "reference", "training", toy.toy(), *more]
            machine = Machine("toys", levels, fingerprint="any")
            given = {"parameter_server": options} if options else None
            return stack.enter_context(compose(machine, names, options=given))

        yield make


def losses(runtime: Runtime, toy: ModuleType) -> tuple[int, list[float]]:
    with runtime.trainer(toy.solver(toy.classifier()), precision="f64") as trainer:
        return trainer.workers, [trainer.step(1).loss for _ in range(5)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_number_of_workers_shares_the_cores(composed: Composed, toy: ModuleType, workers: int) -> None:
    _, right = losses(composed(), toy)
    runtime = composed(workers=workers)
    count, found = losses(runtime, toy)
    assert count == workers
    assert runtime.machine.levels[-1].cores == CORES // workers
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-12)


def test_all_are_tried_once_and_the_quickest_is_taken(
    composed: Composed, toy: ModuleType, own_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ROUNDS", 1)
    count, found = losses(composed(workers="auto"), toy)
    assert len(found) == 5
    solver = toy.solver(toy.classifier())
    name = trials.name_of(solver, Machine("toys", FREE), "f64")
    kept = trials.remembered(own_memory, name)
    assert [(each.workers, each.threads) for each in kept] == [(1, 4), (2, 2), (4, 1)]
    assert count == min(kept, key=lambda each: each.seconds).workers
    # Another run takes the word of the memory for it.
    invented = [trials.Trial(1, 4, 0.5), trials.Trial(2, 2, 0.1), trials.Trial(4, 1, 0.3)]
    trials.remember(own_memory, name, invented)
    assert losses(composed(workers="auto"), toy)[0] == 2
    assert trials.remembered(own_memory, name) == invented


def test_the_best_two_take_turns_where_they_are_close(
    composed: Composed, toy: ModuleType, own_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, first = list[tuple[int, ...]](), {1: 1.0, 2: 1.1, 4: 3.0}

    def pretend(trainers: Sequence[Any], seconds: float) -> list[float]:
        measured.append(tuple(trainer.workers for trainer in trainers))
        return [1.2, 0.9] if len(trainers) == 2 else [first[trainers[0].workers]]

    monkeypatch.setattr(trials, "_measured", pretend)
    assert losses(composed(workers="auto"), toy)[0] == 2
    assert measured == [(1,), (2,), (4,), (1, 2)]
    own_memory.unlink()
    measured.clear()
    first[2] = 1.5
    assert losses(composed(workers="auto"), toy)[0] == 1
    assert measured == [(1,), (2,), (4,)]


def test_those_who_watch_a_run_hear_nothing_of_trials(
    composed: Composed, toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ROUNDS", 1)
    heard: list[Event] = []
    watcher = toy.plugin("watcher", observe=lambda: heard.append)
    runtime = composed(FREE, [watcher], workers="auto")
    with runtime.trainer(toy.solver(toy.classifier()), precision="f64") as trainer:
        assert heard == []
        trainer.step(3)
    assert [event.iteration for event in heard] == [1, 2, 3]


def test_a_second_trainer_of_a_runtime_has_workers_of_its_own_choice(
    composed: Composed, toy: ModuleType
) -> None:
    runtime = composed(workers=2)
    assert [losses(runtime, toy)[0] for _ in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 3}, 'workers = 3 .valid: "auto", or one of 1, 2, 4'),
        ({"workers": "best"}, "workers = 'best' .valid: \"auto\", or one of"),
        ({"workres": 2}, "unknown option 'workres'; did you mean 'workers'"),
    ],
)
def test_a_wrong_option_of_the_plugin_is_named(
    composed: Composed, toy: ModuleType, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DemitasseError, match=message):
        losses(composed(**options), toy)


def test_a_machine_that_says_who_its_workers_are_is_not_overruled(
    composed: Composed, toy: ModuleType
) -> None:
    level = Level("worker", 2, workers="threads", sync=SyncSpec("reference"))
    with pytest.raises(CompositionError, match="level 'worker' does so already; leave one of them"):
        losses(composed((level,), workers="auto"), toy)


def test_who_has_no_home_tries_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(trials, "cache_folder", homeless)
    memory = trials.memory()
    trials.remember(memory, "net", [trials.Trial(1, 2, 0.5)])
    assert trials.remembered(memory, "net") == []
