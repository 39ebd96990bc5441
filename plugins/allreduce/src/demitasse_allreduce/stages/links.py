"""The links between ranks, from a machine's description or from measured messages."""

from __future__ import annotations

from demitasse import CompositionError, DescriptionError, Machine, Tier, Topology
from demitasse_allreduce.choice import Fit, network_of


def per_node(homes: list[int]) -> int:
    """Return how many consecutive ranks each node has; 1 if nodes have different numbers of ranks, or
    ranks that are not consecutive."""
    size = homes.count(homes[0])
    regular = all(home == rank // size * size for rank, home in enumerate(homes))
    return size if regular and len(homes) % size == 0 else 1


def joined(fits: list[Fit], each: int, ranks: int) -> Topology:
    """Return the network of measured messages. With two fits: the first for messages between the
    ``each`` ranks of a node, the second for messages between nodes, which were sent by all ranks of a
    node at the same time, so that each had a share of the node's link."""
    if len(fits) == 1:
        return fits[0].network(ranks)
    inner, outer = fits
    tiers = (
        Tier("node", ranks // each, outer.alpha, each * outer.network(1).tiers[0].bandwidth, each),
        Tier("rank", each, inner.alpha, inner.network(1).tiers[0].bandwidth),
    )
    return Topology(tiers, tuple(f"{found} (measured)" for found in fits))


def described(machine: Machine | None, ranks: int) -> tuple[Topology | None, str]:
    """Return the network of a machine's processes and "", or None and the reason why it describes none
    for ``ranks`` processes."""
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
