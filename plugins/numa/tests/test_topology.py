"""Domains of many machines: what has processors, what has memory, what this process may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from demitasse import CompositionError, listed_numbers
from demitasse_numa import hwloc
from demitasse_numa.machine import this_machine
from demitasse_numa.topology import shortened, topology

Make = Callable[..., Path]


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (["0-3"], [{0, 1, 2, 3}]),
        (["0-1", "2-3"], [{0, 1}, {2, 3}]),
        (["0", "1", "2", "3"], [{0}, {1}, {2}, {3}]),
        (["0,4", "1,5", "2,6", "3,7"], [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        ([f"{6 * i}-{6 * i + 5}" for i in range(8)], [set(range(6 * i, 6 * i + 6)) for i in range(8)]),
    ],
)
def test_each_node_with_processors_is_a_domain(
    machine: Make, cpus: list[str], expected: list[set[int]]
) -> None:
    found = topology(machine(cpus), affinity=None)
    assert [set(each.cpus) for each in found.domains] == expected
    assert [each.memory for each in found.domains] == [(i,) for i in range(len(cpus))]
    assert found.others == ()


def test_offline_processors_are_not_counted(machine: Make) -> None:
    found = topology(machine(["0-3", "4-7"], online="0-2,4-7"))
    assert [sorted(each.cpus) for each in found.domains] == [[0, 1, 2], [4, 5, 6, 7]]


def test_an_offline_node_is_no_domain(machine: Make) -> None:
    root = machine(["0-1", "2-3", "4-5"])
    (root / "sys/devices/system/node/online").write_text("0,2\n")
    (root / "sys/devices/system/cpu/online").write_text("0-1,4-5\n")
    found = topology(root)
    assert [(each.index, each.node) for each in found.domains] == [(0, 0), (1, 2)]


def test_affinity_leaves_only_domains_with_allowed_processors(machine: Make) -> None:
    found = topology(machine(["0-3", "4-7", "8-11", "12-15"]), affinity={5, 6, 13})
    assert [(each.index, each.node, sorted(each.cpus)) for each in found.domains] == [
        (0, 1, [5, 6]),
        (1, 3, [13]),
    ]


@pytest.mark.parametrize(
    "about",
    [
        {"proc/self/status": "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t1"},
        {
            "proc/self/cgroup": "0::/lab",
            "sys/fs/cgroup/lab/cpuset.cpus.effective": "2-3",
            "sys/fs/cgroup/lab/cpuset.mems.effective": "1",
        },
        {
            "proc/self/cgroup": "3:cpuset:/lab",
            "sys/fs/cgroup/cpuset/lab/cpuset.cpus.effective": "2-3",
            "sys/fs/cgroup/cpuset/lab/cpuset.mems.effective": "1",
        },
    ],
    ids=["status", "version 2", "version 1"],
)
def test_a_cpuset_is_respected(machine: Make, about: dict[str, str]) -> None:
    found = topology(machine(["0-1", "2-3"], more=about))
    (only,) = found.domains
    assert (only.node, sorted(only.cpus), only.memory) == (1, [2, 3], (1,))
    assert found.others == ()


def test_a_domain_whose_memory_is_not_allowed_takes_the_nearest(machine: Make) -> None:
    distances = [[10, 30, 20], [30, 10, 15], [20, 15, 10]]
    about = {"proc/self/status": "Mems_allowed_list:\t1,2"}
    found = topology(machine(["0", "1", "2"], distances=distances, more=about))
    assert [each.memory for each in found.domains] == [(2,), (1,), (2,)]


def test_a_node_without_memory_takes_the_nearest(machine: Make) -> None:
    distances = [[10, 16, 32], [16, 10, 32], [32, 32, 10]]
    found = topology(machine(["0", "1", "2"], memory=[1024, 0, 1024], distances=distances))
    assert [each.memory for each in found.domains] == [(0,), (0,), (2,)]


def test_knights_landing_has_fast_memory_near_each_domain(machine: Make) -> None:
    # Flat mode, SNC-4: nodes 4 to 7 are MCDRAM; distances as its firmware gives them.
    distances = [
        [10 if a == b else (31 if b == a + 4 or a == b + 4 else (41 if (a < 4) != (b < 4) else 21))
         for b in range(8)]
        for a in range(8)
    ]  # fmt: skip
    about = {"proc/cpuinfo": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 87"}
    cpus = [f"{16 * i}-{16 * i + 15}" for i in range(4)] + [""] * 4
    found = topology(machine(cpus, memory=[24576] * 4 + [4096] * 4, distances=distances, more=about))
    assert [each.fast for each in found.domains] == [(4,), (5,), (6,), (7,)]
    assert [(each.index, each.node) for each in found.others] == [(4, 4), (5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize(("bandwidth", "fast"), [("400000", (1,)), ("20000", ()), (None, ())])
def test_memory_without_processors_is_fast_only_if_its_bandwidth_is_higher(
    machine: Make, bandwidth: str | None, fast: tuple[int, ...]
) -> None:
    path = "sys/devices/system/node/node{}/access0/initiators/read_bandwidth"
    about = {path.format(0): "100000"} | ({path.format(1): bandwidth} if bandwidth else {})
    found = topology(machine(["0-1", ""], more=about))
    assert found.domains[0].fast == fast
    assert [each.node for each in found.others] == [1]


def test_hardware_threads_share_a_core(machine: Make) -> None:
    smt = {cpu: f"{cpu % 2},{cpu % 2 + 2}" for cpu in range(4)}
    found = topology(machine(["0-3"], smt=smt))
    assert found.domains[0].cores == {frozenset({0, 2}), frozenset({1, 3})}


def test_a_system_that_tells_nothing_has_one_domain(tmp_path: Path) -> None:
    found = topology(tmp_path, affinity={0, 1})
    assert len(found.domains) == 1
    assert found.domains[0].memory == (0,)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nprocessor\t: 1\n")
    assert topology(tmp_path).domains[0].cpus == {0, 1}


def test_malformed_and_missing_files_read_as_nothing(machine: Make) -> None:
    root = machine(["0-1", "2-3"], memory=[None, None])
    (root / "sys/devices/system/node/node1/distance").write_text("ten, twenty\n")
    found = topology(root)
    assert [each.memory for each in found.domains] == [(0,), (1,)]
    (root / "sys/devices/system/node/node1/cpulist").write_text("2-x\n")
    assert [sorted(each.cpus) for each in topology(root).domains] == [[0, 1, 2, 3]]


def test_a_domain_that_is_not_there_is_named_with_those_that_are(machine: Make) -> None:
    found = topology(machine(["0", "1"]))
    with pytest.raises(CompositionError, match=r"'numa:2'.* 2 memory domains \(valid: numa:0, numa:1\)"):
        found.domain(2)


@pytest.mark.skipif(hwloc.why_not() is not None, reason=str(hwloc.why_not()))
def test_hwloc_and_the_system_agree_here() -> None:
    ours, theirs = this_machine("files"), this_machine("hwloc")
    assert theirs.source.startswith("hwloc 2.")
    assert ours.domains == theirs.domains
    assert ours.others == theirs.others


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "1,3,5-7"])
def test_lists_are_written_as_they_are_read(text: str) -> None:
    assert shortened(listed_numbers(text)) == text
