"""Kernels that do an iteration's updates in one call: an interrupt finds it done or not begun."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import demitasse

END = 5


@pytest.fixture
def trainer(toy: ModuleType) -> Any:
    names = ["cpu", "reference", "training", "snapshots", toy.toy()]
    with demitasse.compose(toy.machine(), names) as runtime:
        yield lambda: runtime.trainer(toy.solver(toy.classifier()))


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_beside_the_call_is_of_the_right_iteration(trainer: Any, before: bool) -> None:
    plain, other = trainer(), trainer()
    plain.step(END)
    other.step(2)
    worker = other._workers[0]
    (call,) = worker.step.last
    assert worker.whole
    assert not any(thread.name.startswith("demitasse-worker") for thread in threading.enumerate())

    def interrupted() -> None:  # Python raises it where it is back from compiled code
        worker.step.last[:] = [call]
        if not before:
            call()
        raise KeyboardInterrupt

    worker.step.last[:] = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        other.step(END)
    assert other.iteration == (2 if before else 3)
    other.step(END - other.iteration)
    for layer, arrays in plain.net.params.items():
        for mine, theirs in zip(arrays, other.net.params[layer], strict=True):
            np.testing.assert_array_equal(mine, theirs)
