"""Collectives: schedules that are proved, and their costs beside equations and events."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import CompositionError, check
from demitasse_simulator.algorithms import ALGORITHMS, algorithm, rounds_of
from demitasse_simulator.collectives import Exchange, cost, play
from demitasse_simulator.topology import Tier, Topology

ALPHA, BANDWIDTH, GAMMA = 1e-6, 12e9, 3 / 112e9
SIZE = 97_700_000 // 4


def supernodes(p: int, q: int, oversubscription: float = 4) -> Topology:
    """p nodes in full supernodes of q."""
    groups = Tier("supernode", -(-p // q), ALPHA, BANDWIDTH, oversubscription)
    return Topology((groups, Tier("node", min(p, q), ALPHA, BANDWIDTH)))


def exchange(p: int, q: int, order: str, network: Topology | None = None) -> float:
    network = network or supernodes(p, q)
    rounds = algorithm("recursive-halving-doubling").rounds(p, SIZE)
    return cost(rounds, network, network.place(p, order), 4, GAMMA).seconds


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 12, 17])
def test_every_algorithm_is_proved_to_add_everything_once(name: str, ranks: int) -> None:
    for size in (0, 1, ranks - 1, 100):
        check(ALGORITHMS[name].schedule(ranks, size))


@pytest.mark.parametrize("q", [4, 16, 64, 256])
@pytest.mark.parametrize("order", ["natural", "round-robin"])
def test_the_simulation_equals_equations_2_to_6_for_powers_of_two(q: int, order: str) -> None:
    for power in range(3, 16):
        p = 1 << power
        closed = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 4 / BANDWIDTH, GAMMA)
        assert exchange(p, q, order) == pytest.approx(closed.allreduce(order), rel=0.001), (p, q)


def test_dealing_ranks_out_to_supernodes_is_what_makes_the_new_exchange_quick() -> None:
    assert exchange(1024, 256, "round-robin") < 0.5 * exchange(1024, 256, "natural")


def test_an_unsaturated_trunk_departs_from_the_equations() -> None:
    # 64 of the 256 nodes of each of four supernodes: together they just fill a quarter of its trunk.
    p, q = 256, 64
    whole = supernodes(1024, 256)
    place = (np.arange(4)[:, None] * 256 + np.arange(q)).reshape(-1)
    rounds = algorithm("recursive-halving-doubling").rounds(p, SIZE)
    simulated = cost(rounds, whole, place, 4, GAMMA).seconds
    saturated = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 4 / BANDWIDTH, GAMMA)
    free = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 1 / BANDWIDTH, GAMMA)
    assert simulated == pytest.approx(free.allreduce(), rel=0.001)
    assert simulated < 0.4 * saturated.allreduce()


def test_ranks_that_are_no_power_of_two_cost_two_more_whole_messages() -> None:
    whole = 4 * SIZE / BANDWIDTH
    more = exchange(48, 64, "natural") - exchange(32, 64, "natural")
    assert more == pytest.approx(2 * (ALPHA + whole) + 4 * SIZE * GAMMA, rel=0.02)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("order", ["natural", "round-robin"])
def test_closed_rounds_agree_with_every_move_as_an_event(name: str, order: str) -> None:
    for ranks in (2, 4, 7, 8, 12, 16):
        # Who shares a trunk with whom is only told where all ranks are in the same round.
        trunk = 4 if ranks & (ranks - 1) == 0 and name != "chain" else 1
        network = Topology((Tier("group", 4, 2e-6, 12e9, trunk), Tier("node", 4, 1e-6, 12e9)))
        made = ALGORITHMS[name]
        place, schedule = network.place(ranks, order), made.schedule(ranks, 100_000)
        events = play(schedule, network, place, 4, 1e-10)
        closed = cost(made.rounds(ranks, 100_000), network, place, 4, 1e-10).seconds
        moves = cost(rounds_of(schedule), network, place, 4, 1e-10).seconds
        # The chain's rounds take the slowest link for all, which it has once.
        near = 0.3 if name == "chain" else 0.001
        assert closed == pytest.approx(events, rel=near), ranks
        assert moves == pytest.approx(events, rel=0.02), ranks


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(ALGORITHMS)),
    ranks=st.integers(1, 40),
    size=st.integers(0, 10_000_000),
    order=st.sampled_from(["natural", "round-robin"]),
)
def test_costs_are_never_less_than_what_bytes_and_additions_take(
    name: str, ranks: int, size: int, order: str
) -> None:
    network = supernodes(40, 10)
    found = cost(ALGORITHMS[name].rounds(ranks, size), network, network.place(ranks, order), 4, GAMMA)
    wire = 2 * 4 * size * (ranks - 1) / ranks / BANDWIDTH
    least = wire if name in ("ring", "recursive-halving-doubling", "rabenseifner") else 0
    assert found.seconds >= least * (1 - 1e-9)
    assert found.seconds == pytest.approx(found.latency + found.transfer + found.reduction)
    assert (found.seconds > 0) == (ranks > 1)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 200),
    size=st.integers(1, 10**7),
    scale=st.integers(2, 8),
)
def test_more_bytes_slower_links_and_less_room_never_cost_less(
    ranks: int, size: int, scale: int
) -> None:
    rounds = ALGORITHMS["recursive-halving-doubling"].rounds

    def seconds(count: int, over: float, speed: float) -> float:
        tiers = (Tier("a", 20, ALPHA, BANDWIDTH / speed, over), Tier("b", 10, ALPHA, BANDWIDTH / speed))
        network = Topology(tiers)
        return cost(rounds(ranks, count), network, network.place(ranks), 4, GAMMA).seconds

    base = seconds(size, 2, 1)
    assert seconds(size * scale, 2, 1) >= base
    assert seconds(size, 2 * scale, 1) >= base
    assert seconds(size, 2, scale) > base


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 60), order=st.sampled_from(["natural", "round-robin"]))
def test_every_rank_has_an_endpoint_of_its_own(ranks: int, order: str) -> None:
    place = supernodes(60, 10).place(ranks, order)
    assert sorted(place.tolist()) == list(range(ranks))


def test_three_tiers_cost_each_message_by_the_outermost_link_it_passes() -> None:
    tiers = (Tier("row", 2, 4e-6, 1e9), Tier("rack", 2, 2e-6, 2e9), Tier("node", 2, 1e-6, 4e9))
    network = Topology(tiers)
    everyone = network.place(8)
    latency, beta = network.flows(everyone[[0, 0, 0]], everyone[[1, 2, 4]])
    assert latency.tolist() == [1e-6, 2e-6, 4e-6]
    assert (1 / beta).tolist() == pytest.approx([4e9, 2e9, 1e9])


def test_forty_thousand_ranks_are_quick() -> None:
    network, start = supernodes(40_960, 256), time.perf_counter()
    for name in ("recursive-halving-doubling", "ring", "binomial"):
        cost(ALGORITHMS[name].rounds(40_960, SIZE), network, network.place(40_960, "round-robin"))
    assert time.perf_counter() - start < 5


def test_an_unknown_algorithm_order_or_number_of_ranks_is_named() -> None:
    with pytest.raises(CompositionError, match="unknown algorithm 'rign'; did you mean 'ring'"):
        algorithm("rign")
    with pytest.raises(CompositionError, match="round-robin"):
        supernodes(8, 4).place(8, "roundrobin")
    with pytest.raises(CompositionError, match=r"9 ranks \(valid: 1 to 8"):
        supernodes(8, 4).place(9)
