"""Choosing an algorithm by predicted cost, corrected by measurements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import CompositionError, DataError, DescriptionError, Tier, Topology, check, load_machine
from demitasse_allreduce.choice import (
    Chooser,
    Fit,
    Measurements,
    Way,
    bucket,
    fit,
    maps,
    mpi_levels,
    network_of,
)

HWDESC = Path(__file__).resolve().parents[3] / "hwdesc"
MB = 1 << 20


def two_supernodes(oversubscription: float = 4, latency: float = 50e-6) -> Topology:
    """Eight hosts in two supernodes, with 400 Mbit/s each."""
    tiers = (
        Tier("supernode", 2, latency, 50e6, oversubscription),
        Tier("host", 4, latency, 50e6),
    )
    return Topology(tiers, ("made up",))


def test_long_messages_go_by_least_bytes_and_short_ones_by_fewest_rounds() -> None:
    chooser = Chooser(two_supernodes(), 8)
    assert chooser.best(64).algorithm == "recursive-doubling"
    assert chooser.best(64 * MB).algorithm in ("ring", "two-level")


def test_a_thinner_trunk_takes_the_two_level_pipeline() -> None:
    assert Chooser(two_supernodes(8), 8).best(16 * MB).algorithm == "two-level"


def test_rank_maps_are_found_by_cost() -> None:
    halving = Chooser(two_supernodes(), 8, only=["recursive-halving-doubling"])
    assert halving.best(16 * MB).ranks == "round-robin"
    nearest_first = Chooser(two_supernodes(), 8, only=["rabenseifner"])
    assert nearest_first.best(16 * MB).ranks == "natural"
    offers = {offer.way.ranks: offer.seconds for offer in halving.offers(16 * MB)}
    assert offers["natural"] > 1.7 * offers["round-robin"]


def test_with_three_tiers_every_order_of_them_is_a_map() -> None:
    network = Topology(tuple(Tier(name, 2, 1e-6, 1e9, 2) for name in ("row", "rack", "node")))
    found = maps(network, 8)
    assert found["natural"].tolist() == list(range(8))
    assert len(found) == 6
    for name, order in found.items():
        assert sorted(order.tolist()) == list(range(8)), name
    assert found["by row, node, rack"].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    way = Chooser(network, 8, only=["recursive-halving-doubling"]).best(16 * MB)
    check(way.schedule(1000, network, 8))


@given(
    ranks=st.integers(1, 12),
    nbytes=st.integers(0, 1 << 22),
    goal=st.sampled_from(["allreduce", "reduce", "broadcast"]),
)
@settings(max_examples=examples(40))
def test_whatever_is_chosen_is_a_proved_schedule_of_that_goal(
    ranks: int, nbytes: int, goal: str
) -> None:
    network = Topology((Tier("group", 3, 1e-5, 1e9, 2), Tier("node", 4, 1e-6, 1e9)))
    made = Chooser(network, ranks).schedule(nbytes // 4, goal, root=ranks - 1)
    assert (made.goal, made.ranks, made.size) == (goal, ranks, nbytes // 4)
    check(made)


def test_all_offers_can_be_run_and_are_proved() -> None:
    network = two_supernodes()
    offers = Chooser(network, 8).offers(1 << 16)
    assert len({offer.way for offer in offers}) == len(offers) > 12
    assert [offer.seconds for offer in offers] == sorted(offer.seconds for offer in offers)
    for offer in offers:
        check(offer.way.schedule(1 << 14, network, 8))


def test_predictions_are_the_cost_of_the_schedule_that_is_run() -> None:
    from demitasse import cost, rounds_of

    network = two_supernodes()
    chooser = Chooser(network, 8, gamma=1e-10)
    for offer in chooser.offers(1 << 20):
        made = offer.way.schedule(1 << 18, network, 8)
        listed = cost(rounds_of(made), network, network.place(8), 4, 1e-10).seconds
        assert offer.predicted == pytest.approx(listed, rel=0.01), offer.way


def test_sizes_of_one_bucket_have_one_choice_that_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = Chooser(two_supernodes(), 8)
    assert [bucket(n) for n in (0, 1, 2, 3, 1024, 1025, 2048)] == [0, 0, 1, 2, 10, 11, 11]
    first = chooser.predictions(600_000)
    monkeypatch.setattr(chooser, "predict", None)
    assert chooser.predictions(1 << 20) is first


def test_what_was_measured_outranks_and_corrects_what_was_predicted() -> None:
    measured, network = Measurements(), two_supernodes()
    chooser = Chooser(network, 8, measured=measured)
    first, second = (offer.way for offer in chooser.offers(8 * MB)[:2])
    predicted = chooser.predictions(8 * MB)
    for times in (3.0, 5.0, 4.0):
        measured.record(first, 8 * MB, 8, times * predicted[first])
    # All that was measured is four times slower than predicted: so may be the rest.
    offers = {offer.way: offer for offer in chooser.offers(8 * MB)}
    assert offers[first].seconds == pytest.approx(4 * predicted[first])
    assert offers[second].seconds == pytest.approx(4 * predicted[second])
    assert offers[second].measured is None
    assert chooser.best(8 * MB) == first
    measured.record(second, 8 * MB, 8, 1.5 * predicted[second])
    assert chooser.best(8 * MB) == second
    assert chooser.best(64 * MB) == Chooser(network, 8).best(64 * MB)  # another bucket
    # MPI's own has no prediction; a time is enough.
    mpi = Way("mpi")
    measured.record(mpi, 8 * MB, 8, predicted[second] / 10)
    assert chooser.best(8 * MB) == mpi
    with pytest.raises(CompositionError, match="unknown algorithm 'mpi'"):
        chooser.schedule(2 * MB)


def test_measurements_are_plain_data() -> None:
    measured = Measurements()
    measured.record(Way("chain", "round-robin", 4), 1000, 8, 0.5)
    measured.record(Way("chain", "round-robin", 4), 1001, 8, 0.7)
    measured.record(Way("two-level", chunks=2, group=4), 1000, 8, 0.1, "reduce")
    again = Measurements.from_list(json.loads(json.dumps(measured.to_list())))
    assert again == measured
    assert again.of(1010, 8) == {Way("chain", "round-robin", 4): pytest.approx(0.6)}
    assert again.of(1010, 4) == {}
    with pytest.raises(DataError, match="measured times of collectives"):
        Measurements.from_list([{"goal": "allreduce"}])


def test_the_table_shows_what_is_taken_and_where_its_numbers_are_from() -> None:
    measured = Measurements()
    measured.record(Way("mpi"), MB, 8, 1e-4)
    lines = Chooser(two_supernodes(), 8, measured=measured).table(MB, most=5).splitlines()
    assert lines[0] == "allreduce of 1,048,576 bytes by 8 ranks (sizes to 1,048,576)"
    assert lines[1] == "  made up"
    assert lines[2] == "->  100.000 us measured  mpi"
    assert all("simulated" in line for line in lines[3:7])
    assert "more, to" in lines[7]


def test_the_network_of_processes_is_that_of_the_mpi_levels() -> None:
    taihulight = load_machine(HWDESC / "taihulight.toml")
    assert [level.name for level in mpi_levels(taihulight)] == ["system", "supernode", "node"]
    network = network_of(taihulight)
    assert [(tier.name, tier.count) for tier in network.tiers] == [("supernode", 160), ("node", 256)]
    chooser = Chooser(network, 4_096)  # of all 40,960 it takes ten times as long
    assert chooser.best(232_600_000).algorithm in ("recursive-halving-doubling", "rabenseifner")


def test_a_machine_without_a_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "alone.toml"
    path.write_text('schema = 1\nname = "alone"\n[[level]]\nname = "node"\ncount = 2\nworkers = "mpi"\n')
    with pytest.raises(DescriptionError, match="level 'node' has no link"):
        network_of(load_machine(path))
    path.write_text('schema = 1\nname = "alone"\n[[level]]\nname = "core"\nworkers = "threads"\n')
    with pytest.raises(CompositionError, match=r"alone\.toml: no level with workers = 'mpi'"):
        network_of(load_machine(path))


@given(alpha=st.floats(1e-7, 1e-3), rate=st.floats(1e6, 1e11), gamma=st.floats(1e-12, 1e-8))
@settings(max_examples=examples(50))
def test_a_fit_finds_the_numbers_that_times_were_made_from(
    alpha: float, rate: float, gamma: float
) -> None:
    sizes = [2.0**power for power in range(0, 28, 2)]
    found = fit(
        [(size, alpha + size / rate) for size in sizes], [(size, 1e-7 + gamma * size) for size in sizes]
    )
    assert found.alpha == pytest.approx(alpha, rel=1e-3)
    assert found.beta == pytest.approx(1 / rate, rel=1e-3, abs=alpha * 1e-9)
    assert found.gamma == pytest.approx(gamma, rel=1e-3, abs=1e-15)


def test_a_fit_is_never_negative_and_needs_two_sizes() -> None:
    only_bytes = fit([(1000, 1.0), (2000, 2.2)])
    assert only_bytes.alpha == 0 and only_bytes.beta == pytest.approx(1.05e-3, rel=0.01)
    only_latency = fit([(1000, 2.0), (2000, 1.0)])
    assert only_latency.beta == 0 and 1 <= only_latency.alpha <= 2
    with pytest.raises(DataError, match="a fit of messages: 1 sizes"):
        fit([(1000, 1.0), (1000, 2.0)])
    with pytest.raises(DataError, match="least time 0 s"):
        fit([(1000, 0.0), (2000, 1.0)])
    assert str(Fit(1e-6, 1e-9, 1e-10)) == "latency 1 us, bandwidth 1 GB/s, adds 10 GB/s"
    assert str(Fit(1e-6, 0.0)) == "latency 1 us, bandwidth no limit"


def test_a_measured_network_predicts_as_a_described_one() -> None:
    network = Fit(1e-5, 1e-9).network(6)
    assert Chooser(network, 6, only=["ring"]).predict(Way("ring"), 6000) == pytest.approx(
        10 * (1e-5 + 4000e-9)
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(
        CompositionError, match="unknown rank map 'roundrobin'; did you mean 'round-robin'"
    ):
        Chooser(two_supernodes(), 8, order="roundrobin")
    with pytest.raises(CompositionError, match="unknown algorithm 'rings'; did you mean 'ring'"):
        Chooser(two_supernodes(), 8, only=["rings"])
    with pytest.raises(CompositionError, match="no algorithm for goal 'reduce' and 8 ranks among ring"):
        Chooser(two_supernodes(), 8, only=["ring"]).best(1000, "reduce")
    assert np.array_equal(
        maps(two_supernodes(), 8, "round-robin")["round-robin"], [0, 4, 1, 5, 2, 6, 3, 7]
    )
