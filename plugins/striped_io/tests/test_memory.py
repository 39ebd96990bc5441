"""How much of a machine's memory may be used to keep a set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse import KernelFiles
from demitasse_striped_io.options import Options, local_processes, physical_memory

WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    "told, limits, expected",
    [
        ("0::/job/step", {"job/memory.max": "500000", "job/step/memory.max": "max"}, 500_000),
        ("0::/job", {"job/memory.max": "max"}, WHOLE),
        ("0::/seen/from/outside", {"memory.max": "700000"}, 700_000),
        ("4:cpu:/a\n3:memory:/a/b", {"memory/a/memory.limit_in_bytes": "600000"}, 600_000),
        ("3:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, WHOLE),
        ("", {}, WHOLE),
    ],
    ids=["version 2", "no limit", "container", "version 1", "version 1, no limit", "no groups"],
)
def test_a_jobs_or_a_containers_limit_counts_as_the_machines_memory(
    tmp_path: Path, told: str, limits: dict[str, str], expected: int
) -> None:
    for name, text in {"proc/self/cgroup": told, **limits}.items():
        path = tmp_path / (name if name.startswith("proc") else f"sys/fs/cgroup/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert physical_memory(KernelFiles(tmp_path)) == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are read from Linux's files")
def test_a_limit_of_addresses_counts_too() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)); "
        "from demitasse_striped_io.options import physical_memory; print(physical_memory())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1 << 32


@pytest.mark.parametrize(
    "told, count",
    [("4", 4), ("2(x3),1", 2), ("16(x2),64", 64), ("", 1), ("some", 1)],
)
def test_processes_that_srun_started_share_the_machine(
    monkeypatch: pytest.MonkeyPatch, told: str, count: int
) -> None:
    """Otherwise each would keep as large a set as if it were alone."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    alone = Options().resident()
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", told)
    assert local_processes() == count
    assert Options().resident() == pytest.approx(alone // count, rel=0.01)
    for name, value in (("PMI_RANK", "0"), ("PMI_SIZE", "6"), ("MPI_LOCALNRANKS", "3")):
        monkeypatch.setenv(name, value)
    assert local_processes() == 3
