"""The algorithms that a synchronisation will choose by size and cost, predicted without any message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from demitasse import CompositionError, DescriptionError
from demitasse_allreduce.choice import AUTO, human, network_of
from demitasse_allreduce.stages.options import OVERLAP, ROOTED, STAGES, Options

if TYPE_CHECKING:
    from demitasse import Machine
    from demitasse_allreduce.stages.network import Network

LADDER = (4 * 2**10, 64 * 2**10, 2**20, 16 * 2**20, 256 * 2**20)
"""Sizes in bytes for which a forecast names an algorithm."""


def forecast(network: Network, goals: Sequence[str]) -> list[str]:
    """Return a line for each goal and size of the LADDER: the cheapest way, its predicted time, and the
    next algorithm's; for two levels of communicators, those of each level. No rank waits for another."""
    if not network.described:
        names = [name for goal in goals for _, _, name in network.levels(goal)]
        taken = "what costs least" if AUTO in names else ", ".join(dict.fromkeys(names))
        return [
            f"{network.lacking}; latency and bandwidth are measured when the first sum is made, and "
            f"then {taken} is taken"
        ]
    lines = [
        f"{goal} of {size:,} bytes: "
        + ", then ".join(_cheapest(network, size, *level) for level in levels)
        for goal in goals
        if (levels := network.levels(goal))
        for size in LADDER
    ]
    if any(name == AUTO for goal in goals for _, _, name in network.levels(goal)):
        count = network.trials
        lines.append(
            f"the cheapest few are run {count} times for each size that is summed, and the quickest is "
            f"taken (trials = {count})"
            if count
            else "what costs least is taken (trials = 0)"
        )
    return lines


class Described:
    """A stand-in for a communicator, with mpi4py's names, of ranks that a description has but that do
    not run."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def Get_size(self) -> int:  # noqa: N802
        return self._ranks

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Split(self, color: int, key: int) -> Described:  # noqa: N802
        return self


def foretold(machine: Machine | None, options: Options, item: int) -> list[str]:
    """Return what the processes of a described machine would do, by ``forecast``; an empty list if the
    machine describes only one process, or no links between them."""
    from demitasse_allreduce.stages.network import Network

    try:
        network = network_of(machine) if machine is not None else None
    except (CompositionError, DescriptionError):
        network = None
    if network is None or network.endpoints < 2:
        return []
    ranks, inner = network.endpoints, network.endpoints // network.tiers[0].count
    stage = options.stage or OVERLAP
    homes = [rank // inner for rank in range(ranks)]
    made = Network(Described(ranks), options, machine, lambda: None, homes, item)
    head = f"with the {ranks:,} processes that {machine.name if machine else '?'} describes:"
    goals = ("broadcast", "reduce") if stage in ROOTED else ("allreduce",)
    return [head, f"stage {stage}: {STAGES[stage]}", *made.notes, *forecast(made, goals)]


def _cheapest(network: Network, size: int, goal: str, ranks: int, name: str) -> str:
    chooser = network.chooser(ranks, name)
    part = f" for {goal} by {ranks} ranks" if ranks != network.ranks else ""
    offers = chooser.offers(size, goal)
    if not offers:  # too few ranks for more than one group of a two-level algorithm
        return name + part
    best = offers[0]
    others = (each for each in offers if each.way.algorithm != best.way.algorithm)
    more = next((f" (next: {each.way}, {human(each.seconds)})" for each in others), "")
    return f"{best.way}{part}, predicted {human(best.seconds)}{more}"
