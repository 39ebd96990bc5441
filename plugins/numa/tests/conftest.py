"""Machines as trees of the files with which a kernel describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

Make = Callable[..., Path]


def described(
    cpus: Sequence[str],
    *,
    online: str | None = None,
    memory: Sequence[int | None] | None = None,
    distances: Sequence[Sequence[int]] | None = None,
    smt: Mapping[int, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Files of a machine whose node i has the processors ``cpus[i]`` and ``memory[i]`` MiB (None: the
    file is missing); ``smt`` gives the processors of a processor's core."""
    nodes, files = len(cpus), dict[str, str]()
    sizes = memory if memory is not None else [1024] * nodes
    table = distances or [[10 if a == b else 20 for b in range(nodes)] for a in range(nodes)]
    files["sys/devices/system/node/online"] = f"0-{nodes - 1}" if nodes > 1 else "0"
    numbers = [n for listing in cpus for n in _numbers(listing)]
    files["sys/devices/system/cpu/online"] = online or f"0-{max(numbers)}"
    for i, listing in enumerate(cpus):
        folder = f"sys/devices/system/node/node{i}"
        files[f"{folder}/cpulist"] = listing
        files[f"{folder}/distance"] = " ".join(map(str, table[i]))
        if sizes[i] is not None:
            files[f"{folder}/meminfo"] = f"Node {i} MemTotal:       {sizes[i] * 1024} kB"  # type: ignore[operator]
    for cpu, core in (smt or {}).items():
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = core
    return files | dict(more or {})


def _numbers(listing: str) -> list[int]:
    found: list[int] = []
    for part in listing.split(",") if listing else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Make:
    """Writes a machine's files below a new root, and returns the root."""

    def make(cpus: Sequence[str], **facts: object) -> Path:
        for path, content in described(cpus, **facts).items():  # type: ignore[arg-type]
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content + "\n", encoding="utf-8")
        return tmp_path

    return make
