"""The programs in docs/ besides the plugin guide's run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shown_programs import output, printed, programs

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        ("testing_plugins.md", "synchronisation: as one worker"),
        ("embedding.md", "ModelError: no such file: solvr.prototxt; did you mean 'solver.prototxt'?"),
    ],
)
def test_its_program_runs(guide, said, tmp_path):
    (program,) = programs(DOCS / guide)
    assert said in output(program, tmp_path).splitlines()


BATCH = re.findall(
    r"```\n#!(/bin/\w+)\n(.*?)```", (DOCS / "cluster.md").read_text("utf-8"), flags=re.DOTALL
)
TRAINS = "demitasse train SOLVER --resume auto --json run-3.json"
REQUEUE = ["requeue 4711"]
OPEN_MPI = re.compile(r"^launcher=.*\n# Open MPI: (.*)$", re.MULTILINE)


def ends_when_told(signal: str, status: int) -> str:
    """A launcher whose job is told that its time is over, and that ends its processes at a signal."""
    return f'trap "exit {status}" {signal}; while :; do kill -TERM $PPID; done'


@pytest.mark.parametrize(
    ("launcher", "options", "end", "status", "queued"),
    [
        ("srun", "--mpi=pmi2 --wait=60 ", "exit 143", 143, REQUEUE),
        ("srun", "--mpi=pmi2 --wait=60 ", "exit 0", 0, []),
        ("srun", "--mpi=pmi2 --wait=60 ", "exit 2", 2, []),
        ("mpiexec", "", ends_when_told("TERM", 143), 143, REQUEUE),
        ("mpiexec", "", "exit 0", 0, []),
        ("mpiexec", "", "exit 2", 2, []),
        ("mpiexec", "--bind-to none ", ends_when_told("USR2", 140), 140, REQUEUE),
        ("mpiexec", "--bind-to none ", "exit 143", 143, []),
    ],
)
def test_a_batch_script_queues_a_job_again_that_was_stopped_and_only_that(
    launcher, options, end, status, queued, tmp_path
):
    (shell, script), *more = [each for each in BATCH if launcher in each[1]]
    assert not more
    if "--bind-to" in options:
        script, changed = OPEN_MPI.subn(r"\1", script)
        assert changed == 1
    told = tmp_path / "told"
    for name, then in ((launcher, end), ("scontrol", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {told}-{name}\n{then}\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    slurm = {"PATH": path, "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "3"}
    done = subprocess.run([shell, "-c", script], env=slurm, check=False, timeout=30)
    assert done.returncode == status
    assert Path(f"{told}-{launcher}").read_text().splitlines() == [f"{options}{TRAINS}"]
    asked = Path(f"{told}-scontrol")
    assert (asked.read_text().splitlines() if asked.exists() else []) == queued


FIVE = programs(DOCS / "five_plugins.md")
SAID = (
    "a tenth of the gradients trains as well",
    "turned and rectified",
    "goes on at its sample",
    "npu.toml:6: options.npu: clock = '2 GB/s' (valid: a number above 0 with its unit, like '3 GHz')",
    "summed along two trees, and timed",
)


@pytest.mark.parametrize(("program", "said"), [*zip(FIVE, SAID, strict=True)], ids=range(5))
def test_each_of_the_five_plugins_runs(program, said, tmp_path):
    assert output(program, tmp_path).splitlines()[-1] == said


def test_the_first_of_the_five_runs_among_processes_too(tmp_path):
    launcher = Path(sys.executable).with_name("mpiexec")
    if not launcher.exists():
        pytest.skip("processes need the mpich wheel's mpiexec beside this Python")
    (tmp_path / "topk.py").write_text(FIVE[0], "utf-8")
    command = [str(launcher), "-n", "2", sys.executable, "topk.py", "2"]
    told = printed(command, tmp_path)
    assert told.count(SAID[0]) == 2, told  # whatever else a launcher says between them
