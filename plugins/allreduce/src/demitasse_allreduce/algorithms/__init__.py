"""This plugin's collectives by name, each for any number of ranks; ``demitasse.check`` proves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from demitasse import (
    Algorithm,
    CompositionError,
    DemitasseError,
    Level,
    Machine,
    PluginError,
    Schedule,
    compose,
    discover,
    unknown,
)
from demitasse_allreduce.algorithms import exchange, trees, two_level

_HALVES = ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather")
_TREES = ("allreduce", "reduce", "broadcast")

ALGORITHMS: Mapping[str, Algorithm] = {
    made.name: made
    for made in (
        Algorithm(
            "ring",
            "parts around a ring: least bytes, most rounds",
            exchange.ring,
            ("allreduce", "reduce_scatter", "allgather"),
            in_turn=exchange.ring_in_turn,
        ),
        Algorithm(
            "recursive-halving-doubling",
            "halves with the farthest rank, quarters nearer, and back (swCaffe)",
            exchange.halving_doubling,
            _HALVES,
            owner=exchange.halving_owner,
        ),
        Algorithm(
            "rabenseifner",
            "halves with the nearest rank, quarters farther, and back (MPICH's default when long)",
            exchange.rabenseifner,
            _HALVES,
            owner=exchange.rabenseifner_owner,
        ),
        Algorithm(
            "recursive-doubling",
            "all of it with ranks at distances 1, 2, 4: fewest rounds",
            exchange.doubling,
        ),
        Algorithm("binomial", "all of it up a binomial tree, and down", trees.binomial, _TREES),
        Algorithm(
            "tree",
            "chunks up a binary tree, and down",
            trees.tree,
            _TREES,
            ("chunks",),
            chunks=trees.pieces,
        ),
        Algorithm(
            "chain",
            "chunks along a chain, and back (S-Caffe's chunked chain)",
            trees.chain,
            _TREES,
            ("chunks",),
            chunks=trees.pieces,
            most_ranks=1024,
        ),
        Algorithm(
            "chain-chain",
            "a chunked chain in each group, then one of their leaders (S-Caffe's CC)",
            trees.chain_chain,
            _TREES,
            ("chunks", "groups"),
            chunks=trees.pieces,
            most_ranks=4096,
        ),
        Algorithm(
            "chain-binomial",
            "a chunked chain in each group, then their leaders' binomial tree (S-Caffe's CB)",
            trees.chain_binomial,
            _TREES,
            ("chunks", "groups"),
            chunks=trees.pieces,
            most_ranks=4096,
        ),
        Algorithm(
            "two-level",
            "slices inside groups while others cross the trunk: for over-subscribed networks",
            two_level.two_level,
            ("allreduce",),
            ("chunks", "groups"),
            chunks=two_level.pieces,
            most_ranks=1024,
        ),
    )
}
"""This plugin's algorithms by name."""


def algorithm(name: str, where: object = None, known: Mapping[str, Algorithm] = ALGORITHMS) -> Algorithm:
    """Return the algorithm of that name. Raises CompositionError, which lists the ``known`` ones, for
    any other name."""
    if name not in known:
        raise CompositionError(unknown("algorithm", name, known, where))
    return known[name]


@cache
def others() -> Mapping[str, Algorithm]:
    """Return the algorithms that other installed plugins offer through the hook ``collectives``, for
    callers without a runtime. Only this call imports those plugins. A plugin that cannot be used is left
    out; ``demitasse doctor`` reports it."""
    found: dict[str, Algorithm] = {}
    for manifest in discover():
        if "collectives" not in manifest.roles or manifest.name == "allreduce":
            continue
        # An error in a plugin that nobody asked for is no reason to fail.
        with (
            suppress(DemitasseError),
            compose(Machine("any", (Level("machine"),)), [manifest.name]) as one,
        ):
            found = {**given(one.composition.offered("collectives")), **found}
    return {name: made for name, made in found.items() if name not in ALGORITHMS}


def installed(name: str, where: object = None, besides: Iterable[str] = ()) -> Algorithm:
    """Return the algorithm of that name: this plugin's or, if it has none, another installed plugin's.
    Raises CompositionError for any other name; the error lists the algorithms and the names in
    ``besides``, which are valid too."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name not in (more := others()):
        raise CompositionError(unknown("algorithm", name, (*besides, *ALGORITHMS, *more), where))
    return more[name]


def given(collectives: Mapping[str, Any]) -> Mapping[str, Algorithm]:
    """Return the algorithms that plugins offered through the hook ``collectives``, each renamed to the
    name under which it was offered; this plugin's own if none was offered. Raises PluginError for
    anything that is not an Algorithm."""
    for name, made in collectives.items():
        if not isinstance(made, Algorithm):
            raise PluginError(f"algorithm {name!r} of a collective: {made!r:.99} (valid: an Algorithm)")
    named = (
        (name, made if made.name == name else replace(made, name=name))
        for name, made in collectives.items()
    )
    return dict(named) or ALGORITHMS


def schedule(
    name: str,
    ranks: int,
    size: int,
    *,
    goal: str = "allreduce",
    root: int = 0,
    groups: int | Iterable[Iterable[int]] | None = None,
    chunks: int | None = None,
    order: Iterable[int] | None = None,
) -> Schedule:
    """Return the schedule of a named algorithm for ``size`` elements and ``ranks`` ranks. ``groups``
    are the groups of nearby ranks for two-level algorithms (an int: that many consecutive ranks each),
    ``chunks`` is the number of pieces in a pipeline, and ``order[i]`` is the rank that plays the role
    of rank i (a rank map). Raises CompositionError for an unknown algorithm, PlanError for a goal or a
    number that it does not support."""
    return installed(name).schedule(ranks, size, goal, root, groups, chunks, order)
