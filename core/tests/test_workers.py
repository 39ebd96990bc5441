"""Threads that run a task each."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import demitasse
from demitasse import workers


def test_an_interrupt_leaves_no_barrier_broken(
    toy: ModuleType, no_threads_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = demitasse.arrange(toy.machine(2), "float32")
    (team,) = {group.team for place in places for _, group in place.groups}
    assert team is not None
    threads, wait, interrupts = workers.Workers(places), workers.wait, [KeyboardInterrupt]

    def interrupted(futures: Any) -> Any:
        wait(futures)
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(workers, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.run(lambda worker: worker)
    assert not team.barrier.broken
    assert len(threads.run(lambda worker: team.barrier.wait())) == 2
    threads.close()
