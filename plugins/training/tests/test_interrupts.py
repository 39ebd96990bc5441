"""After an interrupt in the main thread, a trainer is as after its last whole iteration, and goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from combined import in_pairs
from interrupted import Interrupted

from demitasse import WorkerError

AT, END = 2, 5
"""The iteration that is interrupted, and the last one."""


def once_at(trainer: Any, iteration: int, act: Callable[[], None]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() if left and trainer.iteration == iteration else None


@pytest.mark.parametrize(
    ("counts", "row", "place"),
    in_pairs([(), (2,), (2, 2)], ["begin", "reads", "first", "last", "end"], [0, 1, -1]),
)
def test_an_interrupt_at_any_place_of_an_iteration_leaves_it_whole(
    train: Any,
    copied: Any,
    differ: Any,
    interrupt: Callable[[], None],
    counts: tuple[int, ...],
    row: str,
    place: int,
) -> None:
    plain, trainer = train(None, *counts), train(None, *counts)
    plain.step(END)
    trainer.step(AT)
    works = getattr(trainer._workers[-1].step, row)
    works.insert(place if place >= 0 else len(works), once_at(trainer, AT, interrupt))
    with pytest.raises(Interrupted):
        trainer.step(END)
    assert trainer.iteration in (AT, AT + 1)
    trainer.step(END - trainer.iteration)
    assert differ(copied(plain.net), copied(trainer.net)) == 0.0


def test_an_interrupt_between_iterations_comes_after_a_whole_one(
    train: Any, copied: Any, differ: Any, interrupt: Callable[[], None]
) -> None:
    plain, trainer = train(), train()
    trainer.listeners.append(lambda event: interrupt() if event.iteration == AT else None)
    with pytest.raises(Interrupted):
        trainer.step(END)
    assert trainer.iteration == AT
    plain.step(AT)
    assert differ(copied(plain.net), copied(trainer.net)) == 0.0


@pytest.mark.parametrize("place", [0, 1])
def test_an_interactive_trainer_updates_all_parameters_or_none(
    toy: Any, runtime: Any, interrupt: Callable[[], None], place: int
) -> None:
    made = runtime().program("interactive trainer", toy.solver(toy.classifier()))
    made.iterate()
    updates, done = made._updates, list[int]()
    updates.insert(place, once_at(made, 1, interrupt))
    updates.append(lambda: done.append(made.iteration))
    with pytest.raises(Interrupted):
        made.iterate()
    assert done == [1]
    assert made.iteration == 2
    made.iterate()


def test_a_second_interrupt_does_not_wait_and_the_trainer_says_so(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train()
    trainer.step()

    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted

    with monkeypatch.context() as twice:
        twice.setattr(trainer._crew._threads, "run", interrupted)
        twice.setattr(trainer._crew._threads, "finish", interrupted)
        with pytest.raises(Interrupted):
            trainer.step()
    with pytest.raises(WorkerError, match=r"interrupted twice.*resume="):
        trainer.step()


def test_a_trainer_in_another_thread_is_not_concerned(train: Any, interrupt: Callable[[], None]) -> None:
    trainer = train()
    ended = threading.Thread(target=trainer.step, args=(END,))
    interrupted = False
    try:
        ended.start()
        interrupt()
        ended.join()
    except Interrupted:
        interrupted = True
    ended.join()
    assert interrupted
    assert trainer.iteration == END


def test_an_interrupt_that_does_not_wake_the_main_thread_is_heard_within_an_iteration(
    train: Any, interrupt: Callable[[], None]
) -> None:
    heard, before = threading.Event(), list[bool]()

    def task(worker: int) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # Python notices it in the same way
        before.append(heard.wait(20))

    trainer = train()
    with pytest.raises(Interrupted):
        trainer._crew.run(task, heard.set)
    assert before == [True]
