"""Which offers are run before one is taken, and which is taken then."""

from __future__ import annotations

from collections.abc import Mapping

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
    """With those first that were measured about as quick as the quickest, in the order of what was
    predicted: chance does not decide among equals, and runs add in the same order."""
    least = min((each.measured for each in offers if each.measured is not None), default=0.0)
    equals = [each for each in offers if each.measured is not None and each.measured <= ALIKE * least]
    if not equals or offers[0].measured is None:
        return offers
    equals.sort(key=lambda each: (each.predicted is None, each.predicted, each.way))
    return equals + [each for each in offers if each not in equals]
