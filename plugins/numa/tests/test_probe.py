"""What ``--hw auto`` makes of memory domains, and the cost of an exchange between them from a
description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from demitasse import (
    DescriptionError,
    Level,
    Link,
    Machine,
    MemorySpace,
    Quantity,
    arrange,
    load_machine,
)
from demitasse_numa.costs import exchange
from demitasse_numa.probe import refined
from demitasse_numa.topology import topology

Make = Callable[..., Path]
HWDESC = Path(__file__).parents[3] / "hwdesc"


def found(cores: int | None = 8) -> tuple[Level, ...]:
    """Levels that the system's probe may have found."""
    return Level("node", cores=cores), Level("numa", 4, cores=2, parent="node")


def test_each_domain_has_a_solver_its_memory_and_this_sync(machine: Make) -> None:
    here = topology(machine(["0-1", "2-3", "4-5", "6-7"], memory=[2048, 1024, 2048, 2048]))
    node, domain = refined(found(), here)
    assert (domain.count, domain.workers, domain.cores) == (4, "threads", 2)
    assert domain.memory == (MemorySpace("host", Quantity(2.0**30, "B", "measured"), at="numa:*"),)
    assert domain.sync is not None
    assert domain.sync.plugin == "numa"
    made = Machine("here", (node, domain), fingerprint="any")
    places = arrange(made, "float32")
    assert [place.space for place in places] == ["numa:0", "numa:1", "numa:2", "numa:3"]
    assert {place.place.space for place in places} == {"host"}
    assert {place.place.threads for place in places} == {2}


def test_a_restricted_process_has_fewer_domains(machine: Make) -> None:
    here = topology(machine(["0-1", "2-3", "4-5", "6-7"]), affinity={3, 6, 7})
    _, domain = refined(found(3), here)
    assert (domain.count, domain.cores) == (2, 1)


def test_a_quota_of_processor_time_is_shared(machine: Make) -> None:
    _, domain = refined(found(4), topology(machine(["0-3", "4-7"])))
    assert (domain.count, domain.cores) == (2, 2)


def test_a_machine_with_one_domain_is_left_as_it_is(machine: Make) -> None:
    assert refined(found(), topology(machine(["0-7"]))) == ()
    assert refined((), topology(machine(["0", "1"]))) == ()


@pytest.mark.parametrize("file", sorted(HWDESC.glob("numa-*.toml")), ids=lambda path: path.stem)
def test_the_shipped_servers_allocate_in_domains(file: Path) -> None:
    described = load_machine(file)
    level = described.level("numa")
    assert level.sync is not None
    assert (level.sync.plugin, level.memory[0].at) == ("numa", "numa:*")
    assert {place.space for place in arrange(described, "float32")} == {"host"}  # simulated here
    assert sum(exchange(level, 1e6, level.count)) > 0


def described(bandwidth: float, link: float, latency: float = 0.0) -> Level:
    """A level with these figures."""
    memory = (MemorySpace("host", None, Quantity(bandwidth, "B/s")),)
    return Level("numa", 4, memory=memory, link=Link(Quantity(latency, "s"), Quantity(link, "B/s")))


def test_an_exchange_costs_what_it_moves() -> None:
    level = described(100e9, 10e9)
    # Four roots: each domain reads three quarters of the bytes from others, and writes them at home.
    reduce, distribute = exchange(level, 1e9, 4)
    assert reduce == pytest.approx(0.75 * (1 / 10 + 2 / 100))
    assert distribute == pytest.approx(0.75 * (1 / 10 + 1 / 100))
    # One root: its chain of three additions, one after the other.
    assert exchange(level, 1e9, 4, 3, spread=False)[0] == pytest.approx(3 * (1 / 10 + 2 / 100))
    assert exchange(level, 1e9, 1) == (0.0, 0.0)
    late = exchange(described(100e9, 10e9, 1e-6), 0, 8, 2)
    assert late == (pytest.approx(3e-6), pytest.approx(3e-6))


def test_what_a_description_lacks_is_named() -> None:
    with pytest.raises(
        DescriptionError, match=r"level 'numa' needs memory.bandwidth and link.bandwidth"
    ):
        exchange(Level("numa", 4), 1e6, 4)
