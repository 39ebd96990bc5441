"""Finding the fastest of several prepared sums by running them. All ranks come to the same answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demitasse_allreduce.executor import wait_for

NEAR = 1.5
"""A sum that takes more than so many times as long as the fastest is not run again, once that is
certain."""

FIRST, LONG = 3, 0.01
"""It is certain after FIRST rounds, of which the best counts, or after one round in which the fastest
sum takes at least LONG seconds. In shorter rounds, a rank that lost its processor once can account for
the whole time: a sum of 40 us in shared memory was once dropped for this reason, and MPI's own chosen
for good, which took three times as long."""

WARM = 3
"""Runs that do not count. Sums in shared memory use a different part of it in each of so many runs, and
the first use of a part is slow."""


def measured(
    comm: Any,
    runs: Sequence[Callable[[], object]],
    rounds: int,
    repeats: int = 1,
    check: Callable[[], object] | None = None,
) -> list[float]:
    """Return the seconds of each run, on the slowest rank: the median of ``rounds``, each of ``repeats``
    calls, after up to WARM calls that do not count. A run that is dropped after a few rounds has the
    median of these rounds, or slightly more than the largest median of the others if that is more,
    since it was spared whatever delayed the others later. Collective over ``comm``. ``check`` is called
    in waits between rounds and ends them by raising."""
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
    """Return the element-wise maximum of all ranks' arrays. Collective; ``check`` is called in the
    wait."""
    from mpi4py import MPI

    found = np.empty_like(mine)
    wait_for(comm.Iallreduce(mine, found, MPI.MAX), check)
    return found
