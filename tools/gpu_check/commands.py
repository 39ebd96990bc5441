"""The command line on a GPU, as a user calls it: train on digits, in one process and in two."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cases import Cases, Table

ROOT = Path(__file__).resolve().parents[2]
GOOD = 0.97
"""The accuracy required on held-out digits; typically it is 0.99."""
ITERATIONS, ALIKE = 100, 1e-3
"""Iterations of runs in two processes, and how far their losses may differ from one process's."""
PERMUTED = """
layer {{ name: "{0}" type: "Permute" bottom: "{1}" top: "{0}" permute_param {{ order: 1 order: 0 }} }}
"""
"""Applied twice, it restores the order. The GPU has no kernel for it; the host's compute it on
copies."""
ELSEWHERE = "--plugins", "+onnx", "--iterations", str(ITERATIONS), "--json", "elsewhere.json"
STAGES = ("packed", "SC-B", "SC-OBR", "overlap")
PROCESSES = """
schema = 1
name = "processes"
fingerprint = "any"
plugins = [
    "caffe", "training", "datasets", "gpu", "cpu", "reference", "snapshots", "system", "allreduce",
]

[[level]]
name = "process"
count = 2
workers = "mpi"
sync = { plugin = "allreduce", stage = "STAGE" }

[[level]]
name = "gpu"
count = 1
workers = "streams"
memory = [{ space = "gpu", at = "gpu" }]
"""


def command(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Run what a user would call first, and train on digits in two processes on one GPU, in each
    stage."""
    if any(importlib.util.find_spec(name) is None for name in ("click", "rich", "sklearn")):
        yield {"skipped": ["the command line needs click and rich, digits are scikit-learn's"]}
        return
    end, hw = time.monotonic() + seconds, "auto" if stand_in else str(ROOT / "hwdesc/one-gpu.toml")
    with tempfile.TemporaryDirectory() as folder:
        for file in (ROOT / "examples/digits").glob("*.prototxt"):
            shutil.copy(file, folder)
        _with_permutes(Path(folder))
        solver = ("digits_solver.prototxt", "--hw", hw, "--no-progress")
        calls: dict[str, Sequence[str]] = {
            "doctor": ["doctor"],
            "train": ["train", *solver, "--json", "f32.json"],
            "train bf16": ["train", *solver, "--precision", "bf16", "--json", "bf16.json"],
            "elsewhere": ["train", "elsewhere.prototxt", *solver[1:], *ELSEWHERE],
            "timeline": ["train", *solver, "--iterations", "20", "--timeline", "timeline.json"],
            "explain": ["explain", *solver[:3]],
            "time": ["time", "digits_train_test.prototxt", "--hw", hw],
        }
        for name, told in calls.items():
            if name not in without:
                yield {"begun": name, "limit": 60}
                yield from _called(name, [sys.executable, "-m", "demitasse_cli", *told], Path(folder))
        for name in ("f32", "bf16"):
            yield from _learnt(name, Path(folder) / f"{name}.json")
        expected = json.loads((Path(folder) / "f32.json").read_text())["history"][ITERATIONS - 1]
        yield from _compared("elsewhere", Path(folder) / "elsewhere.json", expected)
        if stand_in or shutil.which("mpiexec") is None or importlib.util.find_spec("mpi4py") is None:
            yield {"skipped": ["processes: there is no mpiexec, or no mpi4py"]}
            return
        for stage in STAGES:
            if stage in without or time.monotonic() > end - 15:
                continue
            yield {"begun": stage, "limit": 60}
            yield from _in_processes(stage, Path(folder), expected)


def _in_processes(stage: str, folder: Path, expected: Any) -> Iterator[Table]:
    """Train on digits with two processes on the first GPU, and compare the result with one process's."""
    (folder / "processes.toml").write_text(PROCESSES.replace("STAGE", stage))
    result = folder / f"{stage}.json"
    told = ["train", "digits_solver.prototxt", "--hw", "processes.toml", "--no-progress"]
    told += ["--iterations", str(ITERATIONS), "--json", str(result)]
    yield from _called(
        stage, ["mpiexec", "-n", "2", sys.executable, "-m", "demitasse_cli", *told], folder
    )
    yield from _compared(stage, result, expected)


def _compared(what: str, result: Path, expected: Any) -> Iterator[Table]:
    """Compare the last loss of a run with that of the plain run at the same iteration."""
    if not result.exists():
        return
    loss, one = (_loss(each) for each in (json.loads(result.read_text())["history"][-1], expected))
    yield {"losses": [[what, loss, one]]}
    if not abs(loss - one) <= ALIKE * abs(one):
        yield {"wrong": [f"{what}: comes to a loss of {loss}, one process to {one}"]}


def _with_permutes(folder: Path) -> None:
    """Write the digits' solver and net again, with two uses of an operation that the GPU has no kernel
    for."""
    net = (folder / "digits_train_test.prototxt").read_text()
    between = PERMUTED.format("there", "ip1") + PERMUTED.format("back", "there")
    before, after = net.split('layer {\n  name: "ip2"')
    after = after.replace('bottom: "ip1"', 'bottom: "back"')
    (folder / "permuted.prototxt").write_text(f'{before}{between}layer {{\n  name: "ip2"{after}')
    solver = (folder / "digits_solver.prototxt").read_text()
    (folder / "elsewhere.prototxt").write_text(solver.replace("digits_train_test", "permuted"))


def _loss(row: Any) -> float:
    return float(row["loss"] if isinstance(row, dict) else row[1] if isinstance(row, list) else row)


def _called(name: str, told: Sequence[str], folder: Path) -> Iterator[Table]:
    start = time.monotonic()
    done = subprocess.run(told, cwd=folder, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr)[-4000:]
    yield {"calls": [{"call": name, "seconds": round(time.monotonic() - start, 1), "said": said}]}
    if done.returncode:
        yield {"wrong": [f"{name}: ended with {done.returncode}: {said[-600:]}"]}


def _learnt(name: str, result: Path) -> Iterator[Table]:
    if result.exists():
        scores = json.loads(result.read_text())["scores"]
        yield {"scores": [[name, scores]]}
        if not scores["accuracy"] >= GOOD:
            yield {"wrong": [f"{name}: an accuracy of {scores['accuracy']} on digits"]}
