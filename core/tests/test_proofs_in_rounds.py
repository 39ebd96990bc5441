"""Programs in rounds: proofs for all ranks at once agree with proofs move by move; broken ones fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse.errors import PlanError, PluginError
from demitasse_schedules import Algorithm, InRounds, Move, Round, Schedule, check, joined, proof

# Algorithms as a plugin would write them.


def ring(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    n, size, rank = schedule.ranks, schedule.size, np.arange(schedule.ranks)
    rounds = []
    for step in range(n - 1):
        part = (rank - 1 - step) % n
        rounds.append(Round(rank, (rank + 1) % n, size * part // n, size * (part + 1) // n, True))
    if schedule.goal != "allgather":
        yield from rounds
    if schedule.goal != "reduce_scatter":
        yield from (each.mirrored() for each in reversed(rounds))


def doubling(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    rank, distance = np.arange(schedule.ranks), 1
    while distance < schedule.ranks:
        yield Round(rank, rank ^ distance, rank * 0, rank * 0 + schedule.size, True)
        distance *= 2


def halving(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    n, size, rank = schedule.ranks, schedule.size, np.arange(schedule.ranks)
    rounds, distance = [], n // 2
    while distance:
        first = (rank ^ distance) // distance * distance
        low, high = size * first // n, size * (first + distance) // n
        rounds.append(Round(rank, rank ^ distance, low, high, True))
        distance //= 2
    yield from rounds
    yield from (each.mirrored() for each in reversed(rounds))


def star(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Send everything to the root at once, in the order of ranks, and back."""
    others = np.delete(np.arange(schedule.ranks), schedule.root)
    root, none = others * 0 + schedule.root, others * 0
    there = Round(others, root, none, none + schedule.size, True)
    if schedule.goal != "broadcast":
        yield there
    if schedule.goal != "reduce":
        yield there.mirrored()


RING = Algorithm("ring", "", ring, ("allreduce", "reduce_scatter", "allgather"))
DOUBLING = Algorithm("doubling", "", doubling)
HALVING = Algorithm("halving", "", halving)
STAR = Algorithm("star", "", star, ("allreduce", "reduce", "broadcast"))
POWERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class OneByOne:
    """Makes the same moves as a program that is not in rounds."""

    program: InRounds

    def __call__(self, schedule: Schedule, rank: int) -> Iterator[Move]:
        return self.program(schedule, rank)


def one_by_one(schedule: Schedule) -> Schedule:
    assert isinstance(schedule.program, InRounds)
    return replace(schedule, program=OneByOne(schedule.program))


@st.composite
def schedules(draw: Callable[..., Any]) -> Schedule:
    made = draw(st.sampled_from([RING, DOUBLING, HALVING, STAR]))
    ranks = draw(st.sampled_from(POWERS if made in (DOUBLING, HALVING) else range(1, 18)))
    goal, root = draw(st.sampled_from(made.goals)), draw(st.integers(0, ranks - 1))
    order = draw(st.none() | st.permutations(range(ranks)))
    return made.schedule(ranks, draw(st.integers(0, 50)), goal, root, order=order)


@given(schedules())
@settings(max_examples=examples(150))
def test_rounds_and_moves_are_proved_alike(schedule: Schedule) -> None:
    in_rounds, moves = check(schedule), check(one_by_one(schedule))
    assert in_rounds.messages == moves.messages
    assert in_rounds.cells == moves.cells
    assert in_rounds.expressions == moves.expressions
    assert in_rounds.identical == moves.identical == (schedule.goal == "allreduce")


@given(schedules())
@settings(max_examples=examples(100))
def test_runs_of_cells_prove_what_the_table_does(schedule: Schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        table = check(schedule)
        patch.setattr(proof, "TABLE", 0)
        assert check(schedule) == table


def changed(schedule: Schedule, change: Callable[[list[Round]], list[Round]]) -> Schedule:
    program = schedule.program
    assert isinstance(program, InRounds)
    rounds = change(list(program.rounds(schedule)))
    return replace(schedule, program=InRounds(_Fixed(tuple(rounds))))


@dataclass(frozen=True, eq=False)
class _Fixed:
    rounds: tuple[Round, ...]

    def __call__(self, schedule: Schedule, program: InRounds) -> Any:
        return self.rounds


@given(schedules().filter(lambda made: made.size >= made.ranks > 1), st.data(), st.booleans())
@settings(max_examples=examples(150))
def test_no_message_can_be_left_out_unnoticed(schedule: Schedule, data: Any, runs: bool) -> None:
    def drop(rounds: list[Round]) -> list[Round]:
        number = data.draw(st.integers(0, len(rounds) - 1))
        which = data.draw(st.integers(0, len(rounds[number].source) - 1))
        rest = np.delete(np.arange(len(rounds[number].source)), which)
        return [*rounds[:number], rounds[number].kept(rest), *rounds[number + 1 :]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "TABLE", 0 if runs else proof.TABLE)
        with pytest.raises(PlanError, match=r"rank \d+ is missing|other bits|is counted twice"):
            check(changed(schedule, drop))


@given(schedules().filter(lambda made: made.size >= made.ranks > 1), st.data(), st.booleans())
@settings(max_examples=examples(100))
def test_no_sum_can_go_twice_unnoticed(schedule: Schedule, data: Any, runs: bool) -> None:
    def again(rounds: list[Round]) -> list[Round]:
        sums = [i for i, each in enumerate(rounds) if np.all(each.reduces)]
        number = data.draw(st.sampled_from(sums)) if sums else 0
        return [*rounds[: number + 1], rounds[number], *rounds[number + 1 :]]

    doubled = changed(schedule, again)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "TABLE", 0 if runs else proof.TABLE)
        if schedule.goal in ("broadcast", "allgather"):
            check(doubled)  # receiving a copy twice does no harm
        else:
            with pytest.raises(
                PlanError, match=r"rank \d+, round \d+, reduce.*: rank \d+ is counted twice"
            ):
                check(doubled)


def test_what_is_missing_is_named_with_rank_and_element() -> None:
    broken = changed(
        RING.schedule(4, 8), lambda rounds: [rounds[0].kept(np.array([0, 1, 3])), *rounds[1:]]
    )
    with pytest.raises(PlanError, match=r"ring: rank 0, step end, \[2\]: rank 2 is missing"):
        check(broken)


def test_what_is_doubled_is_named_where_it_first_was() -> None:
    def from_elsewhere(rounds: list[Round]) -> list[Round]:
        """In round 1, rank 2 receives what ranks 4 and 5 have instead of what 0 and 1 have."""
        source = rounds[1].source.copy()
        source[0] = 4
        return [rounds[0], rounds[1]._replace(source=source), *rounds[2:]]

    broken = changed(DOUBLING.schedule(8, 5), from_elsewhere)
    with pytest.raises(
        PlanError, match=r"doubling: rank 6, round 2, reduce\(2, 0:5\): rank 4 is counted twice"
    ):
        check(broken)


def test_rounds_in_another_order_are_refused() -> None:
    swapped = changed(HALVING.schedule(8, 64), lambda rounds: [rounds[1], rounds[0], *rounds[2:]])
    with pytest.raises(PlanError, match=r"halving: .*: rank \d is (missing|doubled)"):
        check(swapped)


def test_sums_that_ranks_make_in_different_orders_are_refused() -> None:
    def everyone(schedule: Schedule, program: InRounds) -> Iterator[Round]:
        n = schedule.ranks
        rank, none = np.arange(n), np.zeros(n, int)
        yield joined(
            [Round(rank, (rank + k) % n, none, none + schedule.size, True) for k in range(1, n)]
        )

    two = Schedule("all-to-all", 2, 4, InRounds(everyone))
    assert check(two).identical  # a + b and b + a have the same bits
    three = Schedule("all-to-all", 3, 4, InRounds(everyone))
    with pytest.raises(PlanError, match=r"all-to-all: rank 1, step end, \[0\]: sums in another order"):
        check(three)
    with pytest.raises(PlanError, match="sums in another order"):
        check(one_by_one(three))


def test_an_addition_to_nothing_or_where_nothing_is_added_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"rank 0, round 0, reduce.*a schedule for broadcast must not add"
    ):
        check(
            Schedule(
                "star", 3, 4, InRounds(lambda s, p: star(replace(s, goal="reduce"), p)), "broadcast"
            )
        )


@pytest.mark.parametrize(
    "field", [{"source": 4}, {"target": -1}, {"start": -1}, {"stop": 9}, {"target": 0}]
)
def test_a_message_to_nowhere_is_refused(field: dict[str, int]) -> None:
    def send(rounds: list[Round]) -> list[Round]:
        wrong = rounds[0]._replace(**{name: np.array([value] * 4) for name, value in field.items()})
        return [wrong, *rounds[1:]]

    with pytest.raises(PlanError, match=r"round 0, reduce.*no such peer or elements"):
        check(changed(RING.schedule(4, 8), send))


def test_unbuffered_rounds_are_refused_where_ranks_would_wait_for_each_other() -> None:
    for made in (RING, DOUBLING, HALVING, STAR):
        check(made.schedule(8, 40), buffered=False)

    def circle(schedule: Schedule, program: InRounds) -> Iterator[Round]:
        """Three ranks send all they have to both others, which take it in the wrong order."""
        source, target = np.array([0, 1, 2, 0, 1, 2]), np.array([1, 2, 0, 2, 0, 1])
        yield Round(source, target, source * 0, source * 0 + schedule.size, False)

    with pytest.raises(PlanError, match=r"circle: rank \d, round 0, receive.*deadlock; may wait for"):
        check(Schedule("circle", 3, 4, InRounds(circle)), buffered=False)


def test_owners_that_overlap_or_leave_elements_out_are_refused() -> None:
    def everything(schedule: Schedule, rank: int) -> tuple[int, int]:
        return 0, schedule.size

    def nothing(schedule: Schedule, rank: int) -> tuple[int, int]:
        return 0, 0

    gather = RING.schedule(3, 6, "allgather")
    with pytest.raises(PlanError, match=r"ring: rank 1, step start.*rank 0 owns part of it"):
        check(replace(gather, owner=everything))
    with pytest.raises(PlanError, match="no rank owns element 0"):
        check(replace(gather, owner=nothing))


def test_an_algorithm_refuses_what_it_cannot_do() -> None:
    with pytest.raises(PlanError, match="ring: unknown goal 'reduce'"):
        RING.schedule(4, 8, "reduce")
    with pytest.raises(PlanError, match=r"ring: ranks 0, size 8"):
        RING.schedule(0, 8)
    with pytest.raises(PlanError, match=r"order \(0, 0\) \(valid: each of 2 ranks once\)"):
        RING.schedule(2, 8, order=[0, 0])


def test_a_rank_map_moves_owners_too() -> None:
    made = RING.schedule(4, 8, "reduce_scatter", order=[2, 0, 3, 1])
    assert [made.owner(made, rank) for rank in range(4)] == [(2, 4), (6, 8), (0, 2), (4, 6)]
    check(made)


@pytest.mark.parametrize("made", [3, (0, 1, 0, 4), Round([0], [1], [0], [4], True)])  # type: ignore[arg-type]
def test_what_is_no_round_of_arrays_is_told_with_its_maker(made: Any) -> None:
    def astray(schedule: Schedule, program: InRounds) -> Iterator[Any]:
        yield made

    with pytest.raises(
        PluginError, match=r"astray of \S+: a round is .* \(valid: a demitasse\.Round of"
    ):
        check(Algorithm("astray", "", astray).schedule(2, 4))
