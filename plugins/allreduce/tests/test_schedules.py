"""Every algorithm, for any number of ranks and elements: proved, run, and compared with the
textbook."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import (
    CompositionError,
    InRounds,
    PlanError,
    Schedule,
    Tier,
    Topology,
    check,
    compose,
    cost,
    rounds_of,
    run_threads,
)
from demitasse_allreduce.algorithms import ALGORITHMS, algorithm, schedule

GOALS = [(name, goal) for name, made in ALGORITHMS.items() for goal in made.goals]
LOGARITHMIC = [
    (name, goal)
    for name, goal in GOALS
    if name in ("recursive-halving-doubling", "rabenseifner", "recursive-doubling", "binomial", "tree")
]
SLOW = pytest.mark.slow
HALVES = "recursive-halving-doubling"


def _long(goals: list[tuple[str, str]], *left_out: str) -> list[Any]:
    """Mark slow tests. Each case takes up to 2 s, and all together take too long. Slow are all goals
    except allreduce, and algorithms that take longest or are like another one."""
    return [
        pytest.param(name, goal, marks=() if goal == "allreduce" and name not in left_out else SLOW)
        for name, goal in goals
    ]


def test_the_plugin_offers_its_algorithms_by_the_public_hook() -> None:
    with compose("auto", ["+allreduce"]) as runtime:
        offers = dict(runtime.composition.serving("collectives"))
        assert offers["allreduce"]() == ALGORITHMS


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([*range(1, 19), 31, 32, 33, 48, 63, 64], id="few and those at edges"),
        pytest.param([*range(19, 31), *range(34, 48), *range(49, 63)], id="others", marks=SLOW),
    ],
)
@pytest.mark.parametrize(("name", "goal"), GOALS)
def test_each_is_proved_for_1_to_64_ranks_with_and_without_buffers(
    name: str, goal: str, numbers: list[int]
) -> None:
    """The fast cases are all numbers up to 18, and above them those next to powers of two; the slow
    cases are all others."""
    for ranks in numbers:
        for size in {ranks - 1, 100}:
            made = schedule(name, ranks, size, goal=goal, root=ranks // 2)
            assert check(made).identical == (goal == "allreduce")
            check(made, buffered=False)


@pytest.mark.parametrize(("name", "goal"), GOALS)
def test_each_is_proved_for_few_elements_many_chunks_and_odd_groups(name: str, goal: str) -> None:
    for ranks in (1, 2, 3, 7, 12):
        for size in (0, 1, 2, 50):
            for chunks in (1, 2, 5):
                for groups in (1, 3, 12, [range(ranks // 3), range(ranks // 3, ranks)]):
                    check(schedule(name, ranks, size, goal=goal, chunks=chunks, groups=groups))


@pytest.mark.parametrize(("name", "goal"), _long(GOALS))
def test_each_is_proved_for_256_ranks(name: str, goal: str) -> None:
    proof = check(schedule(name, 256, 10_000_000, goal=goal, root=250))
    assert proof.messages >= 255


@pytest.mark.parametrize(("name", "goal"), _long(GOALS, "ring", "two-level"))
def test_each_is_proved_for_1024_ranks(name: str, goal: str) -> None:
    """The slow ones have one round for each rank."""
    proof = check(schedule(name, 1024, 10_000_000, goal=goal, root=1000))
    assert proof.messages >= 1023


@pytest.mark.parametrize(("name", "goal"), _long(LOGARITHMIC, "rabenseifner", "tree"))
def test_logarithmic_ones_are_proved_for_all_of_taihulight(name: str, goal: str) -> None:
    proof = check(schedule(name, 40_960, 10_000_000, goal=goal, root=40_000))
    assert proof.messages >= 40_959


@st.composite
def schedules(draw: Callable[..., Any]) -> Schedule:
    name, goal = draw(st.sampled_from(GOALS))
    ranks = draw(st.integers(1, 14))
    options: dict[str, Any] = {"chunks": draw(st.none() | st.integers(1, 6))}
    if "groups" in ALGORITHMS[name].options:
        line, cut = draw(st.permutations(range(ranks))), draw(st.integers(0, ranks))
        options["groups"] = draw(st.sampled_from([None, 3, [line[:cut], line[cut:]]]))
    else:
        options["order"] = draw(st.none() | st.permutations(range(ranks)))
    root = draw(st.integers(0, ranks - 1))
    return schedule(name, ranks, draw(st.integers(0, 300)), goal=goal, root=root, **options)


@given(schedules(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(150))
def test_run_by_threads_each_gives_what_its_goal_promises(made: Schedule, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((made.ranks, made.size))
    total, buffers = vectors.sum(axis=0), list(vectors.copy())
    run_threads(made, buffers)
    parts = [slice(*made.owner(made, rank)) for rank in range(made.ranks)]
    for rank, buffer in enumerate(buffers):
        if made.goal == "allreduce" or (made.goal == "reduce" and rank == made.root):
            np.testing.assert_allclose(buffer, total, rtol=1e-12, atol=1e-12)
        elif made.goal == "broadcast":
            np.testing.assert_array_equal(buffer, vectors[made.root])
        elif made.goal == "reduce_scatter":
            mine = parts[rank]
            np.testing.assert_allclose(buffer[mine], total[mine], rtol=1e-12, atol=1e-12)
        elif made.goal == "allgather":
            for owner, part in enumerate(parts):
                np.testing.assert_array_equal(buffer[part], vectors[owner, part])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("ranks", [3, 8, 13])
def test_float32_sums_are_the_same_bits_on_all_ranks(name: str, ranks: int) -> None:
    generator = np.random.default_rng(ranks)
    values = generator.standard_normal((ranks, 1009)) * 10.0 ** generator.integers(-6, 6, (ranks, 1009))
    buffers = list(values.astype(np.float32))
    run_threads(schedule(name, ranks, 1009, chunks=3), buffers)
    assert len({buffer.tobytes() for buffer in buffers}) == 1


def needs_all(made: Schedule) -> bool:
    """Return whether all messages carry something, to ranks that lack it. A broadcast that first
    scatters then gathers everywhere, also at ranks that have the data already."""
    scatters = made.goal == "broadcast" and made.algorithm in (
        "recursive-halving-doubling",
        "rabenseifner",
    )
    return made.size >= 6 * made.ranks and made.ranks > 1 and not scatters


@given(schedules().filter(needs_all), st.data())
@settings(max_examples=examples(100))
def test_no_message_can_be_left_out_unnoticed(made: Schedule, data: Any) -> None:
    rounds = list(rounds_of(made))
    number = data.draw(st.integers(0, len(rounds) - 1))
    which = data.draw(st.integers(0, len(rounds[number].source) - 1))
    rounds[number] = rounds[number].kept(np.delete(np.arange(len(rounds[number].source)), which))
    broken = Schedule(
        made.algorithm,
        made.ranks,
        made.size,
        InRounds(lambda schedule, program: rounds),
        made.goal,
        made.root,
        lambda schedule, rank: made.owner(made, rank),
    )
    with pytest.raises(PlanError, match=rf"{made.algorithm}: rank \d+, .*(missing|doubled|other bits)"):
        check(broken)


# Against the textbook


def messages(name: str, ranks: int, size: int, **options: Any) -> tuple[int, int, int]:
    """Return (rounds, the most elements that a rank sends, elements in all)."""
    sent, rounds = np.zeros(ranks, int), list(rounds_of(schedule(name, ranks, size, **options)))
    for each in rounds:
        np.add.at(sent, each.source, each.elements)
    return len(rounds), int(sent.max()), int(sent.sum())


@pytest.mark.parametrize(
    ("name", "options", "rounds", "most"),
    [
        ("ring", {}, 14, 14 / 8),
        ("recursive-halving-doubling", {}, 6, 14 / 8),
        ("rabenseifner", {}, 6, 14 / 8),
        ("recursive-doubling", {}, 3, 3),
        ("binomial", {}, 6, 3),
        ("chain", {"chunks": 4}, 2 * (4 + 8 - 2), 2),
        ("tree", {"chunks": 4}, 2 * (4 + 3 - 1), 3),
        ("chain-chain", {"chunks": 4, "groups": 4}, 2 * ((4 + 4 - 2) + (4 + 2 - 2)), 2),
        ("chain-binomial", {"chunks": 4, "groups": 2}, 2 * (4 + 2), 3),
        ("two-level", {"chunks": 4, "groups": 4}, 4 + 3, 14 / 8),
        ("two-level", {"chunks": 1, "groups": 2}, 1 + 3, 14 / 8),
    ],
)
def test_rounds_and_bytes_of_a_rank_are_those_of_the_textbook(
    name: str, options: dict[str, Any], rounds: int, most: float
) -> None:
    size = 8 * 8 * 60
    assert messages(name, 8, size, **options)[:2] == (rounds, most * size)


def test_reductions_to_a_root_send_as_little_as_can_be() -> None:
    for name in ("recursive-halving-doubling", "rabenseifner"):
        assert messages(name, 8, 800, goal="reduce", root=3)[1] == 700 + 400
        assert messages(name, 8, 800, goal="broadcast", root=3)[0] == 6
    for name in ("binomial", "chain", "tree", "chain-chain", "chain-binomial"):
        assert messages(name, 11, 800, goal="reduce", root=7)[2] == 10 * 800


def test_rabenseifner_and_swcaffe_exchange_halves_with_different_neighbours() -> None:
    def distances(name: str) -> list[tuple[int, int]]:
        rounds = list(rounds_of(schedule(name, 8, 80)))
        return [(int(each.source[0] ^ each.target[0]), int(each.elements[0])) for each in rounds[:3]]

    assert distances("recursive-halving-doubling") == [(4, 40), (2, 20), (1, 10)]
    assert distances("rabenseifner") == [(1, 40), (2, 20), (4, 10)]


def test_rabenseifners_fold_adds_half_as_much() -> None:
    folds = {
        name: next(iter(rounds_of(schedule(name, 6, 100)))).elements.tolist()
        for name in ("recursive-halving-doubling", "rabenseifner")
    }
    assert folds == {"recursive-halving-doubling": [100, 100], "rabenseifner": [50] * 4}


def two_supernodes(oversubscription: float) -> Topology:
    return Topology((Tier("supernode", 2, 1e-6, 1e9, oversubscription), Tier("host", 4, 1e-6, 1e9)))


@pytest.mark.parametrize(("oversubscription", "ring", "two_level"), [(4, 1.75, 1.75), (8, 3.5, 2.0)])
def test_the_two_level_pipeline_spares_the_trunk(
    oversubscription: float, ring: float, two_level: float
) -> None:
    network, size = two_supernodes(oversubscription), 8_000_000
    beta = 4 * size / 1e9
    found = {
        name: cost(ALGORITHMS[name].rounds(8, size, **options), network, network.place(8)).transfer
        / beta
        for name, options in {
            "ring": {},
            "two-level": {"groups": network.groups(8), "chunks": 64},
        }.items()
    }
    assert found["ring"] == pytest.approx(ring, rel=0.001)
    assert found["two-level"] == pytest.approx(two_level, rel=0.05)


def textbook(name: str, p: int, n: float, alpha: float, beta: float, gamma: float, chunks: int) -> float:
    """Return the seconds of an allreduce of n bytes by p ranks on equal links: Thakur, Rabenseifner and
    Gropp (2005), section 4, for all but the chain (S-Caffe, section 5)."""
    turns = math.ceil(math.log2(p))
    part, piece = (p - 1) / p * n, n / chunks
    return {
        "ring": 2 * (p - 1) * alpha + 2 * part * beta + part * gamma,
        "recursive-halving-doubling": 2 * turns * alpha + 2 * part * beta + part * gamma,
        "rabenseifner": 2 * turns * alpha + 2 * part * beta + part * gamma,
        "recursive-doubling": turns * (alpha + n * beta + n * gamma),
        "binomial": turns * (2 * alpha + 2 * n * beta + n * gamma),
        "chain": (p - 2 + chunks) * (2 * alpha + 2 * piece * beta + piece * gamma),
    }[name]


@given(
    st.sampled_from(["ring", "binomial", "chain", *("recursive-doubling", "rabenseifner") * 2, HALVES]),
    st.integers(2, 40),
    st.integers(1, 10**6),
    st.sampled_from([0.0, 1e-6, 5e-5]),
    st.sampled_from([1e8, 12.5e9]),
    st.sampled_from([0.0, 1e-10, 1e-8]),
    st.integers(1, 9),
)
@settings(max_examples=examples(120))
def test_on_equal_links_each_costs_what_the_textbook_says(
    name: str, p: int, part: int, alpha: float, bandwidth: float, gamma: float, chunks: int
) -> None:
    if name in ("recursive-doubling", "rabenseifner", HALVES):
        p = 1 << p % 6 + 1
    size = part * p * chunks
    network = Topology((Tier("node", p, alpha, bandwidth),))
    more = {"chunks": chunks} if name == "chain" else {}
    rounds = ALGORITHMS[name].rounds(p, size, **more)
    found = cost(rounds, network, network.place(p), 4, gamma)
    expected = textbook(name, p, 4 * size, alpha, 1 / bandwidth, gamma, chunks)
    assert found.seconds == pytest.approx(expected, rel=1e-9)
    assert found.seconds == pytest.approx(found.latency + found.transfer + found.reduction)


def test_equal_rounds_told_once_cost_what_they_do_one_by_one() -> None:
    network = two_supernodes(4)
    for goal in ("allreduce", "reduce_scatter", "allgather"):
        made = ALGORITHMS["ring"]
        told = cost(made.rounds(8, 8000, goal=goal), network, network.place(8), 4, 1e-10)
        listed = cost(rounds_of(made.schedule(8, 8000, goal)), network, network.place(8), 4, 1e-10)
        assert told.seconds == pytest.approx(listed.seconds)
        assert told.rounds == listed.rounds


def test_mistakes_are_named_with_what_is_valid() -> None:
    with pytest.raises(CompositionError, match="unknown algorithm 'rign'; did you mean 'ring'"):
        algorithm("rign")
    with pytest.raises(PlanError, match="recursive-doubling: unknown goal 'reduce'"):
        schedule("recursive-doubling", 4, 10, goal="reduce")
    with pytest.raises(PlanError, match=r"two-level: groups .* \(valid: each of 4 ranks in exactly one"):
        schedule("two-level", 4, 10, groups=[[0, 1], [1, 2, 3]])
    with pytest.raises(PlanError, match="chain-chain: groups of 0 ranks"):
        schedule("chain-chain", 4, 10, groups=0)
    with pytest.raises(PlanError, match="two-level: its groups map the ranks"):
        schedule("two-level", 4, 10, order=[3, 2, 1, 0])
