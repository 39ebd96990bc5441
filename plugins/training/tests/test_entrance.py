"""An allocator's method ``enter`` is called first in each thread that computes with its memory."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest

from demitasse import Runtime, compose


@pytest.fixture
def entered() -> list[str]:
    """The names of the threads that entered, in order."""
    return []


def composed(toy: ModuleType, entered: list[str], *counts: int) -> Runtime:
    served = toy.installed("reference").allocator

    def allocator(space: str, options: Any) -> Any:
        made = served(space, options)
        made.enter = lambda: entered.append(threading.current_thread().name)
        return made

    given = toy.plugin("near", allocator=allocator)
    return compose(toy.machine(*counts), [given, "reference", "training", toy.toy()])


def test_one_worker_enters_in_each_thread_that_calls_it(toy: ModuleType, entered: list[str]) -> None:
    here = threading.current_thread().name
    with composed(toy, entered) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()))
        assert entered == []
        for iterations in (2, 1):
            trainer.step(iterations)  # iterations of the main thread, which binds, run in another thread
            assert entered == [here, "demitasse-worker-0"]
        other = threading.Thread(target=trainer.step, name="another")
        other.start()
        other.join()
        assert entered == [here, "demitasse-worker-0", "another"]


def test_several_workers_enter_in_their_own_threads(toy: ModuleType, entered: list[str]) -> None:
    with composed(toy, entered, 2) as runtime:
        runtime.trainer(toy.solver(toy.classifier())).step(2)
    assert len(entered) == 2
    assert all(name.startswith("demitasse-worker") for name in entered)


def test_a_net_enters_before_it_is_run(toy: ModuleType, entered: list[str]) -> None:
    with composed(toy, entered) as runtime:
        net = runtime.net(toy.classifier(phase="test"))
        net.forward()
        net.forward()
    assert entered == [threading.current_thread().name]
