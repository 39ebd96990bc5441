"""Results of the probes on machines that are described by fake trees of kernel files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from demitasse import KernelFiles, Level, Machine, Quantity, load_machine
from demitasse_system.diagnosis import findings
from demitasse_system.limits import threads_asked
from demitasse_system.probe import probed, processors

GIB = 2**30
Tree = Callable[[Mapping[str, str]], Path]


def capacity(level: Level, space: str) -> float | None:
    """Return bytes of a level's memory or cache; everything known about it is measured."""
    for memory in (*level.memory, *level.caches):
        if memory.space == space:
            if memory.capacity is None:
                return None
            assert memory.capacity.source == "measured"
            return memory.capacity.value
    raise AssertionError(f"no {space} at {level.name}")


def test_a_server_of_two_sockets_and_four_domains(tree: Tree, server: dict[str, str]) -> None:
    node, numa = probed(tree(server))
    assert (node.name, node.count, node.parent, node.workers) == ("node", 1, None, None)
    assert (node.cores, node.threads_per_core) == (16, 2)
    assert capacity(node, "host") == 256 * GIB
    assert node.clock == Quantity(3.8e9, "Hz", "measured")
    assert node.features == ("amx_tile", "avx", "avx2", "avx512_bf16", "avx512f", "fma", "sse4_2")
    found = [(cache.space, cache.capacity, cache.count) for cache in node.caches]
    assert [(space, size.value if size else None, count) for space, size, count in found] == [
        ("l1d", 48 * 2**10, 16),
        ("l2", 2 * 2**20, 16),
        ("l3", 60 * 2**20, 2),
    ]
    assert (numa.name, numa.count, numa.parent, numa.cores) == ("numa", 4, "node", 4)
    assert capacity(numa, "numa") == 64 * GIB


def test_what_is_probed_can_be_written_and_read(
    tree: Tree, server: dict[str, str], tmp_path: Path
) -> None:
    machine = Machine("probed", probed(tree(server)))
    path = tmp_path / "probed.toml"
    path.write_text(str(machine), encoding="utf-8")
    assert load_machine(path) == machine


def test_a_domain_that_is_offline_does_not_count(tree: Tree, server: dict[str, str]) -> None:
    files = server | {"sys/devices/system/node/online": "0-1,3"}
    _, numa = probed(tree(files))
    assert numa.count == 3


def test_a_domain_without_cpus_is_memory_of_the_node(tree: Tree, server: dict[str, str]) -> None:
    files = server | {
        "sys/devices/system/node/online": "0-4",
        "sys/devices/system/node/node4/cpulist": "",
        "sys/devices/system/node/node4/meminfo": f"Node 4 MemTotal: {512 * 2**20} kB",
    }
    node, numa = probed(tree(files))
    assert numa.count == 4
    assert [memory.space for memory in node.memory] == ["host", "numa:4"]
    assert capacity(node, "numa:4") == 512 * GIB


def test_cpus_that_are_offline_do_not_count(tree: Tree, server: dict[str, str]) -> None:
    node, _ = probed(tree(server | {"sys/devices/system/cpu/online": "0-15"}))
    assert (node.cores, node.threads_per_core) == (16, 1)


def test_affinity_to_one_domain_leaves_its_cores_and_no_level_of_domains(
    tree: Tree, server: dict[str, str]
) -> None:
    (node,) = probed(tree(server), affinity={0, 1, 2, 3, 16, 17})
    assert (node.cores, node.threads_per_core) == (4, 2)
    assert [(cache.space, cache.count) for cache in node.caches] == [("l1d", 4), ("l2", 4), ("l3", 1)]


def test_domains_that_memory_may_not_come_from_do_not_count(tree: Tree, server: dict[str, str]) -> None:
    files = server | {"proc/self/status": "Name:\tpython\nMems_allowed_list:\t0,2"}
    _, numa = probed(tree(files))
    assert numa.count == 2


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3, 256 * GIB),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": str(GIB)}, 16, GIB),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "800000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/b/memory.max": "max",
            },
            8,
            256 * GIB,
        ),
        # A container that sees the host's path of its group, but its own files at the mount point.
        ({"proc/self/cgroup": "0::/docker/1f", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1, 256 * GIB),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(3 * GIB),
            },
            2,
            3 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n3:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            16,
            256 * GIB,
        ),
    ],
    ids=["v2 cpu", "v2 memory", "v2 nested", "v2 container", "v1", "v1 unlimited"],
)
def test_control_groups_limit_cores_and_memory(
    tree: Tree, server: dict[str, str], files: dict[str, str], cores: int, memory: int
) -> None:
    node = probed(tree(server | files))[0]
    assert node.cores == cores
    assert capacity(node, "host") == memory


def test_devices_are_those_that_the_process_can_open(tree: Tree, server: dict[str, str]) -> None:
    card = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 90\nDevice Minor: \t "
    files = server | {
        "proc/driver/nvidia/gpus/0000:18:00.0/information": card + "0",
        "proc/driver/nvidia/gpus/0000:2a:00.0/information": card + "1",
        "dev/nvidia0": "",
        "dev/nvidia1": "",
        "dev/nvidiactl": "",
        "dev/nvidia-uvm": "",
    }
    root = tree(files)
    assert probed(root)[0].devices == ("gpu:0 NVIDIA H200", "gpu:1 NVIDIA H200")
    (root / "dev/nvidia0").unlink()
    assert probed(root)[0].devices == ("gpu:0 NVIDIA H200",)


def test_devices_of_the_other_vendor(tree: Tree, server: dict[str, str]) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = server | {
        f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0",
        f"{nodes}/1/properties": "cpu_cores_count 0\nsimd_count 1216",
        f"{nodes}/1/name": "aqua_vanjaram",
    }
    root = tree(files)
    assert probed(root)[0].devices == ()
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    assert probed(root)[0].devices == ("gpu:0 AMD aqua_vanjaram",)


def test_an_arm_machine_names_its_extensions_otherwise(tree: Tree) -> None:
    files = {
        "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp sve bf16\n"
        "CPU implementer\t: 0x41\n\nprocessor\t: 1\nFeatures\t: fp asimd asimddp sve bf16",
        "proc/meminfo": f"MemTotal: {4 * 2**20} kB",
    }
    (node,) = probed(tree(files))
    assert node.cores == 2
    assert node.features == ("asimd", "asimddp", "bf16", "sve")
    assert node.clock is None
    assert node.caches == ()


def test_an_arm_machine_without_any_features_has_none(tree: Tree) -> None:
    (node,) = probed(tree({"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x61"}))
    assert (node.cores, node.features, capacity(node, "host")) == (1, (), None)


def test_a_power_machine_says_altivec_beside_the_model(tree: Tree) -> None:
    text = "processor\t: 0\ncpu\t\t: POWER8NVL (raw), altivec supported\nclock\t\t: 4023.000000MHz"
    (node,) = probed(tree({"proc/cpuinfo": text}))
    assert node.features == ("altivec",)
    assert node.clock == Quantity(4.023e9, "Hz", "measured")


def test_a_system_without_such_files_still_has_a_node(tmp_path: Path) -> None:
    (node,) = probed(tmp_path)
    assert (node.name, node.cores, node.devices) == ("node", 1, ())
    assert [memory.space for memory in node.memory] == ["host"]


def test_storage_is_the_file_system_of_the_directory(tree: Tree, tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": f"22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n"
        f"23 22 0:5 / {tmp_path} rw shared:7 - lustre mgs@o2ib:/scratch rw\n"
        f"24 22 0:6 / {tmp_path}/other rw - tmpfs tmpfs rw"
    }
    (node,) = probed(tree(files), directory=tmp_path)
    [storage] = node.storage
    assert storage.space == "lustre"
    assert storage.capacity is not None
    assert storage.capacity.source == "measured"
    (elsewhere,) = probed(tree(files), directory=Path("/"))
    assert elsewhere.storage[0].space == "ext4"


def test_garbage_in_every_file_breaks_no_probe(tree: Tree, server: dict[str, str]) -> None:
    files = dict.fromkeys(server, "\x00 garbage: -1 :: /../..")
    node = probed(tree(files | {"proc/self/cgroup": "0:\n::\n:cpu:..\n"}))[0]
    assert node.cores == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_this_machine_has_at_most_the_cores_that_it_may_use() -> None:
    levels = probed()
    assert 1 <= (levels[0].cores or 0) <= len(os.sched_getaffinity(0))
    assert (capacity(levels[0], "host") or 0) > 2**28


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": " 4,2"}, 4),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "many"}, None),
        (
            {
                "OMP_NUM_THREADS": "2",
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "16",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
            },
            16,
        ),
        ({"OMP_NUM_THREADS": "2", "PMI_RANK": "0", "PMI_SIZE": "4"}, None),
    ],
)
def test_the_threads_that_the_environment_asks_for_are_of_all_processes_here(
    environment: dict[str, str], threads: int | None
) -> None:
    assert threads_asked(environment) == threads


def test_this_machine_has_no_more_cores_than_the_environment_asks_for(
    monkeypatch: pytest.MonkeyPatch, tree: Tree, server: dict[str, str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert probed()[0].cores == 1
    assert probed(tree(server))[0].cores == 16, "another machine's are not asked for here"
    told = {finding.subject: finding.message for finding in findings()}
    cores = len(processors(KernelFiles()).cores)
    asked = f"OMP_NUM_THREADS makes nets use 1 of {cores} cores, unless a description says otherwise"
    assert told.get("threads") == (asked if cores > 1 else None)
