"""Runs schedules in one process, with a thread for each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from demitasse import WorkerError
from demitasse_schedules.record import Schedule


def run_threads(schedule: Schedule, buffers: Sequence[Any], add: Callable[..., Any] = np.add) -> None:
    """Run a schedule in place on one array per rank, with one thread per rank; ``add(a, b)`` returns the
    sum. Raises WorkerError with the rank and move that failed, once all threads have stopped."""
    turns = list(schedule.walk())

    def run(rank: int) -> None:
        for _, step, move, letter in (turn for turn in turns if turn[0] == rank):
            mine = buffers[rank][move.start : move.stop]
            try:
                if move.kind == "send":
                    letter.put(mine.copy())
                elif (other := letter.get()) is not None:  # None: another rank has failed
                    mine[:] = add(mine, other) if move.kind == "reduce" else other
            except BaseException as error:
                for *_, letter in turns:
                    letter.put(None)
                raise WorkerError(str(schedule.fault(repr(error), rank, step, move))) from error

    with ThreadPoolExecutor(schedule.ranks) as pool:
        list(pool.map(run, range(schedule.ranks)))
