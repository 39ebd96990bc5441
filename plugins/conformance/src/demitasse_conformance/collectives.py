"""Checks of collectives: each algorithm is proved, and run to see that it does what was proved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demitasse import Algorithm, Schedule, check, run_threads
from demitasse_conformance.promises import WITHIN, differing, hold

RANKS = (*range(1, 18), 24, 31)
RUN = (2, 3, 5, 8)
"""Numbers of ranks that are also run, with a thread for each rank."""


def check_collective(algorithm: Algorithm) -> int:
    """Prove an algorithm's schedules, with and without buffers, for each of its goals, several numbers
    of ranks, few and many elements, its options and a rank map, and run some of them with threads. Each
    contribution must arrive exactly once where the goal says, with the same bits at all ranks of an
    allreduce. Return how many schedules were proved. Raises PlanError if a proof fails, or
    BrokenPromiseError if a schedule gives another result when it is run."""
    proved = 0
    for made in _schedules(algorithm):
        check(made)
        check(made, buffered=False)
        proved += 1
        if made.ranks in RUN and made.size > made.ranks:
            _hold_run(made)
    return proved


def _schedules(algorithm: Algorithm) -> Iterator[Schedule]:
    for goal in algorithm.goals:
        for ranks in RANKS:
            for size in sorted({0, 1, ranks - 1, 97}):
                yield algorithm.schedule(ranks, size, goal, root=ranks // 2)
            if "chunks" in algorithm.options:
                yield algorithm.schedule(ranks, 97, goal, chunks=5)
            if "groups" in algorithm.options:
                yield algorithm.schedule(ranks, 97, goal, groups=min(3, ranks))
            else:
                yield algorithm.schedule(ranks, 97, goal, order=reversed(range(ranks)))


def _hold_run(made: Schedule) -> None:
    """Run a schedule with threads, and compare the results with sums in double precision."""
    vectors = np.random.default_rng(made.ranks).standard_normal((made.ranks, made.size))
    total, held = vectors.sum(axis=0), list(vectors.copy())
    run_threads(made, held)
    what = f"{made.algorithm}: {made.goal} of {made.size} by {made.ranks}"
    for rank, buffer in enumerate(held):
        mine = slice(*made.owner(made, rank))
        if made.goal == "allreduce":
            far = differing(buffer, total, WITHIN["f64"], "the sum's")
            hold(not far, f"{what}: rank {rank}: {far}")
            hold(
                buffer.tobytes() == held[0].tobytes(), f"{what}: rank {rank} has other bits than rank 0"
            )
        elif made.goal == "reduce" and rank == made.root:
            far = differing(buffer, total, WITHIN["f64"], "the sum's")
            hold(not far, f"{what}: the root: {far}")
        elif made.goal == "reduce_scatter":
            far = differing(buffer[mine], total[mine], WITHIN["f64"], "the sum's")
            hold(not far, f"{what}: rank {rank}: {far}")
        elif made.goal == "broadcast":
            hold(
                np.array_equal(buffer, vectors[made.root]),
                f"{what}: rank {rank} does not have what was sent",
            )
        elif made.goal == "allgather":
            for owner in range(made.ranks):
                part = slice(*made.owner(made, owner))
                same = np.array_equal(buffer[part], vectors[owner, part])
                hold(same, f"{what}: rank {rank} does not have the part of rank {owner}")
