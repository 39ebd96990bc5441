"""Ranks of one node: what they share, and that they add in its memory without messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import demitasse
from demitasse import DescriptionError
from demitasse_simulator.program import Simulation

NODES = """
[[level]]
name = "node"
count = {nodes}
peak = "100 GFLOP/s (assumed)"
memory = [{{ space = "host", capacity = "8 GB", bandwidth = "20 GB/s", source = "assumed" }}]
{link}

[[level]]
name = "rank"
count = 4
workers = "mpi"
{inside}
sync = {{ plugin = "allreduce"{options} }}
"""

LINK = 'link = { latency = "10 us", bandwidth = "1 GB/s", oversubscription = %d, source = "assumed" }'
INSIDE = 'link = { latency = "1 us", bandwidth = "5 GB/s", source = "assumed" }'

SAMPLES = {"data": (1, 12, 12), "label": ()}


@pytest.fixture
def predict(solver: Path, machine: Callable[[str], Path]) -> Callable[..., Simulation]:
    def predicted(
        nodes: int = 1, options: str = "", inside: str = "", trunk: int = 4, taking: int | None = None
    ) -> Simulation:
        link = LINK % trunk if nodes > 1 else ""
        text = NODES.format(nodes=nodes, link=link, options=options, inside=inside)
        with demitasse.compose(machine(text)) as runtime:
            found = runtime.simulate(solver, samples=SAMPLES, nodes=taking)
        assert isinstance(found, Simulation)
        return found

    return predicted


def took(done: Simulation, *names: str) -> float:
    return sum(each.seconds for each in done.timeline if each.name.startswith(names))


def test_ranks_of_a_node_add_in_its_memory_and_need_no_link(predict: Callable[..., Simulation]) -> None:
    """With n bytes of gradients, four ranks' are read and one is written; three ranks copy all but
    their slice."""
    done = predict()
    n = done.memory["gradients"]
    assert took(done, "add ") == pytest.approx(5 * n / 20e9, rel=1e-3)
    assert took(done, "give ") == pytest.approx(2 * 3 * n / 20e9, rel=1e-3)
    assert done.exchange == {}
    assert any(line.startswith("stage packed: ") for line in done.sources)
    assert "4 ranks of a node add slices in shared memory, without a message" in done.sources
    assert any("20 GB/s" in line and "sums in a node" in line for line in done.sources)


def test_ranks_share_the_peak_the_memory_and_its_capacity(predict: Callable[..., Simulation]) -> None:
    whole, alone = predict(), predict(taking=1)
    assert whole.capacity == pytest.approx(2e9) and alone.capacity == pytest.approx(8e9)
    assert whole.share * 4 == alone.share
    for each in whole.timeline:
        if "flops" in each.facts:
            least = max(each.facts["flops"] / 25e9, each.facts["bytes"] / 5e9)
            assert each.seconds == pytest.approx(least)
    for each in alone.timeline:
        if "flops" in each.facts:
            least = max(each.facts["flops"] / 100e9, each.facts["bytes"] / 20e9)
            assert each.seconds == pytest.approx(least)


def test_a_rank_updates_its_slice_alone(predict: Callable[..., Simulation]) -> None:
    shared, apart = predict(inside=INSIDE), predict(inside=INSIDE, options=", shared = false")
    assert took(shared, "update ") == pytest.approx(took(apart, "update ") / 4, rel=0.02)
    assert took(apart, "add ") == 0 and apart.exchange["seconds"] > 0


@pytest.mark.parametrize("trunk", [1, 4])
def test_slices_go_between_nodes_over_all_that_leaves_a_node(
    trunk: int, predict: Callable[..., Simulation]
) -> None:
    """Two nodes exchange n bytes each, over the bandwidth of four endpoints divided by the
    oversubscription."""
    ring = ', algorithm = "ring", stage = "packed"'
    done = predict(2, ring, trunk=trunk)
    n = done.memory["gradients"]
    assert done.exchange["transfer"] == pytest.approx(n / (4e9 / trunk), rel=0.01)
    assert done.exchange["latency"] == pytest.approx(2 * 10e-6)
    assert any("; 2 nodes by slices" in line for line in done.sources)
    # A leader has one endpoint's bandwidth, if the trunk allows as much, and updates everything.
    leaders = predict(2, ring + ', between = "leaders"', trunk=trunk)
    assert leaders.exchange["transfer"] == pytest.approx(n / 1e9, rel=0.01)
    assert took(leaders, "update ") == pytest.approx(4 * took(done, "update "), rel=0.02)


def test_nodes_that_are_not_full_go_by_leaders(predict: Callable[..., Simulation]) -> None:
    done = predict(2, taking=6)
    assert any("; 2 nodes by leaders" in line for line in done.sources)
    assert "4 ranks of a node add" in " ".join(done.sources)


def test_a_node_of_several_overlaps_its_sums_with_backward(predict: Callable[..., Simulation]) -> None:
    done = predict(2)
    assert any(line.startswith("stage overlap: ") for line in done.sources)
    adds = [each for each in done.timeline if each.name.startswith("add ")]
    assert adds and all(each.resource == "network" for each in adds)


def test_messages_that_are_asked_for_need_the_link(predict: Callable[..., Simulation]) -> None:
    """With a root, or without sharing, the ranks of a node send messages, over a link that must be
    described."""
    for options in (', stage = "SC-B"', ", shared = false"):
        with pytest.raises(DescriptionError, match="level 'rank' has no link"):
            predict(options=options)


IDLE = """
[[level]]
name = "node"
count = 3
peak = "100 GFLOP/s (assumed)"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
"""

BELOW = """
[[level]]
name = "process"
count = 4
workers = "mpi"
link = { latency = "1 us", bandwidth = "1 GB/s", source = "assumed" }
sync = { plugin = "allreduce" }

[[level]]
name = "host"
peak = "100 GFLOP/s (assumed)"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
"""

SOCKETS = """
[[level]]
name = "socket"
count = 2

[[level]]
name = "die"
count = 4
peak = "100 GFLOP/s (assumed)"
memory = [{ space = "host", count = 2, capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
"""


def test_siblings_that_nobody_says_work_are_not_passed_over_in_silence(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    with demitasse.compose(machine(IDLE)) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES)
    assert done.workers == 1
    assert done.notes == (
        'one node of 3 takes part: the description does not say that they are workers (workers = "mpi")',
    )


def test_a_memory_below_a_worker_is_its_own(solver: Path, machine: Callable[[str], Path]) -> None:
    with demitasse.compose(machine(BELOW)) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES)
    assert (done.workers, done.capacity, done.notes) == (4, 1e9, ())
    assert took(done, "add ") == 0 and done.exchange["seconds"] > 0
    for each in done.timeline:
        if "flops" in each.facts:
            least = max(each.facts["flops"] / 100e9, each.facts["bytes"] / 10e9)
            assert each.seconds == pytest.approx(least)


def test_all_that_is_below_a_worker_is_its_own(solver: Path, machine: Callable[[str], Path]) -> None:
    """Eight dies: their peaks and their sixteen memories, and no more workers than processes."""
    text = BELOW[: BELOW.rindex("[[level]]")] + SOCKETS
    with demitasse.compose(machine(text)) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES)
    assert (done.workers, done.capacity, done.notes) == (4, 16e9, ())
    assert "memory 'host' 10 GB/s (assumed) x 16" in done.sources
    assert "peak 100 GFLOP/s (assumed) x 8 at level 'process'" in done.sources
    assert any(line.startswith("additions 53.3 GB/s") for line in done.sources)
    for each in done.timeline:
        if "flops" in each.facts:
            least = max(each.facts["flops"] / 800e9, each.facts["bytes"] / 160e9)
            assert each.seconds == pytest.approx(least)


def test_a_peak_around_a_worker_is_not_multiplied_by_what_is_below(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    lanes = '[[level]]\nname = "lane"\ncount = 16\n'
    with demitasse.compose(
        machine(NODES.format(nodes=1, link="", options="", inside="") + lanes)
    ) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES)
    assert done.workers == 4
    assert "peak 100 GFLOP/s (assumed) x 1 / 4 workers at level 'rank'" in done.sources
