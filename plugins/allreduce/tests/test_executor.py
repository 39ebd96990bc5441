"""Schedules are run over MPI by real processes, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from demitasse import WorkerError
from demitasse_allreduce import executor
from demitasse_allreduce.algorithms import ALGORITHMS, schedule
from demitasse_allreduce.executor import LONGEST

SUMS = """
from demitasse_allreduce.algorithms import ALGORITHMS, schedule
from demitasse_allreduce.executor import Collective
draw = np.random.default_rng(5)
for algorithm in ALGORITHMS:
    some = int(draw.integers(1, 300_000))
    for n, dtype in ((0, "f4"), (1, "f8"), (7, "i4"), (4_099, "f4"), (some, "f8")):
        everyone = draw.integers(-50, 50, (size, n)).astype(dtype)
        noisy = draw.standard_normal((size, n)).astype(np.float32)
        array = everyone[rank].copy()
        collective = Collective(schedule(algorithm, size, n), comm, array)
        for turn in range(2):  # prepared once, run again
            array[:] = everyone[rank]
            collective.run()
            assert (array == everyone.sum(0)).all(), (algorithm, n, dtype, turn)
        array = noisy[rank].copy()
        Collective(schedule(algorithm, size, n), comm, array).run()
        assert np.allclose(array, noisy.sum(0, dtype="f8"), atol=1e-5), (algorithm, n)
        first = array.copy()
        comm.Bcast(first, 0)
        assert first.tobytes() == array.tobytes(), (algorithm, n)
print("right")
"""


@pytest.mark.parametrize("ranks", [2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 5))])
def test_every_algorithm_sums_to_the_same_bits_on_all_ranks(
    on_ranks: Callable[..., str], ranks: int
) -> None:
    assert on_ranks(ranks, SUMS).count("right") == ranks


def test_moves_longer_than_a_message_go_in_pieces(on_ranks: Callable[..., str]) -> None:
    script = f"""
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective
    n = {3 * LONGEST // 8 * 2 + 5}
    array = np.arange(n) * 1.0 + rank
    Collective(schedule("recursive-halving-doubling", size, n), comm, array).run()
    assert (array == np.arange(n) * size + size * (size - 1) / 2).all()
    """
    on_ranks(3, script)


def test_reduce_scatter_and_allgather_leave_the_parts_with_their_owners(
    on_ranks: Callable[..., str],
) -> None:
    script = """
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective
    n = 10_007
    for algorithm in ("ring", "recursive-halving-doubling"):
        array = np.arange(n) * 1.0 + rank
        scatter = schedule(algorithm, size, n, goal="reduce_scatter")
        Collective(scatter, comm, array).run()
        start, stop = scatter.owner(scatter, rank)
        assert (array[start:stop] == np.arange(start, stop) * size + size * (size - 1) / 2).all()
        gather = schedule(algorithm, size, n, goal="allgather")
        Collective(gather, comm, array).run()
        assert (array == np.arange(n) * size + size * (size - 1) / 2).all()
    """
    on_ranks(4, script)


def test_sends_that_no_one_awaits_yet_do_not_stop_a_schedule_that_a_buffer_lets_pass(
    on_ranks: Callable[..., str],
) -> None:
    script = """
    from demitasse import Move, Schedule, check
    from demitasse_allreduce.executor import Collective
    n = 400_000
    def program(schedule, rank):
        # rank 0 overwrites what rank 1 takes only after rank 2, which waits for rank 0
        moves = {
            0: [("send", 1), ("receive", 2), ("send", 2)],
            1: [("receive", 2), ("receive", 0)],
            2: [("send", 0), ("receive", 0), ("send", 1)],
        }
        return [Move(kind, peer, 0, n) for kind, peer in moves[rank]]
    array = np.full(n, rank + 1.0)
    Collective(Schedule("rough", 3, n, program, "broadcast"), comm, array).run()
    assert (array == (3, 1, 3)[rank]).all(), (rank, array[0])
    """
    on_ranks(3, script)


def test_a_collective_goes_on_beside_other_work(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective
    half = comm.Split(rank % 2)
    array = np.full(100_000, rank + 1.0)
    collective = Collective(schedule("ring", half.size, array.size), half, array)
    collective.start()
    work = 0
    while not collective.progress():
        work += 1
    collective.wait()
    assert (array == (4.0, 6.0)[rank % 2]).all()
    """
    on_ranks(4, script)


def test_a_check_that_raises_ends_a_wait_for_a_message(mpiexec: Callable[..., str]) -> None:
    script = """
    import os
    from demitasse import WorkerError
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective
    def check():
        raise WorkerError("rank 1 stalls at layer conv1")
    array = np.ones(100_000)
    if rank == 0:
        try:
            Collective(schedule("ring", size, array.size), comm, array, check=check).run()
        except WorkerError as error:
            print(error, flush=True)
        comm.Send(np.ones(1), 1, 77)
    else:
        comm.Recv(np.ones(1), 0, 77)
    os._exit(0)
    """
    assert "rank 1 stalls at layer conv1" in mpiexec(2, script, fails=None)


class Broken:
    """A communicator of two whose messages fail, as MPI's do if the other rank's host is gone."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def Isend(self, *message: object) -> None:
        raise RuntimeError("MPI_ERR_PROC_FAILED")

    Irecv = Isend


@pytest.mark.parametrize("known_after", [3, None])
def test_what_makes_mpi_fail_is_told_by_those_who_watch(
    monkeypatch: pytest.MonkeyPatch, known_after: int | None
) -> None:
    """The cause may become known a moment after MPI's own error. Without a cause, the error is
    MPI's."""
    monkeypatch.setattr(executor, "_KNOWN", 0.05 if known_after is None else 30.0)
    asked = list[None]()

    def check() -> None:
        asked.append(None)
        if len(asked) == known_after:
            raise WorkerError("rank 1 died")

    array = np.ones(8)
    collective = executor.Collective(schedule("ring", 2, 8), Broken(), array, check=check)
    request = SimpleNamespace(Test=lambda: Broken().Isend())
    told = "rank 1 died" if known_after else "MPI_ERR_PROC_FAILED"
    for work in (collective.run, lambda: executor.wait_for(request, check)):
        asked.clear()
        with pytest.raises(WorkerError if known_after else RuntimeError, match=told):
            work()
        assert asked
    with pytest.raises(RuntimeError, match="MPI_ERR_PROC_FAILED"):
        executor.wait_for(request, None)


def test_arrays_and_communicators_that_do_not_fit_are_said(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import PlanError
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective
    for ranks, n in ((2, 10), (1, 9)):
        try:
            Collective(schedule("ring", ranks, 10), comm, np.ones(n))
        except PlanError as error:
            print(error)
    """
    output = on_ranks(1, script)
    assert "a schedule for 2 ranks, but a communicator of 1" in output
    assert "ring of 10 elements: an array of shape (9,)" in output


@pytest.mark.parametrize(("ranks", "node_ranks"), [(4, 2), (5, 2), (4, 1), (3, 3)])
def test_nodes_are_summed_in_memory_and_then_across(
    on_ranks: Callable[..., str], ranks: int, node_ranks: int
) -> None:
    script = f"""
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.hierarchy import Hierarchical, Levels
    levels = Levels(comm, {node_ranks})
    def plan(ranks, n):
        return schedule("recursive-halving-doubling", ranks, n)
    for n in (1, 1_003, 150_001):
        each = np.random.default_rng(2).standard_normal((size, n))
        shared = levels.node.allocate(8 * n).mappings[levels.node.rank].view(0, (n,), np.float64)
        for array in (np.empty(n), shared):
            levels.node.barrier().run()
            array[:] = each[rank]
            Hierarchical(levels, array, plan).run()
            assert np.allclose(array, each.sum(0), rtol=0, atol=1e-12)
            first = array.copy()
            comm.Bcast(first, 0)
            assert first.tobytes() == array.tobytes()
    assert levels.slices == (size % {node_ranks} == 0)
    """
    on_ranks(ranks, script)


def test_all_algorithms_are_tried() -> None:
    assert len(ALGORITHMS) >= 6
    assert np.dtype("f8").itemsize <= LONGEST
