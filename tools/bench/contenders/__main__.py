"""A contender's process: ``python -m bench.contenders NAME THREADS`` answers commands on standard input.

A command is a line of JSON with ``do``: prepare, run, output or rates. The answer is one line, with
``error`` if it failed. What libraries print goes to standard error.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench import values
from bench.contenders import MODULES
from bench.layers import Net

RATE = 1e3  # so large that a gradient computed with already updated parameters is far off
PARENT_DIES = 1  # PR_SET_PDEATHSIG: a stopped process does not notice that its input has ended


class Contestant:
    """What one process was asked to prepare, and its answers."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.entrant: Any = None

    def prepare(
        self,
        task: str,
        net: dict[str, Any],
        precision: str,
        setting: str,
        batch: int,
        dropout: bool,
        warm: int,
        collected: bool = True,
    ) -> dict[str, Any]:
        """Make a net (of its ``message``) for ``train`` or ``inference``, and run it some times. Returns
        the seconds from when its weights and samples are there. Python's garbage collection is off
        unless ``collected``.

        The peak of memory counts from here, so that it includes neither importing nor compiling.
        """
        made = Net.of(net) if dropout else Net.of(net).without("dropout")
        made.batch = batch
        made = made if task == "train" or self.module.__name__.endswith("own") else made.deploy()
        arrays = {**values.weights(Net.of(net)), **values.samples(made, batch)}
        if not collected:
            gc.disable()
        start = time.perf_counter()
        entrant = self.module.Training if task == "train" else self.module.Inference
        self.entrant = entrant(made, precision, setting, arrays)
        del arrays
        if warm:
            self.entrant.run(warm)
        forget_peak()
        return {"seconds": time.perf_counter() - start}

    def run(self, steps: int, each: bool = False) -> dict[str, Any]:
        """Return seconds per step and the values (step by step with ``each``), and the processor seconds
        of the process's threads."""
        start, own = time.perf_counter(), time.process_time()
        if each:
            found = [value for _ in range(steps) for value in self.entrant.run(1)]
        else:
            found = self.entrant.run(steps)
        elapsed, own = time.perf_counter() - start, time.process_time() - own
        return {
            "seconds": elapsed / steps,
            "elapsed": elapsed,
            "own": own,
            "values": found,
            "peak": peak(),
        }

    def gradients(
        self, net: dict[str, Any], precision: str, setting: str, batch: int, path: str
    ) -> dict[str, Any]:
        """Save the gradients of a first step without dropout to a file: how it changes the
        parameters."""
        made = Net.of(net).without("dropout")
        made.batch, made.rate, made.decay = batch, RATE, 0.0
        arrays = {**values.weights(Net.of(net)), **values.samples(made, batch)}
        entrant = self.module.Training(made, precision, setting, arrays)
        entrant.run(1)
        changed = entrant.parameters()
        np.savez(path, **{key: (np.float64(arrays[key]) - changed[key]) / RATE for key in changed})
        return {}

    def output(self, path: str) -> dict[str, Any]:
        """Save the probabilities of a deploy net to a file."""
        np.save(path, self.entrant.output())
        return {}

    def rates(self, precision: str) -> dict[str, Any]:
        """Return GFLOP/s of a matrix product and, if measured, GB/s of a triad."""
        found = {"matrix_product": self.module.matrix_product(precision)}
        if hasattr(self.module, "triad"):
            found["triad"] = self.module.triad()
        return found


def peak() -> int:
    """Return the peak memory of the process, in bytes, since ``forget_peak``."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module = importlib.import_module(f"bench.contenders.{MODULES[name]}")
    module.prepare(threads)
    contestant = Contestant(module)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(contestant, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001 - the parent reports it next to others' figures
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
