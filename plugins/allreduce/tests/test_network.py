"""How the network between ranks is determined, and which algorithms are tried on it first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demitasse import CompositionError, Group, Machine, PluginError, load_machine
from demitasse_allreduce.algorithms import ALGORITHMS, given
from demitasse_allreduce.choice import Chooser, Fit, Offer, Way, human, network_of
from demitasse_allreduce.gradient_sync import gradient_sync
from demitasse_allreduce.stages.candidates import CANDIDATES, NEAR, candidates, steady
from demitasse_allreduce.stages.forecast import LADDER, forecast
from demitasse_allreduce.stages.links import joined, per_node
from demitasse_allreduce.stages.network import Network
from demitasse_allreduce.stages.options import Options

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
    # All four ranks send at the same time, so each has a quarter: this was measured.
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


def test_what_was_not_run_is_not_taken_by_how_far_off_the_others_were() -> None:
    """Of five ways with similar costs four are tried: on a busy machine each takes longer, by its own
    factor."""
    ring, tree, halving = (Way(name) for name in ("ring", "tree", "recursive-halving-doubling"))
    scaled = [Offer(tree, 3.0, None, 6.0), Offer(ring, 1.0, 7.0, 7.0), Offer(halving, 2.0, 9.0, 9.0)]
    assert [offer.way for offer in steady(scaled)] == [ring, halving, tree]


class Ranks:
    """As much of a communicator as is used before any message."""

    def __init__(self, size: int) -> None:
        self._size = size

    def Get_size(self) -> int:
        return self._size

    def Get_rank(self) -> int:
        return 0

    def Split(self, color: int, key: int) -> Ranks:
        return self


@pytest.fixture
def supernodes(tmp_path: Path) -> Machine:
    """Eight ranks in two supernodes with a thin trunk."""
    described = tmp_path / "supernodes.toml"
    described.write_text("""
        schema = 1
        name = "supernodes"
        plugins = ["allreduce"]
        [[level]]
        name = "supernode"
        count = 2
        link = { latency = "50 us", bandwidth = "1 Gbit/s", oversubscription = 4, source = "vendor" }
        [[level]]
        name = "host"
        count = 4
        workers = "mpi"
        link = { latency = "50 us", bandwidth = "1 Gbit/s", source = "vendor" }
    """)
    return load_machine(str(described))


def told(machine: Machine | None, goals: tuple[str, ...], **options: Any) -> list[str]:
    """The notes of eight ranks before any message."""
    asked = Options.read(options, "here")
    network = Network(Ranks(8), asked, machine, lambda: None, list(range(8)), 4)
    return [*network.notes, *forecast(network, goals)]


def test_algorithms_are_told_by_size_with_what_they_are_predicted_to_take(supernodes: Machine) -> None:
    *lines, trials = told(supernodes, ("allreduce",))
    assert [int(line.split()[2].replace(",", "")) for line in lines] == list(LADDER)
    # Latency decides for few bytes, and the trunk for many.
    assert "recursive-doubling" in lines[0]
    assert "ring, predicted" in lines[-1]
    for size, line in zip(LADDER, lines, strict=True):
        chooser = Chooser(network_of(supernodes), 8)
        best = chooser.offers(size)[0]
        assert line.startswith(f"allreduce of {size:,} bytes: {best.way}, predicted")
        assert human(best.seconds) in line
    assert "(trials = 3)" in trials
    assert told(supernodes, ("allreduce",), trials=0)[-1] == "what costs least is taken (trials = 0)"


def test_one_process_tells_what_those_of_a_description_would(supernodes: Machine) -> None:
    def alone(machine: Machine | None, **options: Any) -> list[str]:
        group = Group(("host",), 0, None, "float32", options, machine=machine)
        return list(gradient_sync(group).notes)

    assert alone(None) == ["one process: nothing is synchronised here"]
    first, head, stage, *lines = alone(supernodes)
    assert first == alone(None)[0]
    assert head == "with the 8 processes that supernodes describes:"
    assert stage.startswith("stage overlap: ")
    assert lines == told(supernodes, ("allreduce",))
    *_, stage, levels, line = alone(supernodes, stage="SC-OBR", chain=4)[:5]
    assert stage.startswith("stage SC-OBR: ") and levels.startswith("two levels")
    assert line.startswith(f"broadcast of {LADDER[0]:,} bytes: ")


def test_an_algorithm_that_is_asked_for_is_told_for_each_goal(supernodes: Machine) -> None:
    lines = told(supernodes, ("broadcast", "reduce"), stage="SC-OB", algorithm="binomial")
    assert len(lines) == 2 * len(LADDER)
    assert all(": binomial" in line for line in lines)
    assert not any("next:" in line for line in lines)


def test_both_levels_of_communicators_are_told(supernodes: Machine) -> None:
    levels, *lines = told(supernodes, ("reduce",), stage="SC-OBR", chain=4)
    assert levels.startswith("two levels of communicators: up to 4 ranks in a row by chain")
    assert len(lines) == len(LADDER)
    for line in lines:
        lower, upper = line.split(", then ")
        assert "chain" in lower
        assert "for reduce by 4 ranks, predicted" in lower
        assert upper.startswith("binomial for reduce by 2 ranks, predicted")


def test_a_network_that_nobody_describes_is_said_to_be_measured() -> None:
    (line,) = told(None, ("allreduce",))
    assert line.startswith("the network is not described; latency")
    assert line.endswith("and then what costs least is taken")


def test_what_a_description_lacks_is_said_and_an_algorithm_that_is_asked_for(tmp_path: Path) -> None:
    path, link = tmp_path / "pair.toml", '{ latency = "2 us", bandwidth = "1 GB/s", source = "assumed" }'
    node = f'schema = 1\nname = "pair"\n[[level]]\nname = "node"\ncount = 2\nlink = {link}\n'
    path.write_text(f'{node}[[level]]\nname = "process"\ncount = 4\nworkers = "mpi"\n')
    (line,) = told(load_machine(str(path)), ("allreduce",), algorithm="ring")
    assert line.startswith(f"{path}:8: level 'process' has no link, ")
    assert line.endswith("and then ring is taken")
    path.write_text(node + 'workers = "mpi"\n')
    (line,) = told(load_machine(str(path)), ("allreduce",))
    assert line.startswith(f"the network is not described for 8 processes: {path} has 2; latency")


def test_algorithms_of_other_plugins_are_offered_beside_ours(supernodes: Machine) -> None:
    known = {**ALGORITHMS, "mine": replace(ALGORITHMS["ring"], name="mine")}
    asked = Options.read({"algorithm": "mine"}, "here", known)
    network = Network(Ranks(8), asked, supernodes, lambda: None, list(range(8)), 4)
    assert all("bytes: mine, predicted" in line for line in forecast(network, ("allreduce",)))
    offers = Chooser(network_of(supernodes), 8, known=known).offers(2**20)
    assert {"mine", "ring", "two-level"} < {offer.way.algorithm for offer in offers}
    with pytest.raises(CompositionError, match="here: unknown algorithm 'mime'; did you mean 'mine'"):
        Options.read({"algorithm": "mime"}, "here", known)


def test_what_is_given_under_another_name_is_called_by_that() -> None:
    assert given({"mine": ALGORITHMS["ring"]})["mine"].name == "mine"
    assert given({}) == ALGORITHMS
    with pytest.raises(PluginError, match=r"algorithm 'mine' of a collective: 3 .valid: an Algorithm."):
        given({"mine": 3})
