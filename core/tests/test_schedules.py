"""Schedules: right ones are proved and sum correctly on threads; broken ones raise precise errors."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse.errors import PlanError, WorkerError
from demitasse_schedules import Move, Schedule, check, run_threads

pytestmark = pytest.mark.usefixtures("no_threads_left")

# Algorithms as a plugin would write them: functions of a module that make the moves of one rank.


def ring(schedule: Schedule, rank: int) -> Iterator[Move]:
    n = schedule.ranks
    for kind, first in (("reduce", rank), ("receive", rank + 1)):
        for step in range(n - 1):
            yield Move("send", (rank + 1) % n, *schedule.part((first - step) % n))
            yield Move(kind, (rank - 1) % n, *schedule.part((first - step - 1) % n))


def scatter_by_halving(schedule: Schedule, rank: int) -> Iterator[Move]:
    distance = schedule.ranks // 2
    while distance:
        peer = rank ^ distance
        theirs, mine = peer & -distance, rank & -distance
        yield Move("send", peer, *_span(schedule, theirs, distance))
        yield Move("reduce", peer, *_span(schedule, mine, distance))
        distance //= 2


def gather_by_doubling(schedule: Schedule, rank: int) -> Iterator[Move]:
    distance = 1
    while distance < schedule.ranks:
        peer = rank ^ distance
        yield Move("send", peer, *_span(schedule, rank & -distance, distance))
        yield Move("receive", peer, *_span(schedule, peer & -distance, distance))
        distance *= 2


def _span(schedule: Schedule, first: int, parts: int) -> tuple[int, int]:
    return schedule.part(first)[0], schedule.part(first + parts - 1)[1]


def halving_doubling(schedule: Schedule, rank: int) -> Iterator[Move]:
    yield from scatter_by_halving(schedule, rank)
    yield from gather_by_doubling(schedule, rank)


def reduce_binomial(schedule: Schedule, rank: int) -> Iterator[Move]:
    n, place, distance = schedule.ranks, (rank - schedule.root) % schedule.ranks, 1
    while distance < n:
        if place & distance:
            yield Move("send", (rank - distance) % n, 0, schedule.size)
            return
        if place + distance < n:
            yield Move("reduce", (rank + distance) % n, 0, schedule.size)
        distance *= 2


def broadcast_binomial(schedule: Schedule, rank: int) -> Iterator[Move]:
    mirrored = {"send": "receive", "reduce": "send"}
    for kind, peer, start, stop in reversed(list(reduce_binomial(schedule, rank))):
        yield Move(mirrored[kind], peer, start, stop)


def binomial(schedule: Schedule, rank: int) -> Iterator[Move]:
    yield from reduce_binomial(schedule, rank)
    yield from broadcast_binomial(schedule, rank)


@dataclass(frozen=True)
class Chain:
    """Chunks flow down a chain to rank 0, summed on the way, and back up."""

    chunks: int

    def __call__(self, schedule: Schedule, rank: int) -> Iterator[Move]:
        last, size = schedule.ranks - 1, schedule.size
        pieces = [(size * i // self.chunks, size * (i + 1) // self.chunks) for i in range(self.chunks)]
        for piece in pieces:
            if rank < last:
                yield Move("reduce", rank + 1, *piece)
            if rank > 0:
                yield Move("send", rank - 1, *piece)
        for piece in pieces:
            if rank > 0:
                yield Move("receive", rank - 1, *piece)
            if rank < last:
                yield Move("send", rank + 1, *piece)


def in_rank_order(schedule: Schedule, rank: int) -> Iterator[Move]:
    """Every rank sums all contributions from rank 0 upwards; its own waits in a copy."""
    for peer in range(schedule.ranks):
        yield Move("send", peer, 0, schedule.size)
    for peer in range(schedule.ranks):
        yield Move("reduce" if peer else "receive", peer, 0, schedule.size)


def direct_scatter(schedule: Schedule, rank: int) -> Iterator[Move]:
    others = [peer for peer in range(schedule.ranks) if peer != rank]
    for peer in others:
        yield Move("send", peer, *schedule.owner(schedule, peer))
    for peer in others:
        yield Move("reduce", peer, *schedule.owner(schedule, rank))


def reversed_owner(schedule: Schedule, rank: int) -> tuple[int, int]:
    return schedule.part(schedule.ranks - 1 - rank)


ANY = range(1, 17)
POWERS = (1, 2, 4, 8, 16)
ALGORITHMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ring": (ring, ANY, {}),
    "halving-doubling": (halving_doubling, POWERS, {}),
    "binomial": (binomial, ANY, {}),
    "chain": (Chain(3), ANY, {}),
    "rank-order": (in_rank_order, ANY, {}),
    "halving": (scatter_by_halving, POWERS, {"goal": "reduce_scatter"}),
    "doubling": (gather_by_doubling, POWERS, {"goal": "allgather"}),
    "direct": (direct_scatter, ANY, {"goal": "reduce_scatter", "owner": reversed_owner}),
    "binomial-reduce": (reduce_binomial, ANY, {"goal": "reduce"}),
    "binomial-broadcast": (broadcast_binomial, ANY, {"goal": "broadcast"}),
}


def make(name: str, ranks: int, size: int, root: int = 0) -> Schedule:
    program, _, facts = ALGORITHMS[name]
    return Schedule(name, ranks, size, program, root=root, **facts)


def expected(schedule: Schedule, vectors: np.ndarray) -> dict[int, tuple[slice, Any]]:
    """Return what the definition of the goal promises each rank: (where, values), in float64."""
    total: Any = np.sum(vectors, axis=0, dtype=np.float64)
    everything = slice(0, schedule.size)
    ranks = range(schedule.ranks)
    if schedule.goal == "allreduce":
        return dict.fromkeys(ranks, (everything, total))
    if schedule.goal == "reduce":
        return {schedule.root: (everything, total)}
    if schedule.goal == "broadcast":
        return dict.fromkeys(ranks, (everything, vectors[schedule.root]))
    parts = [slice(*schedule.owner(schedule, rank)) for rank in ranks]
    if schedule.goal == "reduce_scatter":
        return {rank: (parts[rank], total[parts[rank]]) for rank in ranks}
    gathered = np.empty(schedule.size)
    for rank in ranks:
        gathered[parts[rank]] = vectors[rank, parts[rank]]
    return dict.fromkeys(ranks, (everything, gathered))


@st.composite
def schedules(draw: Callable[..., Any]) -> Schedule:
    name = draw(st.sampled_from(sorted(ALGORITHMS)))
    ranks = draw(st.sampled_from(ALGORITHMS[name][1]))
    return make(name, ranks, draw(st.integers(0, 40)), draw(st.integers(0, ranks - 1)))


@given(schedules(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(150))
def test_every_algorithm_is_proved_and_gives_what_its_goal_promises(
    schedule: Schedule, seed: int
) -> None:
    check(schedule)
    vectors = np.random.default_rng(seed).standard_normal((schedule.ranks, schedule.size))
    buffers = list(vectors.copy())
    run_threads(schedule, buffers)
    for rank, (where, values) in expected(schedule, vectors).items():
        np.testing.assert_allclose(buffers[rank][where], values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_algorithm_is_proved_for_all_its_rank_counts_and_small_sizes(name: str) -> None:
    for ranks in ALGORITHMS[name][1]:
        for size in (0, 1, ranks - 1, ranks, ranks + 1):
            check(make(name, ranks, size))


@pytest.mark.parametrize("name", ["ring", "halving-doubling", "binomial", "chain", "rank-order"])
def test_an_allreduce_leaves_the_same_bits_on_all_ranks_in_every_run(name: str) -> None:
    vectors = np.random.default_rng(7).standard_normal((8, 1001)).astype(np.float32)
    runs = []
    for _ in range(3):
        buffers = list(vectors.copy())
        run_threads(make(name, 8, 1001), buffers)
        runs += [buffer.tobytes() for buffer in buffers]
    assert len(set(runs)) == 1


def test_a_copy_to_oneself_lets_the_sum_follow_the_order_of_ranks() -> None:
    vectors = np.array([[1e8], [-1e8], [3.0], [1e-3]], np.float32)
    buffers = list(vectors.copy())
    run_threads(make("rank-order", 4, 1), buffers)
    in_order = ((vectors[0] + vectors[1]) + vectors[2]) + vectors[3]
    assert [buffer.item() for buffer in buffers] == [in_order.item()] * 4


def test_the_sum_is_computed_by_the_kernel_that_is_given() -> None:
    buffers = [np.array([rank, 10 - rank]) for rank in range(5)]
    run_threads(make("binomial", 5, 2), buffers, add=np.maximum)
    assert [list(buffer) for buffer in buffers] == [[4, 10]] * 5


# Broken schedules: a good program with some moves changed.


@dataclass(frozen=True)
class Changed:
    """The moves of ``program``, with other moves for ``rank``."""

    program: Any
    rank: int
    moves: tuple[Move, ...]

    def __call__(self, schedule: Schedule, rank: int) -> Any:
        return self.moves if rank == self.rank else self.program(schedule, rank)


def changed(schedule: Schedule, rank: int, change: Callable[[list[Move]], object]) -> Schedule:
    moves = list(schedule.program(schedule, rank))
    change(moves)
    return replace(schedule, program=Changed(schedule.program, rank, tuple(moves)))


def test_a_missing_send_is_refused_where_it_is_waited_for() -> None:
    broken = changed(make("binomial", 4, 10), 1, lambda moves: moves.pop(0))
    with pytest.raises(PlanError, match=r"binomial: rank 0, step 0, reduce\(1, 0:10\): deadlock.*"):
        check(broken)
    broken = changed(make("binomial-reduce", 4, 10), 3, list.clear)
    with pytest.raises(PlanError, match=r"rank 2, step 0, reduce\(3, 0:10\).*sends nothing more"):
        check(broken)


def test_a_missing_receive_is_refused_at_its_send() -> None:
    broken = changed(make("binomial-reduce", 4, 10), 2, lambda moves: moves.pop(0))
    with pytest.raises(PlanError, match=r"rank 3, step 0, send\(2, 0:10\).*never receives"):
        check(broken)


def test_a_sum_that_leaves_a_rank_out_is_refused() -> None:
    def overwrite(moves: list[Move]) -> None:
        moves[0] = moves[0]._replace(kind="receive")

    broken = changed(make("binomial", 4, 10), 2, overwrite)
    with pytest.raises(PlanError, match=r"binomial: rank 0, step end, \[0\]: rank 2 is missing"):
        check(broken)


def test_a_doubled_reduce_is_refused_with_the_rank_that_would_count_twice() -> None:
    good = make("binomial-reduce", 2, 10)
    twice = changed(good, 1, lambda moves: moves.append(moves[0]))
    twice = changed(twice, 0, lambda moves: moves.append(moves[0]))
    with pytest.raises(PlanError, match=r"rank 0, step 1, reduce\(1, 0:10\): rank 1 is counted twice"):
        check(twice)


def test_swapped_moves_that_deadlock_are_refused_with_both_waits() -> None:
    broken = make("ring", 3, 9)
    for rank in range(3):
        broken = changed(broken, rank, lambda moves: moves.insert(0, moves.pop(1)))
    with pytest.raises(PlanError, match=r"rank 0, step 0, reduce\(2.*deadlock.*reduce\(1, 3:6\)"):
        check(broken)


def test_messages_that_overtake_each_other_are_refused() -> None:
    broken = changed(make("chain", 2, 9), 1, lambda moves: moves.insert(0, moves.pop(1)))
    with pytest.raises(
        PlanError, match=r"rank 0, step 0, reduce\(1, 0:3\): does not match .*send\(0, 3:6\)"
    ):
        check(broken)


@pytest.mark.parametrize("move", [Move("send", 2, 0, 1), Move("send", -1, 0, 1)])
@pytest.mark.parametrize("field", [{}, {"peer": 0, "start": -1}, {"peer": 0, "stop": 99}])
def test_a_move_to_nowhere_is_refused(move: Move, field: dict[str, Any]) -> None:
    broken = changed(make("ring", 2, 10), 1, lambda moves: moves.append(move._replace(**field)))
    with pytest.raises(PlanError, match=r"rank 1, step 4, send.*no such peer or elements"):
        check(broken)


def test_an_unknown_goal_is_refused_with_the_nearest() -> None:
    with pytest.raises(PlanError, match="unknown goal 'all-reduce'; did you mean 'allreduce'"):
        check(replace(make("ring", 2, 10), goal="all-reduce"))


@given(schedules().filter(lambda schedule: schedule.size >= schedule.ranks > 1), st.data())
@settings(max_examples=examples(100))
def test_no_move_can_be_left_out_unnoticed(schedule: Schedule, data: Any) -> None:
    moves = [list(schedule.program(schedule, rank)) for rank in range(schedule.ranks)]
    rank = data.draw(st.sampled_from([rank for rank, mine in enumerate(moves) if mine]))
    step = data.draw(st.integers(0, len(moves[rank]) - 1))
    with pytest.raises(PlanError):
        check(changed(schedule, rank, lambda mine: mine.pop(step)))


def test_unbuffered_sends_deadlock_where_all_ranks_send_first() -> None:
    for name in ("ring", "halving-doubling", "rank-order"):
        with pytest.raises(PlanError, match=r"rank ., step 0, send.*deadlock; its peer is at \(., send"):
            check(make(name, 4, 8), buffered=False)


def test_trees_and_chains_need_no_buffers() -> None:
    for ranks in range(1, 17):
        check(make("binomial", ranks, 8), buffered=False)
        check(make("chain", ranks, 8), buffered=False)


def test_unbuffered_sends_do_not_run_ahead_of_their_receives() -> None:
    def crossing(schedule: Schedule, rank: int) -> list[Move]:
        if rank == 0:
            return [Move("send", 1, 0, 1), Move("send", 1, 1, 2), Move("reduce", 1, 0, 2)]
        return [Move("reduce", 0, 0, 1), Move("send", 0, 0, 2), Move("receive", 0, 1, 2)]

    schedule = Schedule("crossing", 2, 2, crossing, goal="reduce", root=1)
    list(schedule.walk())
    with pytest.raises(PlanError, match="deadlock"):
        list(schedule.walk(buffered=False))


# Failures on threads


def test_a_failing_rank_wakes_the_others_and_is_named() -> None:
    buffers: list[Any] = [np.zeros(12) for _ in range(6)]
    buffers[4].flags.writeable = False
    with pytest.raises(WorkerError, match=r"ring: rank 4, step 1, reduce\(3, .*read-only") as caught:
        run_threads(make("ring", 6, 12), buffers)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_kernel_that_fails_stops_the_run() -> None:
    def fail(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise FloatingPointError("overflow")

    with pytest.raises(WorkerError, match="overflow"):
        run_threads(make("halving-doubling", 8, 12), list(np.zeros((8, 12))), add=fail)


def test_a_schedule_that_deadlocks_is_refused_before_any_thread_starts() -> None:
    broken = changed(make("binomial", 4, 10), 1, lambda moves: moves.pop(0))
    with pytest.raises(PlanError, match="deadlock"):
        run_threads(broken, list(np.zeros((4, 10))))


# Records and costs


def test_schedules_print_one_row_a_rank() -> None:
    assert str(make("binomial", 3, 10)) == "\n".join(
        [
            "binomial: allreduce of 10 by 3",
            "   0  reduce(1, 0:10) reduce(2, 0:10) send(2, 0:10) send(1, 0:10)",
            "   1  send(0, 0:10) receive(0, 0:10)",
            "   2  send(0, 0:10) receive(0, 0:10)",
        ]
    )


def test_equal_schedules_compare_and_hash_as_equal() -> None:
    assert make("chain", 4, 10) == make("chain", 4, 10)
    assert len({make("chain", 4, 10), make("chain", 4, 10), make("ring", 4, 10)}) == 2
    assert make("ring", 4, 10) != make("ring", 4, 11)


def test_halving_and_doubling_exchange_halves_in_rounds() -> None:
    rounds: dict[int, set[int]] = defaultdict(set)
    for number, source, destination, elements in make("halving-doubling", 8, 64).messages():
        rounds[number].add(elements)
        assert source ^ destination in (1, 2, 4)
    assert dict(rounds) == {0: {32}, 1: {16}, 2: {8}, 3: {8}, 4: {16}, 5: {32}}


@pytest.mark.parametrize(
    ("name", "ranks", "rounds", "elements"),
    [
        ("ring", 6, 10, 2 * 5 * 60),
        ("binomial", 8, 6, 2 * 7 * 60),
        ("chain", 4, 8 + 2, 2 * 3 * 60),
        ("rank-order", 5, 4, 5 * 4 * 60),
    ],
)
def test_messages_have_the_rounds_and_volume_of_the_textbook(
    name: str, ranks: int, rounds: int, elements: int
) -> None:
    messages = list(make(name, ranks, 60).messages())
    assert max(message[0] for message in messages) + 1 == rounds
    assert sum(message[3] for message in messages) == elements
    assert all(source != destination for _, source, destination, _ in messages)


def calls(run: Callable[[], object]) -> int:
    """Return how many functions are called, whatever else the machine does meanwhile."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def test_a_proof_takes_as_much_as_there_are_messages_not_pairs_of_ranks() -> None:
    few, many = (make("halving-doubling", ranks, 10_000_000) for ranks in (64, 256))
    messages = len(list(many.messages())) / len(list(few.messages()))
    assert messages == 256 * 8 / (64 * 6)
    assert calls(partial(check, many)) / calls(partial(check, few)) < 1.1 * messages


def test_a_thousand_ranks_are_proved() -> None:
    check(make("halving-doubling", 1024, 10_000_000))


def test_a_schedule_of_forty_thousand_ranks_is_made_at_once_and_walked() -> None:
    schedule = make("binomial", 40_960, 1000)
    assert len(list(schedule.program(schedule, 0))) == 2 * 16
    assert sum(1 for _ in schedule.messages()) == 2 * 40_959
