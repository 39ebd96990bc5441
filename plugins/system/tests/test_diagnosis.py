"""Findings of the diagnosis on machines that are described by fake trees of kernel files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from pathlib import Path

from demitasse import Finding
from demitasse_system.diagnosis import findings

Tree = Callable[[Mapping[str, str]], Path]


def said(root: Path, affinity: Set[int] | None = None) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings(root, affinity)}


def test_a_machine_without_limits_is_well(tree: Tree, server: dict[str, str]) -> None:
    found = said(tree(server))
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["cores"].message == "16 cores with 32 hardware threads"
    assert found["memory"].message == "256 GiB"
    assert found["memory domains"].message.startswith("4 ")


def test_what_is_no_problem_needs_no_remedy_and_a_problem_has_one(
    tree: Tree, server: dict[str, str]
) -> None:
    files = server | {"proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 1024 kB"}
    found = said(tree(files))
    assert found["memory"].level == "problem"
    assert all((finding.level == "ok") == (not finding.remedy) for finding in found.values())


def test_a_control_group_is_told_with_how_to_raise_it(tree: Tree, server: dict[str, str]) -> None:
    files = {
        "proc/self/cgroup": "0::/job",
        "sys/fs/cgroup/job/cpu.max": "150000 100000",
        "sys/fs/cgroup/job/memory.max": str(2**30),
    }
    found = said(tree(server | files))
    assert found["cpu quota"].message == "the control group allows the time of 1.5 of 32 CPUs"
    assert "--cpus" in found["cpu quota"].remedy
    assert found["memory limit"].message == "the control group allows 1 of 256 GiB"


def test_binding_to_few_cpus_is_told(tree: Tree, server: dict[str, str]) -> None:
    found = said(tree(server), {0, 16})
    assert found["cores"].level == "note"
    assert "bound to 2 of 32" in found["cores"].message
    assert "memory domains" not in found


def test_huge_pages_that_are_off_are_told(tree: Tree, server: dict[str, str]) -> None:
    files = {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}
    found = said(tree(server | files))
    assert found["huge pages"].level == "note"
    assert "madvise" in found["huge pages"].remedy


def test_memory_without_cores_is_told(tree: Tree, server: dict[str, str]) -> None:
    files = {
        "sys/devices/system/node/online": "0-4",
        "sys/devices/system/node/node4/cpulist": "",
        "sys/devices/system/node/node4/meminfo": "Node 4 MemTotal: 1048576 kB",
    }
    assert "numa:4" in said(tree(server | files))["memory domains"].message


def test_devices_are_listed(tree: Tree, server: dict[str, str]) -> None:
    found = said(tree(server | {"dev/nvidia0": ""}))
    assert found["device"].message == "gpu:0 NVIDIA"


def test_a_system_without_such_files_is_diagnosed_too(tmp_path: Path) -> None:
    assert {"cores", "storage"} <= set(said(tmp_path))


def test_a_folder_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    [storage] = [f for f in findings(tmp_path, None, tmp_path / "gone") if f.subject == "storage"]
    assert storage.level == "problem"
    assert "No such file" in storage.message
