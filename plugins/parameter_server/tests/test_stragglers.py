"""A worker that the description delays sleeps that many times its own step, and no other worker
does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from demitasse_parameter_server import pace

TICK = 0.001


class Clock:
    """A clock for each thread, which advances at each look and by sleeping."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.slept: dict[str, list[float]] = {}

    def perf_counter(self) -> float:
        self._local.now = getattr(self._local, "now", 0.0) + TICK
        return float(self._local.now)

    def sleep(self, seconds: float) -> None:
        self._local.now += seconds
        self.slept.setdefault(threading.current_thread().name, []).append(seconds)


@pytest.mark.timeout(300, method="thread")
@pytest.mark.parametrize("model", ["bsp", "asp"])
def test_only_the_one_named_is_held_up_and_by_its_own_step(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    trainer = train(3, sync={"model": model, "delay": [0, 50.0]})
    trainer.step(1)
    assert clock.slept == {}, "nobody knows yet how long a step takes"
    trainer.step(2)
    (name,) = clock.slept
    assert name.startswith("demitasse-worker-1")
    # A step is a few looks at the clock long.
    assert 2 * 50 * TICK <= sum(clock.slept[name]) <= 2 * 50 * 20 * TICK
    assert max(clock.slept[name]) <= 0.05
