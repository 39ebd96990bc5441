"""Which messages are sent if processes have several workers, nested levels, or a parameter server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import demitasse
from demitasse import CompositionError, DescriptionError
from demitasse_simulator.program import Simulation

SAMPLES = {"data": (1, 12, 12), "label": ()}
MEMORY = 'memory = [{ space = "host", capacity = "8 GB", bandwidth = "20 GB/s", source = "assumed" }]'
RATE = f'peak = "100 GFLOP/s (assumed)"\n{MEMORY}'
LINK = 'link = {{ latency = "2 us", bandwidth = "{} MB/s", source = "assumed"{} }}'
RING = 'sync = { plugin = "allreduce", stage = "packed", algorithm = "ring" }'


@pytest.fixture
def predict(solver: Path, machine: Callable[[str], Path]) -> Callable[..., Simulation]:
    def predicted(text: str, nodes: int | None = None, fingerprint: str = "elsewhere") -> Simulation:
        path = machine(text)
        more = '"allreduce", "numa", "parameter_server", "cgdp"'
        head = f'fingerprint = "{fingerprint}"\nplugins = '
        written = path.read_text().replace('"allreduce"', more, 1)
        path.write_text(written.replace("plugins = ", head, 1))
        with demitasse.compose(path) as runtime:
            found = runtime.simulate(solver, samples=SAMPLES, nodes=nodes, scaling="weak")
        assert isinstance(found, Simulation)
        return found

    return predicted


def nodes(count: int, inside: str, sync: str = RING, link: str = LINK.format(1, "")) -> str:
    return f'[[level]]\nname = "node"\ncount = {count}\nworkers = "mpi"\n{link}\n{sync}\n{inside}'


def threads(count: int, plugin: str) -> str:
    return (
        f'[[level]]\nname = "domain"\ncount = {count}\nworkers = "threads"\n{RATE}\n'
        f'{LINK.format(5000, "")}\nsync = {{ plugin = "{plugin}" }}\n'
    )


@pytest.mark.parametrize("plugin", ["numa", "parameter_server", "reference"])
def test_threads_slices_leave_by_the_one_endpoint_of_their_process(
    predict: Callable[..., Simulation], plugin: str
) -> None:
    """A ring of p processes moves 2 (p - 1) / p of all gradients, however many threads share them."""
    took = [predict(nodes(4, threads(count, plugin))).exchange for count in (1, 2, 4)]
    alone = predict(nodes(4, RATE)).exchange
    for exchange in took:
        assert exchange["transfer"] == pytest.approx(alone["transfer"], rel=0.01)


def test_what_can_be_trained_here_is_predicted_too(predict: Callable[..., Simulation]) -> None:
    """In training, siblings whose synchronisation does nothing would diverge; here nothing trains."""
    assert predict(nodes(3, threads(2, "reference")), fingerprint="any").workers == 6


@pytest.mark.parametrize(("scheme", "times"), [("cgdp", 4), ("typical", 1)])
def test_replicas_that_each_have_all_send_it_as_often(
    predict: Callable[..., Simulation], scheme: str, times: int
) -> None:
    accelerators = (
        f'{MEMORY}\n[[level]]\nname = "gpu"\ncount = 4\nworkers = "streams"\n'
        'peak = "1 TFLOP/s (assumed)"\nmemory = [{ space = "gpu", capacity = "4 GB", '
        f'bandwidth = "100 GB/s", source = "assumed" }}]\n{LINK.format(9000, "")}\n'
        f'sync = {{ plugin = "cgdp", scheme = "{scheme}" }}\n'
    )
    alone = predict(nodes(4, RATE)).exchange["transfer"]
    made = predict(nodes(4, accelerators))
    assert made.exchange["transfer"] == pytest.approx(times * alone, rel=0.01)


def racks(racks: int, nodes: int) -> str:
    """Nodes of 4 ranks whose trunk has a fourth of their bandwidth, in racks whose trunks are not
    limited."""
    narrow = LINK.format(10, ", oversubscription = 4")
    around = f'[[level]]\nname = "rack"\ncount = {racks}\n{LINK.format(10, "")}\n' if racks else ""
    return (
        f'{around}[[level]]\nname = "node"\ncount = {nodes}\n{narrow}\n'
        f'[[level]]\nname = "rank"\ncount = 4\nworkers = "mpi"\n{RATE}\n{LINK.format(10, "")}\n'
        'sync = { plugin = "allreduce", stage = "packed", algorithm = "recursive-halving-doubling", '
        'ranks = "natural", shared = false }\n'  # by which all ranks of a node send out of it at once
    )


def test_a_level_around_makes_no_trunk_wider(predict: Callable[..., Simulation]) -> None:
    flat = predict(racks(0, 4)).exchange["transfer"]
    for each in (racks(2, 2), racks(4, 1)):
        assert predict(each).exchange["transfer"] == pytest.approx(flat, rel=1e-6)


def test_processes_that_nobody_synchronises_are_told_as_in_a_training(
    predict: Callable[..., Simulation],
) -> None:
    text = nodes(3, RATE, sync="")
    assert predict(text, nodes=1).workers == 1
    where = r"made-up.toml:\d+: level 'node' has 3 workers and no plugin to synchronise them; add sync"
    with pytest.raises(CompositionError, match=where):
        predict(text)


def test_processes_agree_by_the_level_that_they_are_of(predict: Callable[..., Simulation]) -> None:
    """A ``sync`` around it has no siblings of its own, here as in training."""
    inner = f'[[level]]\nname = "rank"\ncount = 2\nworkers = "mpi"\n{RATE}\n{LINK.format(50, "")}\n'
    sync = 'sync = { plugin = "allreduce", stage = "packed", algorithm = "ring", shared = false }\n'
    around = f'[[level]]\nname = "node"\ncount = 3\n{LINK.format(1, "")}\n'
    one = predict(around + inner + sync)
    two = predict(around + sync + inner + sync)
    assert (one.nodes, two.nodes) == (6, 6)
    assert two.exchange == one.exchange
    n = one.memory["gradients"]
    assert one.exchange["transfer"] == pytest.approx(2 * 5 / 6 * n / 1e6, rel=0.01)
    few = predict(around + sync + inner + sync, nodes=2)  # of one node
    assert few.exchange["transfer"] == pytest.approx(2 * 1 / 2 * n / 50e6, rel=0.01)


def served(servers: int, model: str) -> str:
    sync = f'sync = {{ plugin = "parameter_server", model = "{model}", servers = {servers} }}'
    return nodes(8, RATE, sync)


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_servers_endpoints_carry_what_all_push_and_pull(
    predict: Callable[..., Simulation], servers: int
) -> None:
    """A server of p processes receives p - 1 times its shard, and sends as much."""
    bulk = predict(served(servers, "bsp"))
    n = bulk.memory["gradients"]
    way = 7 * n / servers / 1e6
    assert bulk.phases["synchronise"] == pytest.approx(2 * way, rel=0.05)
    apart = predict(served(servers, "asp"))
    computed = apart.phases["forward"] + apart.phases["backward"]
    assert apart.seconds == pytest.approx(max(computed, way), rel=0.05)
    told = f"{servers} of 8 processes hold a shard of the parameters each; bsp: each bucket is pushed"
    assert any(line.startswith(told) for line in bulk.sources)
    assert not any("recursive" in line for line in bulk.sources)


def test_servers_add_in_the_memory_around_them(predict: Callable[..., Simulation]) -> None:
    """Of p processes, p - 1 shards are added, each by two reads and a write: here in a memory of 1
    MB/s, which the two ranks of a node share."""
    slow = MEMORY.replace("20 GB/s", "1 MB/s")
    ranks = (
        f'[[level]]\nname = "rank"\ncount = 2\nworkers = "mpi"\npeak = "100 GFLOP/s (assumed)"\n'
        f'{LINK.format(9000, "")}\nsync = {{ plugin = "parameter_server", servers = 2 }}\n'
    )
    around = f'[[level]]\nname = "node"\ncount = 2\n{LINK.format(9000, "")}\n'
    fast = predict(f"{around}{MEMORY}\n{ranks}")
    made = predict(f"{around}{slow}\n{ranks}")
    added = 3 * 3 * (made.memory["gradients"] / 2) / (1e6 / 2)
    exchanged = sum(each.seconds for each in made.timeline if each.name.startswith("exchange "))
    without = sum(each.seconds for each in fast.timeline if each.name.startswith("exchange "))
    assert exchanged - without == pytest.approx(added, rel=0.01)


def test_servers_add_in_the_memories_below_them_together(predict: Callable[..., Simulation]) -> None:
    """No other process shares them, whatever is around."""

    def exchanged(domains: int, each: str, around: str = "") -> float:
        memory = MEMORY.replace("20 GB/s", each)
        below = (
            f'[[level]]\nname = "domain"\ncount = {domains}\npeak = "100 GFLOP/s (assumed)"\n{memory}\n'
        )
        sync = 'sync = { plugin = "parameter_server", servers = 2 }'
        made = predict(around + nodes(2, below, sync, LINK.format(9000, "")))
        return sum(each.seconds for each in made.timeline if each.name.startswith("exchange "))

    assert exchanged(4, "1 MB/s") == pytest.approx(exchanged(1, "4 MB/s"), rel=1e-6)
    rack = '[[level]]\nname = "rack"\n'
    assert exchanged(4, "1 MB/s", rack) == pytest.approx(exchanged(4, "1 MB/s"), rel=1e-6)


def test_one_process_has_no_messages_and_needs_no_servers(predict: Callable[..., Simulation]) -> None:
    alone = predict(served(4, "bsp"), nodes=1)
    assert not any(each.name.startswith("exchange ") for each in alone.timeline)
    assert alone.phases["synchronise"] == pytest.approx(0, abs=1e-3)


def test_what_is_told_in_seconds_is_not_told_again_for_each_bucket(
    predict: Callable[..., Simulation], solver: Path
) -> None:
    """If gradients are measured before any is used."""
    plain = predict(served(4, "asp"))
    solver.write_text(f"{solver.read_text()}\nclip_gradients: 1\n")
    clipped = predict(served(4, "asp"))
    names = [[e for e in made.timeline if e.name.startswith("exchange ")] for made in (plain, clipped)]
    assert [len(each) for each in names] == [1, 1]


def test_more_servers_than_processes_are_told(predict: Callable[..., Simulation]) -> None:
    with pytest.raises(DescriptionError, match="servers = 9, but the run has 8 processes"):
        predict(served(9, "bsp"))


def test_what_is_beside_the_workers_is_no_part_of_their_network(
    predict: Callable[..., Simulation],
) -> None:
    """A node's two sockets stand before its threads, which are of the node, not of the sockets."""
    sockets = '[[level]]\nname = "socket"\ncount = 2\ncores = 10\n'
    beside = threads(2, "numa").replace('name = "domain"\n', 'name = "domain"\nparent = "node"\n')
    plain, found = (predict(nodes(4, inside)) for inside in (threads(2, "numa"), sockets + beside))
    assert (found.workers, found.nodes, found.joined) == (8, 4, "4 nodes")
    assert (found.seconds, found.notes) == (plain.seconds, plain.notes)


def test_what_threads_have_in_common_is_told_in_equal_parts(predict: Callable[..., Simulation]) -> None:
    """Four threads under a parameter server have one copy of the parameters and of the momentum."""
    alone, each = (predict(threads(4, plugin)).memory for plugin in ("reference", "parameter_server"))
    parts = ("arena", "fixed", "gradients", "parameters", "state")
    for memory in (alone, each):
        assert sum(memory[part] for part in parts) == pytest.approx(memory["worker"], abs=8)
    for part in ("parameters", "state"):
        assert each[part] == pytest.approx(alone[part] / 4, rel=0.01) and alone[part] > 1000
