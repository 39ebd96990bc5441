"""On a machine with four memory domains, booted for the tests: where a training's pages are, compared
with a run that knows nothing of domains and with an interleaved one, and what a cpuset leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numalab import Lab, missing

REASON = missing(download=False)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
PROGRAM = Path(__file__).with_name("guest_program.py")
DOMAINS = """
schema = 1
name = "four"
fingerprint = "any"
plugins = ["caffe", "training", "datasets", "reference", "snapshots", "numa", "system"]
[[level]]
name = "node"
[[level]]
name = "numa"
count = 4
workers = "threads"
cores = 1
memory = [{ space = "host"AT }]
sync = { plugin = "SYNC" }
"""
COMPILER = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
"""The emulated processor differs from the host's. Loops are compiled once, outside, for any
processor."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Descriptions, and the exchange's loops compiled for any x86-64."""
    made = tmp_path_factory.mktemp("guest")
    for name, at, sync in (
        ("domains", ', at = "numa:*"', "numa"),
        ("oblivious", "", "reference"),
        ("warm", "", "numa"),
    ):
        text = DOMAINS.replace("AT }", f"{at} }}").replace("SYNC", sync)
        (made / f"{name}.toml").write_text(text)
    about = {
        **os.environ,
        **COMPILER,
        "NUMBA_CACHE_DIR": str(made / "cache"),
        "NUMALAB_RESULTS": str(made),
    }
    subprocess.run([sys.executable, PROGRAM, made / "warm.toml"], env=about, check=True)
    return made


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(4) as made:
        yield made


def ran(lab: Lab, folder: Path, lines: list[str], **limits: Any) -> Any:
    """Run shell lines in a guest; ``RUN`` in them is the program."""
    run = f"{sys.executable} {PROGRAM}"
    script = folder / f"script{len(list(folder.glob('script*')))}"
    begin = ["set -e", f"cp -r {folder / 'cache'} /run/cache"]
    script.write_text("\n".join([*begin, *(line.replace("RUN", run) for line in lines)]))
    about = {**COMPILER, "NUMBA_CACHE_DIR": "/run/cache"}
    return lab.run(["sh", str(script)], environment=about, timeout=700, **limits).checked()


def test_every_page_of_a_solver_lies_in_its_domain(lab: Lab, folder: Path) -> None:
    lines = [f"RUN {folder}/domains.toml near.json", f"RUN {folder}/oblivious.toml oblivious.json"]
    if interleaves := shutil.which("numactl") is not None:
        lines.append(f"numactl --interleave=all RUN {folder}/oblivious.toml interleaved.json")
    outcome = ran(lab, folder, lines)
    near, oblivious = outcome.json("near.json"), outcome.json("oblivious.json")
    assert near["hwloc_agrees"]
    assert near["workers_there"] == 4
    for worker, found in near["workers"].items():
        assert found["domain"] == int(worker)
        assert found["near"] == found["pages"] > 500
    assert all(blob["remote"] == 0 for blob in near["blobs"])
    threads = {name: cpus for name, cpus in near["threads"].items() if "worker" in name}
    assert [cpus for _, cpus in sorted(threads.items())] == [[0], [1], [2], [3]]
    assert near["remote"] <= 0.05 < oblivious["remote"]
    assert near["loss"] == pytest.approx(oblivious["loss"], rel=1e-5)
    if interleaves:
        assert outcome.json("interleaved.json")["remote"] > 0.5
    for name in ("near", "oblivious", "interleaved"):
        if (outcome.results / f"{name}.json").exists():
            print(name, f"{outcome.json(f'{name}.json')['remote']:.1%} of the pages are remote")


def test_binding_follows_a_cpuset(lab: Lab, folder: Path) -> None:
    outcome = ran(lab, folder, ["RUN auto"], cpus="1,3", mems="1,3")
    found = outcome.json()
    assert found["workers_there"] == 2
    threads = {name: cpus for name, cpus in found["threads"].items() if "worker" in name}
    assert [cpus for _, cpus in sorted(threads.items())] == [[1], [3]]
    nodes = {int(n) for blob in found["blobs"] for n, count in blob["nodes"].items() if count}
    assert nodes - {-1} == {1, 3}
    assert found["remote"] == 0
