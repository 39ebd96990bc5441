"""``python tools/gpu_check``: build, check and measure the gpu plugin on a GPU, in ten minutes.

Nothing needs to be installed but NumPy, pluggy, packaging, msgpack, protobuf, CuPy, cuDNN and cuBLAS;
with PyTorch there, its speed is measured beside ours, with pytest and hypothesis every kernel is
compared with the reference, with click and rich the command line is tried. Parts that check run beside
each other, parts that measure behind them, alone. Each has a process of its own, with a limit on its
time, and goes on behind a case that fails, kills it or hangs; what came of it, with tracebacks, is
written to the JSON file at once, so that a run that is cut off leaves what it has: its "parts" say of
each whether it waits, runs, or was passed, failed or skipped. A run that is asked to end (SIGTERM) ends
what it has started. ``--stand-in`` runs on the processor, with small nets, to try the script where there
is no GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import isolated
from distributions import described, sources

ROOT = Path(__file__).resolve().parents[2]
PATHS = [
    *sources(ROOT),
    *(ROOT / path for path in ("tools", "tools/gpu_check", "tests", "plugins/gpu/tests")),
]
CHECKS: dict[str, float] = {
    "preparing": 240,
    "about": 40,
    "engine": 60,
    "agreement": 150,
    "kernels": 150,
    "promises": 235,
    "ways": 120,
    "memory": 60,
    "mistakes": 60,
    "command": 120,
}
"""Parts that run concurrently, and the seconds that each may take. In ``preparing``, PyTorch compiles
what will be measured, and holds it. ``promises`` compiles all kernels for all types, which takes two
minutes of processor time."""
MEASURES: dict[str, float] = {"copies": 30, "speed": 300, "small": 90, "rates": 60}
"""Parts that run alone, in this order. Together they exceed the total, because most take less."""
PARTS = {**CHECKS, **MEASURES}
NETS = ("resnet50", "googlenet", "vgg16", "alexnet", "cifar10_quick", "lenet")
PRECISIONS = ("tf32", "bf16", "f32")
SETTINGS = ("eager", "compiled", "reduce-overhead")
CHOSEN = ("precisions", "nets", "settings")
ASKED_TO_END: list[int] = []
"""The signals that asked the run to end."""
LEFT = 5.0
"""Seconds reserved for writing the result."""
KEPT = {"small": 45.0, "rates": 30.0}
"""Seconds that earlier parts must leave to these measurements."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=(__doc__ or "").partition("\n\n")[0])
    add = parser.add_argument
    add(
        "--json",
        type=Path,
        default=Path("gpu_check.json"),
        help="where the result goes (gpu_check.json)",
    )
    add("--seconds", type=float, default=540.0, help="for all parts together (540)")
    add("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (all)")
    add("--precisions", default=",".join(PRECISIONS), help=f"measured ({','.join(PRECISIONS)})")
    add("--settings", default=",".join(SETTINGS), help=f"PyTorch's ({','.join(SETTINGS)})")
    add("--nets", default=",".join(NETS), help=f"looked at ({','.join(NETS)})")
    add("--stand-in", action="store_true", help="on the processor, with small nets: tries the script")
    add("--brief", action="store_true", help="without the time of each of a net's operations")
    add("--graphs", action="store_true", help="PyTorch's CUDA graphs with large nets too, as time goes")
    add("--folder", type=Path, help=argparse.SUPPRESS)
    add("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    add("--without", action="append", default=[], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    valid_names = {"parts": PARTS, "nets": NETS, "precisions": PRECISIONS, "settings": SETTINGS}
    for what, valid in valid_names.items():
        for name in getattr(chosen, what).split(","):
            if name not in valid:
                parser.error(f"unknown {what.removesuffix('s')} {name!r} (valid: {', '.join(valid)})")
    return chosen


class Run:
    """The requested parts and their results."""

    def __init__(self, chosen: argparse.Namespace, described: Path) -> None:
        self._start, self._chosen, self._lock = time.monotonic(), chosen, threading.Lock()
        self._states = dict.fromkeys(chosen.parts.split(","), "waits")
        self._result: dict[str, Any] = {"parts": self._states}
        self._held = described / "held"
        self._held.mkdir()
        paths = os.pathsep.join(map(str, [*PATHS, described]))
        before = os.environ.get("PYTHONPATH")
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [paths, before]))}
        # Eight processes compile concurrently; each would start as many others as there are cores.
        self._environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")

    def all(self) -> int:
        """Run the parts, each for as long as its time allows. Returns 1 if one failed, otherwise 0, even
        if some were skipped for lack of time, or the run was asked to end."""
        wanted = self._chosen.parts.split(",")
        write(self._chosen.json, self._result)
        together = [name for name in wanted if name in CHECKS]
        beside = max(1, min(len(together), (os.cpu_count() or 1) // 2))
        with ThreadPoolExecutor(beside) as pool:
            doing = [pool.submit(self._one, name) for name in together]
            while wait(doing, isolated.LOOK).not_done:
                pass  # a signal right after another may not end a wait; it is noticed afterwards
            for each in doing:
                each.result()
        for name in wanted:
            if name in MEASURES:
                self._one(name)
        print(f"{verdict(self._states)}; see {self._chosen.json}")
        return 1 if "failed" in self._states.values() else 0

    def _one(self, name: str) -> None:
        if isolated.is_over():
            return
        left = self._chosen.seconds - (time.monotonic() - self._start) - LEFT - self._kept_behind(name)
        enough = left >= min(20.0, PARTS[name])
        found = dict[str, Any]()
        with self._lock:
            self._result[name] = found
            self._states[name] = "runs" if enough else "skipped"
        if enough:
            self._part(name, min(left, PARTS[name]), found)
        else:
            found["skipped"] = f"{left:.0f} s were left"
        with self._lock:
            if enough:
                self._states[name] = state(found)
            self._result["seconds"] = time.monotonic() - self._start
            write(self._chosen.json, self._result)
            print(f"{name}: {summary(found)}", flush=True)

    def _kept_behind(self, name: str) -> float:
        """Seconds reserved for later measurements, which would otherwise find no time left."""
        order = [*MEASURES]
        behind = order[order.index(name) + 1 :] if name in order else []
        return sum(KEPT.get(each, 0.0) for each in behind if each in self._states)

    def _part(self, name: str, limit: float, found: dict[str, Any]) -> None:
        """Run a part. Findings, even of a part that fails or is cut off, are put in ``found`` and
        written as they arrive."""
        stand_in = ["--stand-in"] if self._chosen.stand_in else []

        def command(without: Sequence[str], seconds: float) -> list[str]:
            told = [sys.executable, "-u", str(Path(__file__).parent), "--part", name]
            told += ["--seconds", str(seconds), "--precisions", self._chosen.precisions]
            told += ["--nets", self._chosen.nets, "--settings", self._chosen.settings, *stand_in]
            told += ["--brief"] * self._chosen.brief + ["--graphs"] * self._chosen.graphs
            if "preparing" in self._chosen.parts.split(","):
                told += ["--folder", str(self._held)]
            return [*told, *(f"--without={case}" for case in without)]

        isolated.part(command, limit, found, self._write, env=self._environment, cwd=ROOT)

    def _write(self) -> None:
        with self._lock:
            write(self._chosen.json, self._result)


def state(found: dict[str, Any]) -> str:
    """Return the outcome of a part that has run."""
    if "error" in found or found.get("wrong"):
        return "failed"
    warned = ", with warnings" * bool(found.get("warnings"))
    return f"passed{warned}" + ", but for what was skipped" * bool(found.get("skipped"))


def verdict(states: dict[str, str]) -> str:
    """Return the outcome of all parts in one line; a part that has not run does not count as passed."""
    told = dict[str, list[str]]()
    for name, what in states.items():
        told.setdefault(what, []).append(name)
    if set(told) == {"passed"}:
        return "all parts passed"
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in sorted(told.items()))


def stopped(number: int, frame: object) -> None:
    """Handle a request to end the run: otherwise, processes it started would go on using the device."""
    isolated.end_all()
    ASKED_TO_END.append(number)


def summary(found: dict[str, Any]) -> str:
    """Return a part's result in one line."""
    told = [f"{found['seconds']:.0f} s"] if "seconds" in found else []
    told += [
        f"{key}: {found[key]}"
        for key in ("skipped", "error", "wrong", "warnings", "ratios", "rates")
        if found.get(key)
    ]
    return "; ".join(told)


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the result, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(finite(result), indent=1, default=str), encoding="utf-8")
    new.replace(path)


def finite(value: Any) -> Any:
    """Return a table without numbers that JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options()
    if chosen.part is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stopped)
        # Prepared nets that nobody asks may still write there until they notice that it is gone.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            described(ROOT, Path(folder))
            status = Run(chosen, Path(folder)).all()
        return 128 + ASKED_TO_END[0] if ASKED_TO_END else status
    faulthandler.register(signal.SIGUSR1)  # asks a process that is cut off where it is
    from cases import say, warned
    from parts import RUN
    from race import asked

    for name in CHOSEN:
        setattr(asked, name, tuple(getattr(chosen, name).split(",")))
    asked.folder, asked.brief, asked.graphs = chosen.folder, chosen.brief, chosen.graphs
    with warned(lambda message: say({"warnings": [message]})):
        for said in RUN[chosen.part](chosen.seconds, chosen.stand_in, frozenset(chosen.without)):
            say(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
