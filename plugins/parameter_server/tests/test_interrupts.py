"""A main thread that is interrupted, or a listener that closes, while workers run at their own pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interrupted import Interrupted

from demitasse import WorkerError

Train = Callable[..., Any]

MODELS = [
    {"model": "ssp", "staleness": 1},
    {"model": "asp"},
    {"model": "asp", "delay": [1, 3]},
    {"model": "bsp"},
]


def named(sync: dict[str, Any]) -> str:
    return "-".join(str(value) for value in sync.values())


def interrupt_within(trainer: Any, iteration: int, worker: int, interrupt: Callable[[], None]) -> None:
    """Interrupt in an iteration of that worker, before its updates."""
    step, left = trainer._workers[worker].step, [interrupt]
    run = step.run

    def interrupted(at: int, rate: float) -> Any:
        if at == iteration and left:
            left.pop()()
        return run(at, rate)

    step.run = interrupted


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sync", MODELS, ids=named)
@pytest.mark.parametrize("worker", [0, 1])
def test_all_workers_end_at_the_same_iteration_and_go_on(
    train: Train, interrupt: Callable[[], None], sync: dict[str, Any], worker: int
) -> None:
    trainer = train(2, sync=sync)
    told = list[int]()
    trainer.listeners.append(lambda event: told.append(event.iteration))
    trainer.step(2)
    interrupt_within(trainer, 4, worker, interrupt)
    with pytest.raises(Interrupted):
        trainer.step(100_000)
    ended = trainer.iteration
    # The iterations before the interrupt, and those that workers had begun when it came, but not all.
    assert 5 <= ended < 100_000
    assert told == list(range(1, ended + 1))
    first = trainer._workers[0]
    if first.levels[0].asynchronous:
        assert set(first.levels[0].scheduler.progress.done.values()) == {ended}
        np.testing.assert_array_equal(first.flat.parameters, first.levels[0].board.master(first.flat))
    assert trainer.step(5).iteration == ended + 5
    assert np.isfinite(first.flat.parameters).all()


@pytest.mark.timeout(60)
def test_an_interrupted_run_under_bsp_goes_on_to_the_same_bits(
    train: Train, interrupt: Callable[[], None]
) -> None:
    plain, trainer = train(2), train(2)
    trainer.step(2)
    interrupt_within(trainer, 4, 1, interrupt)
    with pytest.raises(Interrupted):
        trainer.step(50)
    plain.step(trainer.iteration + 3)
    trainer.step(3)
    ours, theirs = (each._workers[0].flat.parameters for each in (plain, trainer))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sync", MODELS[:2], ids=named)
def test_a_listener_that_is_called_by_a_worker_may_close_but_not_ask(
    train: Train, sync: dict[str, Any]
) -> None:
    trainer = train(2, sync=sync)

    def ask(event: Any) -> None:
        if event.iteration == 2:
            trainer.snapshot()

    trainer.listeners.append(ask)
    with pytest.raises(WorkerError, match=r"running in another thread.*save="):
        trainer.step(50)
    trainer.listeners[:] = [lambda event: trainer.close()]
    with pytest.raises(WorkerError, match="this trainer is closed"):
        trainer.step(50)
