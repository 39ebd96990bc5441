"""What rounds of messages cost on networks, compared with events, bounds, and sums done by hand."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import Level, Link, Machine, Quantity
from demitasse.errors import CompositionError, DescriptionError
from demitasse_schedules import (
    Algorithm,
    InRounds,
    Move,
    Round,
    Schedule,
    Tier,
    Topology,
    cost,
    play,
    rounds_of,
    topology,
)

ALPHA, BANDWIDTH = 1e-6, 12e9


def halving(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    n, size, rank = schedule.ranks, schedule.size, np.arange(schedule.ranks)
    rounds, distance = [], n // 2
    while distance:
        first = (rank ^ distance) // distance * distance
        rounds.append(
            Round(rank, rank ^ distance, size * first // n, size * (first + distance) // n, True)
        )
        distance //= 2
    yield from rounds
    yield from (each.mirrored() for each in reversed(rounds))


def everyone(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Each rank sends everything it has to all others at once."""
    source, target = np.nonzero(1 - np.eye(schedule.ranks, dtype=int))
    yield Round(source, target, source * 0, source * 0 + schedule.size, True)


HALVING = Algorithm("halving", "", halving)


def supernodes(p: int, q: int, oversubscription: float = 4) -> Topology:
    """Return a network of p nodes in full supernodes of q."""
    groups = Tier("supernode", -(-p // q), ALPHA, BANDWIDTH, oversubscription)
    return Topology((groups, Tier("node", min(p, q), ALPHA, BANDWIDTH)))


def test_halving_over_a_thin_trunk_costs_the_sum_of_its_rounds() -> None:
    network, n = supernodes(8, 4), 8_000_000
    beta = 4 * n / BANDWIDTH
    # Natural order: half of it between supernodes, four pairs on a trunk of one link; then inside.
    natural = cost(halving(HALVING.schedule(8, n), InRounds(halving)), network, network.place(8))
    assert natural.transfer == pytest.approx(2 * (4 / 2 + 1 / 4 + 1 / 8) * beta)
    dealt = cost(HALVING.rounds(8, n), network, network.place(8, "round-robin"))
    assert dealt.transfer == pytest.approx(2 * (1 / 2 + 1 / 4 + 4 / 8) * beta)
    assert dealt.latency == pytest.approx(6 * ALPHA)
    assert dealt.rounds == 6


@pytest.mark.parametrize("order", ["natural", "round-robin"])
def test_rounds_cost_what_their_moves_do_as_events(order: str) -> None:
    network = Topology((Tier("group", 4, 2e-6, 12e9, 4), Tier("node", 4, 1e-6, 12e9)))
    for ranks in (2, 4, 8, 16):
        schedule, place = HALVING.schedule(ranks, 100_000), network.place(ranks, order)
        events = play(schedule, network, place, 4, 1e-10)
        assert cost(rounds_of(schedule), network, place, 4, 1e-10).seconds == pytest.approx(events)


@pytest.mark.parametrize("made", [HALVING, Algorithm("everyone", "", everyone)])
def test_the_total_alone_is_that_of_the_parts(made: Algorithm) -> None:
    network = Topology((Tier("group", 4, 2e-6, 12e9, 4), Tier("node", 4, 1e-6, 12e9)))
    rounds = [*made.rounds(16, 100_000), next(iter(HALVING.rounds(16, 100_000)))._replace(times=5)]
    whole, alone = (cost(rounds, network, network.place(16), 4, 1e-10, parts) for parts in (True, False))
    assert alone.seconds == whole.seconds
    assert whole.seconds == pytest.approx(whole.latency + whole.transfer + whole.reduction)
    assert alone.rounds == whole.rounds
    assert np.isnan([alone.latency, alone.transfer, alone.reduction]).all()


def test_rounds_are_found_for_programs_that_have_none() -> None:
    def chain(schedule: Schedule, rank: int) -> Iterator[Move]:
        if rank + 1 < schedule.ranks:
            yield Move("reduce", rank + 1, 0, schedule.size)
        if rank:
            yield Move("send", rank - 1, 0, schedule.size)

    schedule, network = Schedule("chain", 5, 1000, chain, "reduce"), supernodes(5, 5)
    assert [each.source.tolist() for each in rounds_of(schedule)] == [[4], [3], [2], [1]]
    found = cost(rounds_of(schedule), network, network.place(5), 4)
    assert found.seconds == pytest.approx(4 * (ALPHA + 4000 / BANDWIDTH))


def test_messages_of_one_rank_share_its_link_and_go_one_after_the_other() -> None:
    network, n = supernodes(4, 4), 1_000_000
    found = cost(everyone(Schedule("all", 4, n, InRounds(everyone)), InRounds(everyone)), network,
                 network.place(4), 4, 1e-10)  # fmt: skip
    assert found.transfer == pytest.approx(3 * 4 * n / BANDWIDTH)
    assert found.latency == pytest.approx(3 * ALPHA)
    assert found.reduction == pytest.approx(3 * 4 * n * 1e-10)


def test_equal_rounds_cost_the_same_told_once() -> None:
    network, rank = supernodes(6, 6), np.arange(6)
    each = Round(rank, (rank + 1) % 6, rank * 0, rank * 0 + 1000, True)
    place = network.place(6)
    one_by_one = cost([each] * 5, network, place, 4, 1e-9)
    assert cost([each._replace(times=5)], network, place, 4, 1e-9).seconds == pytest.approx(
        one_by_one.seconds
    )


@settings(max_examples=examples(40))
@given(power=st.integers(1, 7), size=st.integers(1, 10**7), scale=st.integers(2, 8))
def test_more_bytes_slower_links_and_less_room_never_cost_less(
    power: int, size: int, scale: int
) -> None:
    def seconds(count: int, over: float, speed: float) -> float:
        tiers = (Tier("a", 20, ALPHA, BANDWIDTH / speed, over), Tier("b", 10, ALPHA, BANDWIDTH / speed))
        network = Topology(tiers)
        rounds = HALVING.rounds(1 << power, count)
        return cost(rounds, network, network.place(1 << power), 4, 1e-10).seconds

    base = seconds(size, 2, 1)
    assert seconds(size * scale, 2, 1) >= base
    assert seconds(size, 2 * scale, 1) >= base
    assert seconds(size, 2, scale) > base


@settings(max_examples=examples(40))
@given(ranks=st.integers(1, 60), order=st.sampled_from(["natural", "round-robin"]))
def test_every_rank_has_an_endpoint_of_its_own(ranks: int, order: str) -> None:
    network = supernodes(60, 10)
    assert sorted(network.place(ranks, order).tolist()) == list(range(ranks))
    groups = network.groups(ranks)
    assert [rank for group in groups for rank in group] == list(range(ranks))
    assert {len(group) for group in groups[:-1]} <= {10}


def test_three_tiers_cost_each_message_by_the_outermost_link_it_passes() -> None:
    tiers = (Tier("row", 2, 4e-6, 1e9), Tier("rack", 2, 2e-6, 2e9), Tier("node", 2, 1e-6, 4e9))
    network = Topology(tiers)
    source, target = np.array([0, 2, 3]), np.array([1, 4, 7])
    latency, seconds = network.messages(source[:1], target[:1], np.array([4e9]))
    assert (latency.tolist(), seconds.tolist()) == ([1e-6], [1.0])
    latency, seconds = network.messages(source[1:], target[1:], np.array([1e9, 1e9]))
    assert (latency.tolist(), seconds.tolist()) == ([4e-6] * 2, [1.0] * 2)
    latency, seconds = network.messages(np.array([0]), np.array([2]), np.array([4e9]))
    assert (latency.tolist(), seconds.tolist()) == ([2e-6], [2.0])


def test_siblings_that_are_endpoints_share_what_joins_them() -> None:
    network = Topology((Tier("node", 4, ALPHA, 1e9, 2),))
    rank = np.arange(4)
    _, seconds = network.messages(rank, (rank + 1) % 4, np.full(4, 1e9))
    assert seconds.tolist() == pytest.approx([2.0] * 4)


def test_an_unknown_order_or_number_of_ranks_is_named() -> None:
    with pytest.raises(CompositionError, match="round-robin"):
        supernodes(8, 4).place(8, "roundrobin")
    with pytest.raises(CompositionError, match=r"9 ranks \(valid: 1 to 8"):
        supernodes(8, 4).place(9)


def test_a_link_that_is_not_described_is_named_with_its_level() -> None:
    link = Link(Quantity.parse("1 us"), None)
    levels = (Level("rack", 2, link=link), Level("node", 4, workers="mpi"))
    machine = Machine("made-up", levels)
    with pytest.raises(DescriptionError, match=r"level 'rack' has no link\.bandwidth"):
        topology(machine, machine.levels)
    with pytest.raises(DescriptionError, match="level 'node' has no link,"):
        topology(machine, machine.levels[1:])


@pytest.mark.parametrize(("racks", "nodes"), [(1, 4), (2, 2), (4, 1)])
def test_a_tier_around_makes_no_trunk_wider(racks: int, nodes: int) -> None:
    """Four ranks of a node send 1 MB each to another node: 4 MB leave by a trunk of 10 MB/s; the node
    has four endpoints of 10 MB/s each."""
    around = Tier("rack", racks, 1e-6, 10e6)
    tiers = (Tier("node", nodes, 1e-6, 10e6, 4), Tier("rank", 4, 1e-6, 10e6))
    network = Topology((around, *tiers) if racks > 1 else tiers)
    source = np.arange(4)
    _, seconds = network.messages(source, source + 4 * (network.endpoints // 4 - 1), np.full(4, 1e6))
    np.testing.assert_allclose(seconds, 0.4)
    _, within = network.messages(source[:1], source[1:2], np.full(1, 1e6))
    np.testing.assert_allclose(within, 0.1)


def test_levels_of_one_sibling_are_passed_by_what_leaves_them() -> None:
    link = Link(Quantity.parse("1 us"), Quantity.parse("10 MB/s"), 4)
    rack, node, rank = (Level(n, c, link=link) for n, c in (("rack", 2), ("node", 1), ("rank", 4)))
    machine = Machine("m", (rack, node, rank))
    made = topology(machine, machine.levels)
    assert [(tier.name, tier.count) for tier in made.tiers] == [("rack", 2), ("node", 1), ("rank", 4)]
    trunks = [line.partition("oversubscription 4")[2] for line in made.sources]
    whole = ": 0.01 GB/s for all 4 of level 'rank' in a "
    assert trunks == [f"{whole}rack", f"{whole}node", ""]
    unlinked = replace(node, link=None)
    assert [tier.name for tier in topology(machine, (rack, unlinked, rank)).tiers] == ["rack", "rank"]
    alone = topology(machine, (replace(rack, count=1), rank))
    assert [tier.name for tier in alone.tiers] == ["rank"], "nothing leaves the outermost"
