"""Whole runs of the command line in which one process is killed, stopped, or trains something else: all
others name it within the limit and end with status 2, and the last snapshot is complete."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from launchers import mpiexec

from demitasse import compose

if find_spec("sklearn") is None:  # importing it would take two seconds of collecting tests
    pytest.skip("the digits are scikit-learn's", allow_module_level=True)

LIMIT = 250.0
"""Seconds within which a run must get as far as a test waits for; the run's timeouts are 4 s."""

RANK = """
trap "" USR1
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
case $rank in 1) solver=$2;; *) solver=$1;; esac
"$0" -m demitasse_cli train $solver --hw machine.toml --quiet > $rank.out 2>&1 &
echo $! > $rank.pid.part; mv $rank.pid.part $rank.pid
wait $!
echo $? > $rank.status.part; mv $rank.status.part $rank.status
exit 0
"""
"""What the launcher starts for each rank: a shell that lives on, because MPICH's launcher kills all
processes on a host if one that it started dies by a signal."""

MACHINE = """
schema = 1
name = "processes"
fingerprint = "any"

[options.allreduce]
peer_timeout = "4 s"
stall_timeout = "60 s"

[[level]]
name = "process"
count = 3
workers = "mpi"
sync = { plugin = "allreduce" }

[[level]]
name = "node"
cores = 1
memory = [{ space = "host" }]
"""

NET = """
name: "small"
layer { name: "digits" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.0625 } data_param { source: "digits:train" batch_size: 60 } }
layer { name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden"
  inner_product_param { num_output: 40 weight_filler { type: "xavier" } } }
layer { name: "score" type: "InnerProduct" bottom: "hidden" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""

SOLVER = """
net: "net.prototxt" base_lr: %s lr_policy: "fixed" momentum: 0.9 max_iter: 100000000
display: 0 snapshot: 50 snapshot_prefix: "out"
"""


class Run:
    """Three ranks of ``demitasse train`` in a folder."""

    def __init__(self, folder: Path, other: str, outlive: list[str]) -> None:
        self.folder = folder
        words = [mpiexec(), *outlive, "-n", "3", "sh", "-c", RANK, sys.executable]
        self.launcher = subprocess.Popen(
            [*words, "solver.prototxt", other],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until a file exists, or until all ranks have ended."""
        for _ in range(int(LIMIT / 0.1)):
            if what():
                return
            try:
                self.launcher.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            assert what(), self.told()
            return
        pytest.fail(f"it did not happen in {LIMIT} s: {self.told()}")

    def snapshots(self) -> list[Path]:
        """The snapshots that were written so far, the oldest first."""
        found = self.folder.glob("out_iter_*.demitasse")
        return sorted(found, key=lambda path: int(path.stem.rpartition("_")[2]))

    def told(self) -> dict[int, str]:
        """Return what each rank has printed."""
        files = {rank: self.folder / f"{rank}.out" for rank in range(3)}
        return {rank: file.read_text() for rank, file in files.items() if file.exists()}

    def statuses(self) -> dict[int, int]:
        """Return the exit statuses of the ranks that have ended."""
        files = {rank: self.folder / f"{rank}.status" for rank in range(3)}
        return {rank: int(file.read_text()) for rank, file in files.items() if file.exists()}

    def signal(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        os.kill(int((self.folder / f"{rank}.pid").read_text()), number)


@pytest.fixture
def train(tmp_path: Path, survivors_live: list[str]) -> Callable[..., Run]:
    """``train(rate)`` starts a run, in which rank 1 may have a different learning rate."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "machine.toml").write_text(MACHINE)

    def start(rate: str = "0.01") -> Run:
        (tmp_path / "solver.prototxt").write_text(SOLVER % "0.01")
        (tmp_path / "other.prototxt").write_text(SOLVER % rate)
        return Run(tmp_path, "other.prototxt", survivors_live)

    return start


@pytest.mark.parametrize(
    ("number", "victim", "words"),
    [
        (signal.SIGKILL, 1, r"died; last heard of at iteration \d+"),
        (signal.SIGKILL, 0, r"died; last heard of at iteration \d+"),
        pytest.param(
            signal.SIGSTOP,
            2,
            r"has been silent for [\d.]+ s: stopped, or its host is down; last heard of at iteration "
            r"\d+",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_survivors_of_a_run_name_the_victim_and_the_snapshot_is_whole(
    train: Callable[..., Run], number: int, victim: int, words: str
) -> None:
    run = train()
    run.wait_for(lambda: len(run.snapshots()) >= 2)
    run.signal(victim, number)
    others = {0, 1, 2} - {victim}
    run.wait_for(lambda: others <= {*run.statuses()})
    if number == signal.SIGSTOP:
        run.signal(victim, signal.SIGKILL)
    run.launcher.wait(LIMIT)
    for rank in others:
        assert run.statuses()[rank] == 2, run.told()
        line = run.told()[rank].splitlines()[-1]
        assert re.match(
            rf"demitasse(, rank {rank})?: rank {victim} of 3 \(host \S+, process \d+\) {words}", line
        )
        assert re.search(rf"this is rank {rank} of 3 \(host \S+, process \d+\) at iteration \d+", line)
        # A waiting rank is at a layer's sum, in the update, or in a snapshot.
        assert re.search(r"at iteration \d+, (layer (hidden|score)|the update|a snapshot)", line)
    with compose() as runtime:
        for path in run.snapshots():
            assert {"hidden", "score"} <= {*runtime.read(path).weights().parameters}


def test_a_rank_with_another_solver_is_named_once(train: Callable[..., Run]) -> None:
    run = train("0.02")
    run.launcher.wait(LIMIT)
    told = [run.told()[rank] for rank in range(3)]
    assert [run.statuses()[rank] for rank in range(3)] == [2, 2, 2], told
    lines = [line for each in told for line in each.splitlines() if "of 3: the solver's " in line]
    assert len(lines) == 1 and lines[0].startswith("demitasse: rank 1 of 3: the solver's "), told
