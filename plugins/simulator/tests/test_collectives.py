"""The simulated exchange beside swCaffe's equations, and which plugin's algorithms it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from machine_files import RACKS

from demitasse import Algorithm, PluginError, Tier, Topology, compose, cost, load_machine
from demitasse_simulator.collectives import Exchange
from demitasse_simulator.exchange import offered

ALPHA, BANDWIDTH, GAMMA = 1e-6, 12e9, 3 / 112e9
SIZE = 97_700_000 // 4


@pytest.fixture(scope="module")
def algorithms() -> Mapping[str, Algorithm]:
    """The algorithms of an installed plugin, through the public hook."""
    with compose("auto", ["+allreduce"]) as runtime:
        return offered(runtime.composition)


def supernodes(p: int, q: int, oversubscription: float = 4) -> Topology:
    """p nodes in full supernodes of q."""
    groups = Tier("supernode", -(-p // q), ALPHA, BANDWIDTH, oversubscription)
    return Topology((groups, Tier("node", min(p, q), ALPHA, BANDWIDTH)))


Exchanges = Callable[..., float]


@pytest.fixture(scope="module")
def exchange(algorithms: Mapping[str, Algorithm]) -> Exchanges:
    def seconds(p: int, q: int, order: str, network: Topology | None = None) -> float:
        network = network or supernodes(p, q)
        rounds = algorithms["recursive-halving-doubling"].rounds(p, SIZE)
        return cost(rounds, network, network.place(p, order), 4, GAMMA).seconds

    return seconds


@pytest.mark.parametrize(
    ("q", "powers"),
    [
        *((q, range(3, 13)) for q in (4, 16, 64, 256)),
        (256, [15]),
        pytest.param(256, [13, 14], marks=pytest.mark.slow),
        *(pytest.param(q, range(13, 16), marks=pytest.mark.slow) for q in (4, 16, 64)),
    ],
)
@pytest.mark.parametrize("order", ["natural", "round-robin"])
def test_the_simulation_equals_equations_2_to_6_for_powers_of_two(
    exchange: Exchanges, q: int, powers: Sequence[int], order: str
) -> None:
    """Of the largest networks, with up to 32,768 nodes, all but one are slow tests."""
    for power in powers:
        p = 1 << power
        closed = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 4 / BANDWIDTH, GAMMA)
        assert exchange(p, q, order) == pytest.approx(closed.allreduce(order), rel=0.001), (p, q)


def test_dealing_ranks_out_to_supernodes_is_what_makes_the_new_exchange_quick(
    exchange: Exchanges,
) -> None:
    assert exchange(1024, 256, "round-robin") < 0.5 * exchange(1024, 256, "natural")


def test_an_unsaturated_trunk_departs_from_the_equations(algorithms: Mapping[str, Algorithm]) -> None:
    # 64 of the 256 nodes of each of four supernodes: together they just fill a quarter of its trunk.
    p, q = 256, 64
    whole = supernodes(1024, 256)
    place = (np.arange(4)[:, None] * 256 + np.arange(q)).reshape(-1)
    rounds = algorithms["recursive-halving-doubling"].rounds(p, SIZE)
    simulated = cost(rounds, whole, place, 4, GAMMA).seconds
    saturated = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 4 / BANDWIDTH, GAMMA)
    free = Exchange(p, q, 4.0 * SIZE, ALPHA, 1 / BANDWIDTH, 1 / BANDWIDTH, GAMMA)
    assert simulated == pytest.approx(free.allreduce(), rel=0.001)
    assert simulated < 0.4 * saturated.allreduce()


def test_ranks_that_are_no_power_of_two_cost_two_more_whole_messages(exchange: Exchanges) -> None:
    whole = 4 * SIZE / BANDWIDTH
    more = exchange(48, 64, "natural") - exchange(32, 64, "natural")
    assert more == pytest.approx(2 * (ALPHA + whole) + 4 * SIZE * GAMMA, rel=0.02)


def test_without_a_plugin_that_has_algorithms_the_one_to_compose_is_named(
    machine: Callable[[str], Path],
) -> None:
    described = load_machine(machine('\n[[level]]\nname = "node"\ncount = 1\nworkers = "threads"\n'))
    with (
        compose(described, ["-allreduce"]) as runtime,
        pytest.raises(
            PluginError,
            match=r"made-up: no composed plugin has algorithms of collectives; compose .*allreduce",
        ),
    ):
        offered(runtime.composition, "made-up")


def test_auto_is_the_cheapest_algorithm_and_order_of_ranks(
    solver: Path, machine: Callable[[str], Path], algorithms: Mapping[str, Algorithm]
) -> None:
    def seconds(sync: str) -> float:
        with compose(machine(RACKS % sync)) as runtime:
            done = runtime.simulate(solver, samples={"data": (3, 16, 16), "label": ()}, scaling="weak")
        return float(done.exchange["seconds"])

    each = [
        seconds(f'algorithm = "{name}", ranks = "{order}"')
        for name in algorithms
        for order in ("natural", "round-robin")
    ]
    assert seconds('algorithm = "auto", ranks = "auto"') == min(each) < max(each)
    assert seconds('lower = "chain", upper = "chain", chain = 4') == pytest.approx(
        seconds('algorithm = "chain-chain", chain = 4')
    )
