"""``python tools/gpu_check``: build, check and measure the gpu plugin on a GPU, in ten minutes.

Nothing needs to be installed but NumPy, pluggy, packaging, msgpack, protobuf, CuPy, cuDNN and cuBLAS;
with PyTorch there, its speed is measured beside ours, with pytest and hypothesis every kernel is
compared with the reference. Each part runs in a process of its own, the most
important first, with a limit on its time, and goes on behind a case that fails, kills it or hangs;
what came of it, with tracebacks, is written to the JSON file at once, so that a run that is cut off
leaves what it has. ``--stand-in`` runs on the processor, with small nets, to try the script where there
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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import isolated

ROOT = Path(__file__).resolve().parents[2]
PATHS = (
    "core/src",
    *(f"plugins/{path.parent.name}/src" for path in sorted(ROOT.glob("plugins/*/src"))),
    *("tools", "tools/gpu_check", "plugins/gpu/tests"),
)
PARTS: dict[str, float] = {
    "about": 30,
    "engine": 60,
    "agreement": 120,
    "speed": 260,
    "small": 90,
    "copies": 30,
    "memory": 60,
    "kernels": 150,
}
"""The parts in order of importance, and the seconds that each may take; together more than there are, as
most take less."""
LEFT = 5.0
"""Seconds kept to write the result."""


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
    add("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (all, in this order)")
    add("--stand-in", action="store_true", help="on the processor, with small nets: tries the script")
    add("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    add("--without", action="append", default=[], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    for name in chosen.parts.split(","):
        if name not in PARTS:
            parser.error(f"unknown part {name!r} (valid: {', '.join(PARTS)})")
    return chosen


def run(chosen: argparse.Namespace) -> int:
    """Run the parts, each as far as its time goes; 1 when one failed, else 0."""
    start, result, failed = time.monotonic(), dict[str, Any](), list[str]()
    write(chosen.json, result)
    for name in chosen.parts.split(","):
        left = chosen.seconds - (time.monotonic() - start) - LEFT
        if left < min(20.0, PARTS[name]):
            result[name] = {"skipped": f"{left:.0f} s were left"}
            continue
        result[name] = part(name, min(left, PARTS[name]), chosen.stand_in)
        if "error" in result[name] or result[name].get("wrong"):
            failed.append(name)
        result["seconds"] = time.monotonic() - start
        write(chosen.json, result)
        print(f"{name}: {summary(result[name])}", flush=True)
    write(chosen.json, result)
    print(
        f"{', '.join(failed)} failed" if failed else "all parts passed", f"; see {chosen.json}", sep=""
    )
    return 1 if failed else 0


def part(name: str, limit: float, stand_in: bool) -> dict[str, Any]:
    """What a part finds, also one that fails or is cut off."""
    paths = os.pathsep.join(str(ROOT / path) for path in PATHS)
    before = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [paths, before]))}

    def command(without: Sequence[str], seconds: float) -> list[str]:
        told = [sys.executable, "-u", str(Path(__file__).parent), "--part", name]
        told += ["--seconds", str(seconds), *(["--stand-in"] if stand_in else [])]
        return [*told, *(f"--without={case}" for case in without)]

    return isolated.part(command, limit, env=environment, cwd=ROOT)


def summary(found: dict[str, Any]) -> str:
    """A part's result in a line."""
    told = [f"{found['seconds']:.0f} s"]
    told += [f"{key}: {found[key]}" for key in ("error", "wrong", "ratios", "rates") if found.get(key)]
    return "; ".join(told)


def write(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(finite(result), indent=1, default=str), encoding="utf-8")
    new.replace(path)


def finite(value: Any) -> Any:
    """A table without what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options()
    if chosen.part is None:
        return run(chosen)
    faulthandler.register(signal.SIGUSR1)  # by which one that is cut off is asked where it is
    from parts import RUN

    for said in RUN[chosen.part](chosen.seconds, chosen.stand_in, frozenset(chosen.without)):
        print(json.dumps(said, default=str), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
