"""One of several processes that train a toy: tells its losses as a JSON line, or fails at a read.

mpiexec -n 3 python across.py ITERATIONS [RANK READ FATE]

Under PROCESSORS each has so many of them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

import numpy as np
import toy

from demitasse import (
    DataError,
    DemitasseError,
    Event,
    Level,
    Machine,
    Runtime,
    Stream,
    SyncSpec,
    compose,
)

TIMEOUTS = {"allreduce": {"peer_timeout": "3 s", "stall_timeout": "60 s"}}

GATE = os.environ.get("GATE", "")
"""A named pipe at which rank 2 waits, before its first read, until rank 0 comes to its read GATE_AT."""


def settings(name: str) -> dict[str, Any]:
    """Return the settings in a variable of the environment."""
    found: dict[str, Any] = json.loads(os.environ.get(name, "{}"))
    return found


class Samples(toy.ArraySource):
    """Samples at one read of which something happens to this process."""

    def __init__(self, rank: int, fate: tuple[int, str] | None) -> None:
        super().__init__(toy.images())
        self.rank, self.fate = rank, fate

    def stream(self, first: int, count: int, step: int) -> Stream:
        stream: Stream = super().stream(first, count, step)
        reads, original = 0, stream.read

        def read(out: Mapping[str, Any]) -> None:
            nonlocal reads
            if GATE and (self.rank, reads) in ((2, 0), (0, int(os.environ["GATE_AT"]))):
                os.close(os.open(GATE, os.O_WRONLY if self.rank == 0 else os.O_RDONLY))
            if self.fate is not None and reads == self.fate[0]:
                befall(self.fate[1])
            reads += 1
            original(out)

        stream.read = read  # type: ignore[method-assign]
        return stream


def befall(fate: str) -> None:
    """What may happen to a process."""
    if fate == "raises":
        raise DataError("samples.bin: sample 17 is cut off")
    os.kill(os.getpid(), {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[fate])


def machine() -> Machine:
    """Return a machine of three processes that synchronise as SYNC says, with two threads each if
    THREADS is set."""
    sync = SyncSpec("parameter_server", {"servers": 2, **settings("SYNC")})
    outer = Level("node", 3, workers="mpi", sync=sync)
    inner = Level("core", 2, workers="threads", sync=SyncSpec("parameter_server"))
    levels = (outer,) if "THREADS" not in os.environ else (outer, inner)
    return Machine("toys", levels, fingerprint="any", options=TIMEOUTS)


def train(runtime: Runtime, iterations: int, told: dict[str, Any]) -> None:
    """Train a whole run with the settings in SOLVER, and return what tests check."""

    def listen(event: Event) -> None:
        if event.kind == "iteration":
            told["losses"].append(event.values["loss"])

    given = {"max_iterations": iterations, "snapshot_interval": 0, "snapshot_last": False}
    given |= settings("SOLVER")
    tests = [toy.classifier(phase="test")] if "test_interval" in given else []
    solver = toy.solver(toy.classifier(batch=11), *tests, **given)
    least = float(os.environ.get("UNTIL", "2"))
    with runtime.trainer(solver, precision="f64") as trainer:
        trainer.listeners.append(listen)
        told["before"] = trainer.notes
        trainer.run(until=lambda scores: scores["accuracy"] >= least)
        told["iteration"], told["notes"] = trainer.iteration, trainer.notes
        params = [array for arrays in trainer.net.params.values() for array in arrays]
        told["finite"] = all(bool(np.isfinite(array).all()) for array in params)
    for words in getattr(runtime.processes, "lost", {}).values():
        (process,) = re.findall(r"process (\d+)\)", words)
        if "stopped" in words and runtime.processes.rank == 0:
            os.kill(int(process), signal.SIGCONT)  # it goes on, and hears that it was dropped


def main() -> None:
    if "PROCESSORS" in os.environ:  # as a launcher binds processes
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["PROCESSORS"])])
    iterations, *fate = sys.argv[1:]
    told: dict[str, Any] = {"losses": [], "log": []}
    handler = logging.Handler()
    handler.emit = lambda record: told["log"].append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("demitasse.parameter_server").addHandler(handler)

    def open_samples(spec: object) -> Samples:
        mine = bool(fate) and int(fate[0]) == told["rank"]
        return Samples(told["rank"], (int(fate[1]), fate[2]) if mine else None)

    plugins: list[Any] = ["parameter_server", "allreduce", "reference", "training", "snapshots"]
    if "clip" in settings("SOLVER"):
        caffe = toy.installed("caffe")
        plugins.append(toy.plugin("words", operations=caffe.operations, kernels=caffe.kernels))
    try:
        with compose(machine(), [*plugins, toy.toy(source=open_samples)]) as runtime:
            told["rank"] = runtime.processes.rank
            train(runtime, int(iterations), told)
    except DemitasseError as error:
        told["error"] = f"{type(error).__name__}: {error}"
    os.write(1, (json.dumps(told) + "\n").encode())  # whole, whatever others write


if __name__ == "__main__":
    main()
