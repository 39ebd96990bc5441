"""The accord of a run's workers: their sums within a pass, and what the others get if one fails."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from demitasse import DataError, Processes, WorkerError
from demitasse_training.accord import Accord, ElsewhereError


class Two(Processes):
    """One of two processes, of which the other has the same."""

    size = 2

    def total(self, values: Any) -> Any:
        return 2 * values


def beside(accord: Accord, worker: int, numbers: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that adds a worker's numbers, and what it gets."""
    found: list[Any] = []

    def add() -> None:
        try:
            found.append(accord.add(worker, numbers).tolist())
        except WorkerError as error:
            found.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    while worker not in accord._here:
        time.sleep(1e-3)
    return thread, found


@pytest.mark.timeout(30, method="thread")
def test_who_fails_after_a_meeting_takes_nothing_from_it() -> None:
    """A sibling that has not woken up yet gets its sum."""
    accord = Accord(Processes())
    accord.begin(2)
    thread, found = beside(accord, 1, np.ones(2))
    with accord._changed:  # the sibling cannot go on before both
        assert accord.add(0, np.full(2, 3.0)).tolist() == [4.0, 4.0]
        accord.fail(0, DataError("torn"))
    thread.join()
    assert found == [[4.0, 4.0]]
    with pytest.raises(ElsewhereError, match="another worker"):
        accord.add(1, np.ones(2))


@pytest.mark.timeout(30, method="thread")
def test_who_fails_after_it_has_arrived_wakes_its_siblings() -> None:
    """Other processes learn of it when this one reports it."""
    accord = Accord(Two())
    accord.begin(2, [3])
    thread, found = beside(accord, 0, np.ones(3))
    assert accord.add(1, np.ones(3)).tolist() == [4.0] * 3
    thread.join()
    arriving = threading.Thread(target=accord.arrive, args=(0,))
    arriving.start()
    accord.arrive(1)
    arriving.join()
    thread, found = beside(accord, 0, np.ones(4))
    accord.fail(1, ZeroDivisionError("a bug"))
    thread.join()
    assert isinstance(found[0], ElsewhereError) and not accord.stopped
