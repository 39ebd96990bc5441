"""Which of several prepared sums is the quickest, by running them: all ranks come to the same answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demitasse_allreduce.executor import wait_for

NEAR = 1.5
"""Who takes longer than so many times the quickest is not run again, once that is certain."""

FIRST, LONG = 3, 0.01
"""How many rounds make it so, of which the best counts; and seconds of the quickest's that one is
enough of. In shorter ones a rank that lost its processor once can be all there is: of 40 us' sums in
shared memory one was dropped so, and MPI's own taken for good, which took three times as long."""

WARM = 3
"""Runs that do not count: sums in shared memory use another part of it in each of so many, whose first
use is slow."""


def measured(
    comm: Any,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    repeats: int = 1,
    check: Callable[[], object] | None = None,
) -> list[float]:
    """Seconds of each, the slowest rank's: a median of ``rounds``, each of so many ``repeats``, after as
    many up to WARM that do not count. Who is not run again has the median of the rounds that it had, or
    the largest of the others' where that is more: what held these up later did not hold it up.
    Collective over ``comm``. ``check`` is called in waits between rounds, and ends them by raising."""
    times: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    for turn in range(-1, rounds):
        mine = np.zeros(len(left))
        for i, number in enumerate(left):
            wait_for(comm.Ibarrier(), check)
            begin = time.perf_counter()
            for _ in range(repeats if turn >= 0 else min(WARM, repeats)):
                runs[number]()
            mine[i] = (time.perf_counter() - begin) / repeats
        if turn < 0:
            continue
        for number, seconds in zip(left, slowest(comm, mine, check), strict=True):
            times[number].append(float(seconds))
        if turn < FIRST:
            best = {number: min(times[number]) for number in left}
            least = min(best.values())
            if turn + 1 == FIRST or repeats * least >= LONG:
                left = [number for number in left if best[number] <= NEAR * least]
    medians = [float(np.median(each)) for each in times]
    behind = np.nextafter(max(medians[number] for number in left), np.inf)
    return [each if i in left else max(each, float(behind)) for i, each in enumerate(medians)]


def slowest(comm: Any, mine: Any, check: Callable[[], object] | None) -> Any:
    """The largest of all ranks' numbers, one by one."""
    from mpi4py import MPI

    found = np.empty_like(mine)
    wait_for(comm.Iallreduce(mine, found, MPI.MAX), check)
    return found
