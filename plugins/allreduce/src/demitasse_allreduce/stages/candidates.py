"""Which offers are tried before one is chosen, and which one is chosen then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from demitasse import Algorithm
from demitasse_allreduce.algorithms import ALGORITHMS
from demitasse_allreduce.choice import Offer

CANDIDATES, NEAR = 4, 2.0
"""The cheapest way of each of up to CANDIDATES algorithms is tried if its predicted time is at most NEAR
times the least; the cheapest two-level way is tried in any case."""

ALIKE = 1.1
"""A way that was measured to take up to this many times as long as the fastest counts as equally fast:
runs of one algorithm differ as much."""


def candidates(offers: list[Offer], known: Mapping[str, Algorithm] = ALGORITHMS) -> list[Offer]:
    """Return the offers that are worth trying: the cheapest of each algorithm, if it is near the
    cheapest of all, and the cheapest one with two levels of ranks."""
    first: dict[str, Offer] = {}
    for offer in offers:
        first.setdefault(offer.way.algorithm, offer)
    ranked = [*first.values()]
    near = [each for each in ranked if each.seconds <= NEAR * ranked[0].seconds][:CANDIDATES]
    grouped = [each for each in ranked if "groups" in known[each.way.algorithm].options]
    return near + [each for each in grouped[:1] if each not in near]


def steady(offers: list[Offer]) -> list[Offer]:
    """Sort offers, measured ones first: an offer that was not tried is cheaper only as far as
    predictions are off. Measured offers that are about as fast as the fastest are sorted by predicted
    time, so that chance does not decide among equals, and repeated runs add in the same order."""
    least = min((each.measured for each in offers if each.measured is not None), default=0.0)

    def rank(offer: Offer) -> tuple[Any, ...]:
        if offer.measured is None:
            return 2, offer.seconds, offer.way
        if offer.measured > ALIKE * least:
            return 1, offer.measured, offer.way
        return 0, offer.predicted is None, offer.predicted, offer.way

    return sorted(offers, key=rank)
