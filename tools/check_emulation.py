"""Compare LeNet on the emulated SW26010 with the cpu plugin: accuracy, early weights, time of a step.

    .venv/bin/python tools/check_emulation.py [--iterations N] [--machines NAME ...] [--data FOLDER]
    .venv/bin/python tools/check_emulation.py --steps

FOLDER holds MNIST's four files. Without ``--steps``, examples/mnist/lenet_solver.prototxt trains from
the same seed on the cpu plugin, on one core group and on the node's four. With it, nothing is trained
to the end: the three take turns in one process, some steps each, and the medians of their steps are
compared. That needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from demitasse import Machine, load_machine

ROOT = Path(__file__).parents[1]
TEN, EVERY = 10, 2500
"""Iterations after which weights are compared, and between tests."""

ROUNDS, BURST = 12, 4
"""How many turns each machine takes after the first one, and the steps of a turn."""


def core_groups(count: int) -> Machine:
    """Return the node of hwdesc/sw26010-node.toml with so many of its core groups."""
    node = load_machine(ROOT / "hwdesc/sw26010-node.toml")
    levels = (replace(each, count=count) if each.name == "core_group" else each for each in node.levels)
    return replace(node, levels=tuple(levels))


MACHINES: dict[str, Machine | str] = {
    "cpu": "auto",
    "1 core group": core_groups(1),
    "4 core groups": core_groups(4),
}


def solver_in(folder: Path, data: Path) -> Path:
    """Write the example's solver to a folder, with the path of its data."""
    (folder / "mnist").symlink_to(data.resolve())
    for file in (ROOT / "examples/mnist").glob("*.prototxt"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder / "lenet_solver.prototxt"


def weights(trainer: Any) -> dict[str, Any]:
    """Return copies of all parameters."""
    return {
        f"{layer} {i}": np.array(array)
        for layer, arrays in trainer.net.params.items()
        for i, array in enumerate(arrays)
    }


def train(name: str, solver: Path, iterations: int, right: dict[str, Any] | None) -> dict[str, Any]:
    """Train; return scores at intervals, which are printed as they come, and the weights after ten
    iterations, which are compared with ``right``."""
    rows, start = [], time.perf_counter()
    with demitasse.compose(MACHINES[name]) as runtime:
        trainer = runtime.trainer(solver, overrides={"snapshot": 0})
        trainer.step(min(TEN, iterations))
        early = weights(trainer)
        if right is not None:
            print(f"{name:<14} weights after ten iterations: {apart(early, right):.1e} from the cpu's")
        while trainer.iteration < iterations:
            loss = trainer.step(
                min(EVERY - trainer.iteration % EVERY, iterations - trainer.iteration)
            ).loss
            scores = {score: float(value) for score, value in trainer.test().items()}
            rows.append({"iteration": trainer.iteration, "training loss": loss, **scores})
            print(
                f"{name:<14} iteration {trainer.iteration:>6,}: accuracy {scores['accuracy']:.2%}, loss "
                f"{scores['loss']:.4f} (measured), {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    return {"rows": rows, "seconds": time.perf_counter() - start, "early": early}


def apart(found: dict[str, Any], right: dict[str, Any]) -> float:
    """Return the largest difference of weights, relative to the largest weight of each array."""
    return max(
        float(np.abs(found[name] - array).max() / np.abs(array).max()) for name, array in right.items()
    )


def steps(solver: Path) -> dict[str, float]:
    """Return the median seconds of a step on each machine."""
    times: dict[str, list[float]] = {name: [] for name in MACHINES}
    with ExitStack() as stack:
        trainers = {}
        for name, machine in MACHINES.items():
            runtime = stack.enter_context(demitasse.compose(machine))
            trainers[name] = runtime.trainer(solver, overrides={"snapshot": 0})
        for number in range(ROUNDS + 1):
            for name, trainer in trainers.items():
                taken = [trainer.step(1).seconds for _ in range(BURST)]
                # The first turn compiles; the first step of each turn finds other machines' data in the
                # caches.
                times[name] += taken[1:] if number else []
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/mnist")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        solver = solver_in(Path(folder), given.data)
        if given.steps:
            report = steps(solver)
            for name, seconds in report.items():
                print(f"{name:<14} {seconds * 1e3:8.2f} ms a step {seconds / report['cpu']:6.1f} x cpu")
        else:
            right = train("cpu", solver, given.iterations if "cpu" in given.machines else TEN, None)
            for name in given.machines:
                done = right if name == "cpu" else train(name, solver, given.iterations, right["early"])
                far = apart(done["early"], right["early"])
                report[name] = {"rows": done["rows"], "seconds": done["seconds"], "weights": far}
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
