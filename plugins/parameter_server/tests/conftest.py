"""Trainers of small nets on workers that a parameter server joins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launchers import SURVIVORS_SPEAK, let_survive, mpiexec

from demitasse import Level, Machine, SyncSpec, compose

sys.path.insert(0, str(Path(__file__).parent))

Train = Callable[..., Any]

LIMIT = 250.0
"""Seconds within which processes must have ended, on a machine that may be busy."""


@pytest.fixture
def train(toy: ModuleType, no_threads_left: None) -> Iterator[Train]:
    """``train(workers, net, solver={}, arrays=None, source=None, sync={}, **options)``: a trainer with
    reference kernels, in float64 by default."""
    with ExitStack() as stack:

        def make(workers: int, net: Any = None, **options: Any) -> Any:
            solver, sync = options.pop("solver", {}), options.pop("sync", {})
            samples = options.pop("arrays", None), options.pop("source", None)
            tests = options.pop("tests", ())
            names = [*options.pop("plugins", ()), "parameter_server", "reference", "training"]
            level = Level("worker", workers, workers="threads", sync=SyncSpec("parameter_server", sync))
            machine = Machine("toys", (level,), fingerprint="any")
            runtime = stack.enter_context(compose(machine, [*names, "snapshots", toy.toy(*samples)]))
            record = toy.solver(net or toy.classifier(), *tests, **solver)
            trainer = runtime.trainer(record, **{"precision": "f64", **options})
            stack.callback(trainer.close)
            return trainer

        yield make


@pytest.fixture
def across() -> Callable[..., list[dict[str, Any]]]:
    """``across(*arguments, program="across.py", **environment)``: what three processes of a program
    report, by rank."""
    launcher = mpiexec()

    def run(
        *arguments: object, program: str = "across.py", **environment: object
    ) -> list[dict[str, Any]]:
        path = Path(__file__).with_name(program)
        started = [launcher, *let_survive(), "-n", 3, *SURVIVORS_SPEAK, sys.executable, path]
        process = subprocess.Popen(
            [str(word) for word in (*started, *arguments)],
            env={**os.environ, **{name: _told(value) for name, value in environment.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            pytest.fail(f"they did not end in {LIMIT} s:\n{output}\n{errors}")
        lines = [line for line in output.splitlines() if line.startswith("{")]
        assert lines, errors
        return sorted((json.loads(line) for line in lines), key=lambda told: int(told["rank"]))

    return run


def _told(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
