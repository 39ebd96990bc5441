"""What a network between ranks is found to be, and which algorithms are run on it first."""

from __future__ import annotations

import pytest

from demitasse_allreduce.choice import Chooser, Fit, Offer, Way
from demitasse_allreduce.stages.network import CANDIDATES, NEAR, candidates, joined, per_node, steady

FAST, SLOW = Fit(1e-6, 1e-10), Fit(5e-5, 4e-8)


@pytest.mark.parametrize(
    ("homes", "each"),
    [
        ([0, 0, 0, 0], 4),
        ([0, 0, 2, 2], 2),
        ([0, 1, 2], 1),
        ([0, 0, 2], 1),
        ([0, 1, 0, 1], 1),
    ],
)
def test_nodes_count_where_they_have_as_many_ranks_in_a_row(homes: list[int], each: int) -> None:
    assert per_node(homes) == each


def test_ranks_of_a_node_share_the_link_of_which_each_was_measured_to_have_a_part() -> None:
    network = joined([FAST, SLOW], 4, 16)
    assert [(tier.name, tier.count) for tier in network.tiers] == [("node", 4), ("rank", 4)]
    inner, outer = network.tiers[1], network.tiers[0]
    assert (inner.latency, outer.latency) == (FAST.alpha, SLOW.alpha)
    assert inner.bandwidth == pytest.approx(1 / FAST.beta)
    # All four at once have a quarter each: what was measured.
    assert outer.bandwidth / outer.oversubscription == pytest.approx(1 / SLOW.beta)


def test_between_such_nodes_two_levels_are_cheapest() -> None:
    """Four ranks that share a slow link: a flat algorithm sends each rank's part over it."""
    chooser = Chooser(joined([FAST, SLOW], 4, 16), 16)
    first: dict[str, float] = {}
    for offer in chooser.offers(2**20, "reduce"):
        first.setdefault(offer.way.algorithm, offer.seconds)
    assert first["chain-chain"] < first["binomial"]
    assert first["chain-binomial"] < first["binomial"]


def test_the_cheapest_of_each_algorithm_and_one_with_two_levels_are_run() -> None:
    names = ["ring", "ring", "recursive-halving-doubling", "tree", "binomial", "rabenseifner"]
    offers = [
        Offer(Way(name, chunks=i), 1.0 + i / 10, None, 1.0 + i / 10) for i, name in enumerate(names)
    ]
    offers += [Offer(Way("two-level"), 5.0, None, 5.0), Offer(Way("chain-chain"), 6.0, None, 6.0)]
    found = [offer.way.algorithm for offer in candidates(offers)]
    assert found == ["ring", "recursive-halving-doubling", "tree", "binomial", "two-level"]
    assert candidates(offers)[0].way.chunks == 0
    assert len(found) == CANDIDATES + 1
    far = [Offer(Way("ring"), 1.0, None, 1.0), Offer(Way("tree"), NEAR + 1, None, NEAR + 1)]
    assert [offer.way.algorithm for offer in candidates(far)] == ["ring"]


def test_among_equals_the_prediction_decides() -> None:
    ring, tree, halving = (Way(name) for name in ("ring", "tree", "recursive-halving-doubling"))
    measured = [Offer(tree, 3.0, 1.0, 1.0), Offer(ring, 2.0, 1.05, 1.05), Offer(halving, 1.0, 1.4, 1.4)]
    assert [offer.way for offer in steady(measured)] == [ring, tree, halving]
    assert steady(measured[2:]) == measured[2:]
    by_cost = [Offer(ring, 1.0, None, 1.0), Offer(tree, 2.0, None, 2.0)]
    assert steady(by_cost) == by_cost
