"""Machines as trees of the files in which a kernel describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Tree = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Write files (path: content) below a new root, and return the root."""

    def write(files: Mapping[str, str]) -> Path:
        root = tmp_path / "machine"
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content + "\n", encoding="utf-8")
        return root

    return write


@pytest.fixture
def server() -> dict[str, str]:
    """Two sockets with two memory domains each: 16 cores of two threads, 4 per domain; CPU n + 16 is the
    second thread of CPU n; 64 GiB per domain."""
    files = {
        "sys/devices/system/cpu/online": "0-31",
        "sys/devices/system/node/online": "0-3",
        "proc/meminfo": f"MemTotal:       {256 * 2**20} kB\nMemAvailable:   {200 * 2**20} kB",
        "proc/cpuinfo": "processor\t: 0\ncpu MHz\t\t: 1999.7\nflags\t\t: fpu sse4_2 avx avx2 fma "
        "avx512f avx512_bf16 amx_tile xsave",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3800000",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }
    for cpu in range(32):
        core = cpu % 16
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/core_cpus_list"] = f"{core},{core + 16}"
        first = core // 8 * 8
        socket = f"{first}-{first + 7},{first + 16}-{first + 23}"
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", f"{core},{core + 16}"),
                (1, "Instruction", "32K", f"{core},{core + 16}"),
                (2, "Unified", "2048K", f"{core},{core + 16}"),
                (3, "Unified", "60M", socket),
            ]
        ):
            cache = f"{folder}/cache/index{index}"
            files[f"{cache}/level"] = str(level)
            files[f"{cache}/type"] = kind
            files[f"{cache}/size"] = size
            files[f"{cache}/shared_cpu_list"] = shared
    for domain in range(4):
        folder = f"sys/devices/system/node/node{domain}"
        first = 4 * domain
        files[f"{folder}/cpulist"] = f"{first}-{first + 3},{first + 16}-{first + 19}"
        files[f"{folder}/meminfo"] = f"Node {domain} MemTotal:       {64 * 2**20} kB"
    return files
