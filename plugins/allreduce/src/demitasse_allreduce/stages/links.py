"""The links between ranks: as a machine describes them, or as messages were measured."""

from __future__ import annotations

from demitasse import CompositionError, DescriptionError, Machine, Tier, Topology
from demitasse_allreduce.choice import Fit, network_of


def per_node(homes: list[int]) -> int:
    """How many ranks in a row each node has; 1 where nodes have different numbers, or others."""
    size = homes.count(homes[0])
    regular = all(home == rank // size * size for rank, home in enumerate(homes))
    return size if regular and len(homes) % size == 0 else 1


def joined(fits: list[Fit], each: int, ranks: int) -> Topology:
    """The network of measured messages: of ``each`` ranks in a node, and between nodes, whose ranks
    share a link that each of them had a part of."""
    if len(fits) == 1:
        return fits[0].network(ranks)
    inner, outer = fits
    tiers = (
        Tier("node", ranks // each, outer.alpha, each * outer.network(1).tiers[0].bandwidth, each),
        Tier("rank", each, inner.alpha, inner.network(1).tiers[0].bandwidth),
    )
    return Topology(tiers, tuple(f"{found} (measured)" for found in fits))


def described(machine: Machine | None, ranks: int) -> tuple[Topology | None, str]:
    """The network of a machine's processes, or None and why it describes none for so many."""
    nothing = "the network is not described"
    if machine is None:
        return None, nothing
    try:
        network = network_of(machine)
    except CompositionError:
        return None, nothing
    except DescriptionError as error:  # a part of it is
        return None, str(error)
    if network.endpoints < ranks:
        return None, f"{nothing} for {ranks} processes: {machine.origin} has {network.endpoints}"
    return network, ""
