"""Compare predictions of ``demitasse simulate`` with measured steps, for the nets of ``make bench``.

    python tools/check_simulation.py [NET ...] [--json FILE]
    python tools/check_simulation.py --hw FILE
    python tools/check_simulation.py --h200

Each net is predicted in one process and trained in another. The output has the quickest and the median
of its steps, and the most memory that the process holds during them. Steps are taken in short bursts
with rests. The load is printed: on a busy machine, only the quickest step is comparable.

``--hw`` predicts as if for another machine, from a description of this one that ``demitasse detect
--measure`` has written, and its rates alone. (Memory is then that of tensors.)

``--h200`` needs no GPU: it predicts for one GPU of ``hwdesc/h200-box.toml``, and compares with steps
that ``tools/gpu_check`` measured on an H200.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

SECONDS = 5.0
"""The most seconds of bursts for each net, after the first steps."""

BOX = Path(__file__).parents[1] / "hwdesc" / "h200-box.toml"
ON_AN_H200 = {
    ("resnet50", "tf32", 128): 34.9,
    ("resnet50", "bf16", 128): 19.6,
    ("vgg16", "tf32", 64): 30.0,
    ("vgg16", "bf16", 64): 14.0,
    ("alexnet", "tf32", 256): 12.2,
    ("alexnet", "bf16", 256): 6.9,
    ("googlenet", "tf32", 128): 17.0,
    ("googlenet", "bf16", 128): 10.6,
    ("resnet50", "f32", 64): 40.0,
    ("googlenet", "f32", 64): 18.6,
    ("lenet", "tf32", 64): 0.30,
    ("lenet", "bf16", 64): 0.32,
    ("lenet", "f32", 64): 0.29,
    ("cifar10_quick", "tf32", 64): 0.41,
    ("cifar10_quick", "bf16", 64): 0.34,
    ("cifar10_quick", "f32", 64): 0.50,
}
"""Milliseconds of a step, by net, precision and batch size, with samples on the device: from the tables
of plugins/gpu/MEASUREMENTS.md."""


def predict(net: str, precision: str, folder: Path, hw: str) -> dict[str, Any]:
    """Return what simulate predicts, here or by a description."""
    import demitasse

    solver, shape, _ = written(net, folder)
    start = time.perf_counter()
    machine = "auto" if hw == "auto" else replace(demitasse.load_machine(hw), fingerprint="described")
    with demitasse.compose(machine) as runtime:
        samples = {"data": shape, "label": ()}
        done = runtime.simulate(solver, precision=precision, samples=samples)
    return {
        "seconds": done.seconds,
        "phases": dict(done.phases),
        "memory": dict(done.memory),
        "took": time.perf_counter() - start,
    }


def measure(net: str, precision: str, folder: Path, hw: str) -> dict[str, Any]:
    """Return what training takes here."""
    import numpy as np

    import demitasse

    solver, shape, batch = written(net, folder)
    random = np.random.default_rng(0)
    data = random.random((batch, *shape), dtype=np.float32)
    samples = {"data": data, "label": random.integers(0, 10, batch)}
    steps, phases = [], {}
    with demitasse.compose() as runtime:
        trainer = runtime.trainer(solver, data={"train": samples}, precision=precision)
        trainer.step(2)
        # Reset the peak, which filling the parameters briefly raised: it should be that of steps.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(steps) < 5:
            result = trainer.step(1)
            if not steps or result.seconds < min(steps):
                phases = dict(result.phases)
            steps.append(result.seconds)
            if len(steps) % 10 == 0:
                time.sleep(0.05)
    return {
        "best": min(steps),
        "median": statistics.median(steps),
        "steps": len(steps),
        "phases": phases,
        # The samples belong to this tool, not to the trainer.
        "process": status("VmHWM") - data.nbytes,
        "load": os.getloadavg()[0],
    }


def written(net: str, folder: Path) -> tuple[Path, tuple[int, ...], int]:
    """Write a net; return its solver file, the shape of its images, and its batch size."""
    from bench import prototxt
    from bench.nets import NETS

    made = NETS[net]()
    return prototxt.write(made, folder / net), tuple(made.image), made.batch


def status(name: str) -> int:
    """Return a size of this process in bytes, as reported by the system."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def apart(task: str, net: str, precision: str, hw: str) -> dict[str, Any]:
    """Run one task in a separate process."""
    command = [sys.executable, __file__, "--task", task, net, "--precision", precision, "--hw", hw]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{task} {net} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def predict_h200(folder: Path) -> list[dict[str, Any]]:
    """Predict the steps of one H200 that were measured on one."""
    from bench import prototxt
    from bench.nets import NETS

    import demitasse

    box = demitasse.load_machine(BOX)
    one = [replace(each, count=1, sync=None) if each.name == "gpu" else each for each in box.levels]
    rows = []
    with demitasse.compose(replace(box, levels=tuple(one))) as runtime:
        for (net, precision, batch), measured in ON_AN_H200.items():
            made = NETS[net]()
            made.batch = batch
            solver = prototxt.write(made, folder / f"{net}-{batch}")
            samples = {"data": tuple(made.image), "label": ()}
            done = runtime.simulate(solver, precision=precision, samples=samples)
            row = {"net": net, "precision": precision, "batch": batch, "measured": measured}
            rows.append({**row, "simulated": done.seconds * 1e3})
    return rows


def show_h200(rows: list[dict[str, Any]]) -> None:
    """Print a line for each prediction."""
    print(f"{'net':<14} {'images':>6}  precision  simulated, ms  measured, ms  ratio")
    for row in rows:
        print(
            f"{row['net']:<14} {row['batch']:6}  {row['precision']:<9} {row['simulated']:14.2f} "
            f"{row['measured']:13.2f} {row['simulated'] / row['measured']:6.2f}"
        )


def main() -> None:
    """Print the table."""
    from bench.nets import NETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", help=f"default: {' '.join(NETS)}")
    parser.add_argument("--precision", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--hw", default="auto", help="a description of this machine")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", choices=("predict", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--h200", action="store_true", help="predict for an H200; needs no GPU")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.h200:
        with tempfile.TemporaryDirectory() as folder:
            rows = predict_h200(Path(folder))
        show_h200(rows)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    if given.task:
        with tempfile.TemporaryDirectory() as folder:
            task = {"predict": predict, "measure": measure}[given.task]
            print(json.dumps(task(given.nets[0], given.precision, Path(folder), given.hw)))
        return
    print(
        f"{'net':<14} {'step, ms':^44} {'memory, MiB':^28}  load\n"
        f"{'':<14} {'simulated':>9} {'quickest':>9} {'error':>7} {'median':>9} {'error':>7} "
        f"{'simulated':>9} {'measured':>9} {'error':>7}"
    )
    for net in given.nets or NETS:
        said, seen = (apart(task, net, given.precision, given.hw) for task in ("predict", "measure"))
        memory = said["memory"]["process"] + said["memory"]["runtime"]
        rows.append({"net": net, "simulated": said, "measured": seen})
        print(
            f"{net:<14} {said['seconds'] * 1e3:9.2f} {seen['best'] * 1e3:9.2f} "
            f"{said['seconds'] / seen['best'] - 1:+7.1%} {seen['median'] * 1e3:9.2f} "
            f"{said['seconds'] / seen['median'] - 1:+7.1%} "
            f"{memory / 2**20:9.1f} {seen['process'] / 2**20:9.1f} {memory / seen['process'] - 1:+7.1%}"
            f"  {seen['load']:.1f}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
