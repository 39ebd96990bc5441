"""Which offers are run before one is taken, and which is taken then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from demitasse import Algorithm
from demitasse_allreduce.algorithms import ALGORITHMS
from demitasse_allreduce.choice import Offer

CANDIDATES, NEAR = 4, 2.0
"""Of so many algorithms the cheapest way is run, where its predicted time is no more than so many times
the least; and the cheapest of those with two levels in any case."""

ALIKE = 1.1
"""Who is measured to take so many times as long as the quickest is as quick: so far apart are runs of
one algorithm."""


def candidates(offers: list[Offer], known: Mapping[str, Algorithm] = ALGORITHMS) -> list[Offer]:
    """Those that are worth a run: the cheapest of each algorithm, as far as they are near the cheapest
    of all, and the cheapest with two levels of ranks."""
    first: dict[str, Offer] = {}
    for offer in offers:
        first.setdefault(offer.way.algorithm, offer)
    ranked = [*first.values()]
    near = [each for each in ranked if each.seconds <= NEAR * ranked[0].seconds][:CANDIDATES]
    grouped = [each for each in ranked if "groups" in known[each.way.algorithm].options]
    return near + [each for each in grouped[:1] if each not in near]


def steady(offers: list[Offer]) -> list[Offer]:
    """With those first that were measured: what was predicted to cost more than they is cheaper at most
    by how far off they were, and has not been run. Of them those about as quick as the quickest come in
    the order of what was predicted: chance does not decide among equals, and runs add in one order."""
    least = min((each.measured for each in offers if each.measured is not None), default=0.0)

    def rank(offer: Offer) -> tuple[Any, ...]:
        if offer.measured is None:
            return 2, offer.seconds, offer.way
        if offer.measured > ALIKE * least:
            return 1, offer.measured, offer.way
        return 0, offer.predicted is None, offer.predicted, offer.way

    return sorted(offers, key=rank)
