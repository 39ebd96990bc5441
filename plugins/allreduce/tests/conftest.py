"""Running real processes: a script under mpiexec, with a time limit and its output on failure. Starting
ranks takes a second, so scripts that leave them unchanged are run by the same ranks, one after the
other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import SURVIVORS_SPEAK, let_survive
from launchers import mpiexec as mpiexec_here

LIMIT = 120.0
SOURCES = [Path(__file__).parents[1] / "src", Path(__file__).parents[3] / "core" / "src"]

BEGIN = """
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
"""


def launched(command: list[str]) -> subprocess.Popen[str]:
    """Start a job in a process group of its own. All that its ranks print comes through one pipe."""
    paths = [*map(str, SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("PYTHONUNBUFFERED", None)  # a line is to come whole
    # Two cores may have five ranks: those that wait for a message must not keep others from work.
    environment |= {"OMP_NUM_THREADS": "1", "MPIR_CVAR_CH4_GLOBAL_PROGRESS": "1"}
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="session")
def survivors_live() -> list[str]:
    """Return the arguments with which this environment's launcher lets the other processes live when
    one dies."""
    return let_survive()


class Ranks:
    """Ranks that run several scripts, until one fails."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.scripts, self.ended = folder, size, 0, False
        for rank in range(size):
            os.mkfifo(folder / str(rank))
        program = str(Path(__file__).with_name("rank.py"))
        self.job = launched([mpiexec_here(), "-n", str(size), sys.executable, program, str(folder)])
        # Opened for reading too, so that this does not wait for the ranks.
        self.tasks = [os.open(folder / str(rank), os.O_RDWR) for rank in range(size)]

    def run(self, script: str, *arguments: str) -> str:
        """Run a script; return what all ranks printed until each had finished it."""
        self.scripts += 1
        path, mark = self.folder / f"{self.scripts}.py", f"script {self.scripts} has ended"
        path.write_text(textwrap.dedent(script))
        for tasks in self.tasks:
            os.write(tasks, f"{json.dumps([str(path), mark, *arguments])}\n".encode())
        late = threading.Timer(LIMIT, os.killpg, (self.job.pid, signal.SIGKILL))
        late.start()
        launcher_said, left = "", self.size
        assert self.job.stdout is not None
        while left and (line := self.job.stdout.readline()):
            left -= line.count(mark)
            launcher_said += line
        late.cancel()
        files = [path.with_name(f"{path.name}.{rank}") for rank in range(self.size)]
        output = "".join(file.read_text() for file in files if file.exists())
        if left:
            self.close()
            pytest.fail(
                f"{self.size} ranks failed, or took more than {LIMIT} s:\n{output}{launcher_said}"
            )
        return output

    def close(self) -> None:
        """End the ranks: they end when no further script can come, or are killed."""
        if self.ended:
            return
        self.ended = True
        for tasks in self.tasks:
            os.close(tasks)
        try:
            self.job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self.job.pid, signal.SIGKILL)
            self.job.communicate()


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """As ``mpiexec``, but in processes that run already. A script must leave them unchanged."""
    started: dict[int, Ranks] = {}

    def run(size: int, script: str, *arguments: str) -> str:
        if size not in started or started[size].ended:
            started[size] = Ranks(tmp_path_factory.mktemp("ranks"), size)
        return started[size].run(script, *arguments)

    yield run
    for each in started.values():
        each.close()


@pytest.fixture
def mpiexec(tmp_path: Path) -> Callable[..., str]:
    """Run a script on a number of ranks, each with numpy, MPI, comm, rank and size; return what they
    printed.

    Fails, with all output, if a rank fails, unless ``fails`` (None: it may or may not fail, as
    launchers differ), and if ``limit`` seconds are over.
    """

    def run(
        ranks: int,
        script: str,
        *arguments: str,
        fails: bool | None = False,
        limit: float = LIMIT,
        options: str = "",
    ) -> str:
        path = tmp_path / "script.py"
        path.write_text(BEGIN + textwrap.dedent(script))
        outlive = let_survive() if "-disable-auto-cleanup" in options else options.split()
        command = [
            mpiexec_here(),
            *outlive,
            "-n",
            str(ranks),
            *(SURVIVORS_SPEAK if "-disable-auto-cleanup" in options else ()),
            sys.executable,
            str(path),
            *arguments,
        ]
        process = launched(command)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{ranks} ranks did not end in {limit} s:\n{output}")
        if fails is not None and (process.returncode != 0) != fails:
            pytest.fail(f"{ranks} ranks ended with {process.returncode}:\n{output}")
        return output

    return run
