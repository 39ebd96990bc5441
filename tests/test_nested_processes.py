"""Processes around threads around an emulated processor: two nodes of four core groups train as one
worker does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import LAUNCHER

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("demitasse")
NODES = """
schema = 1
name = "two nodes"
fingerprint = "any"
plugins = ["caffe", "training", "datasets", "sw26010", "allreduce", "snapshots"]

[[level]]
name = "node"
count = 2
workers = "mpi"
sync = { plugin = "allreduce" }

[[level]]
name = "core_group"
count = 4
workers = "threads"
memory = [{ space = "ddr3", capacity = "8 GiB", source = "paper" }]
sync = { plugin = "sw26010", scheme = "handshake" }
kernels = "sw26010"
"""


def losses(folder: Path, *words: str) -> list[float]:
    """Of five iterations on the digits, by a command in a folder of its own."""
    folder.mkdir()
    solver = ROOT / "examples/digits/digits_solver.prototxt"
    command = [*words, str(COMMAND), "train", str(solver), "--iterations", "5", "--json", "run.json"]
    settings = ["--set", "test_interval=5", "--set", "snapshot_after_train=false"]
    hardware = ["--hw", "nodes.toml"] if words else []
    (folder / "nodes.toml").write_text(NODES)
    done = subprocess.run(
        [*command, *settings, *hardware],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((folder / "run.json").read_text())
    assert told["workers"] == (8 if words else 1)
    return [loss for _, loss in told["history"]]


@pytest.mark.skipif(not LAUNCHER.exists(), reason=f"no MPI launcher at {LAUNCHER}")
def test_two_nodes_of_four_core_groups_train_as_one_worker_does(tmp_path: Path) -> None:
    alone = losses(tmp_path / "alone")
    nested = losses(tmp_path / "nested", str(LAUNCHER), "-n", "2")
    assert len(alone) == 5
    assert nested == pytest.approx(alone, rel=1e-5)
