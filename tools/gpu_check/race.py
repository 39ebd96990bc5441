"""Training beside PyTorch, by turns in one run."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ours
from bench.nets import NETS
from cases import Cases, Table, failed

Case = tuple[str, str, int]
"""A net, a precision, and images to a batch."""
ROUNDS = 7
BIG: tuple[Case, ...] = (
    ("resnet50", "tf32", 128),
    ("resnet50", "bf16", 128),
    ("googlenet", "tf32", 128),
    ("vgg16", "tf32", 64),
    ("alexnet", "tf32", 256),
    ("googlenet", "bf16", 128),
    ("vgg16", "bf16", 64),
    ("alexnet", "bf16", 256),
    ("resnet50", "f32", 64),
    ("googlenet", "f32", 64),
    ("vgg16", "f32", 64),
    ("alexnet", "f32", 128),
)
SMALL: tuple[Case, ...] = tuple(
    (net, precision, 64) for net in ("lenet", "cifar10_quick") for precision in ("tf32", "bf16", "f32")
)
LONGEST = ("googlenet", "resnet50", "vgg16", "alexnet", "cifar10_quick", "lenet")
"""The nets by how long PyTorch takes to compile them."""
asked: dict[str, tuple[str, ...]] = {
    "precisions": ("tf32", "bf16", "f32"),
    "nets": LONGEST,
    "settings": ("eager", "compiled", "reduce-overhead"),
    "uncompiled": (),
}
"""What is measured; ``uncompiled`` are nets, with their precisions, that PyTorch has not compiled."""
SETTINGS = {"big": ("eager", "compiled"), "small": ("eager", "reduce-overhead")}
"""PyTorch's, of which the best counts."""


def compiling(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """PyTorch compiles what it will be measured with, each net in a process, and keeps the code. The
    nets that take longest come first."""
    if stand_in or importlib.util.find_spec("torch") is None:
        yield {"skipped": ["no PyTorch to compare with"]}
        return
    end, peers = time.monotonic() + seconds - 5, str(Path(__file__).with_name("peers.py"))
    every = [(case, "compiled") for case in BIG] + [(case, "reduce-overhead") for case in SMALL]
    wanted = [(case, setting) for case, setting in every if _is_asked_for(case)]
    wanted.sort(key=lambda each: LONGEST.index(each[0][0]))
    begun: dict[str, subprocess.Popen[str]] = {}
    said: dict[str, str] = {}
    while wanted or begun:
        while wanted and len(begun) < 8:
            (name, precision, batch), setting = wanted.pop(0)
            command = [sys.executable, peers, name, precision, str(batch), setting]
            begun[f"{name} {precision}"] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        time.sleep(0.2)
        for case in [case for case, process in begun.items() if process.poll() is not None]:
            process = begun.pop(case)
            _, error = process.communicate()
            if process.returncode:
                said[case] = error[-300:]
        if time.monotonic() > end:
            for process in begun.values():
                process.kill()
            for case in (*begun, *(" ".join(each[:2]) for each, _ in wanted)):
                said[case] = f"not compiled within {seconds:.0f} s"
            break
    yield {"not compiled": said}


def _is_asked_for(case: Case) -> bool:
    return case[0] in asked["nets"] and case[1] in asked["precisions"]


def speed(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Seconds a step of training the papers' nets."""
    cases = (("lenet", "bf16", 16),) if stand_in else BIG
    yield from _race(cases, SETTINGS["big"], time.monotonic() + seconds, 5, stand_in, without)


def small(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """The same of nets in which launches dominate."""
    cases, steps = ((("lenet", "bf16", 16),), 2) if stand_in else (SMALL, 100)
    yield from _race(cases, SETTINGS["small"], time.monotonic() + seconds, steps, stand_in, without)


def _race(
    cases: tuple[Case, ...],
    settings: tuple[str, ...],
    end: float,
    steps: int,
    stand_in: bool,
    without: Cases,
) -> Iterator[Table]:
    peer, settings = None, tuple(each for each in settings if each in asked["settings"])
    if not stand_in and importlib.util.find_spec("torch") is not None:
        import peers as peer  # type: ignore[no-redef]
    for name, precision, batch in cases:
        if (case := f"{name} {precision}") in without or not _is_asked_for((name, precision, batch)):
            continue
        if time.monotonic() > end - 20:
            yield {"skipped": [case]}
            continue
        yield {"begun": case, "limit": 90}
        net = NETS[name]()
        net.batch = batch
        said: Table = {"net": name, "precision": precision, "batch": batch}
        runners: dict[str, Any] = {}
        try:
            start = time.perf_counter()
            runners["ours"] = mine = ours.Training(net, precision, stand_in)
            said["prepared"] = time.perf_counter() - start
            said |= {"losses": mine.losses, "memory": mine.memory, "all memory": mine.all_memory}
            for setting in settings if peer is not None else ():
                if setting != "eager" and case in asked["uncompiled"]:
                    continue
                start = time.perf_counter()
                runners[setting] = peer.Training(net, precision, setting)
                said[f"{setting} prepared"] = time.perf_counter() - start
                said[f"{setting} memory"] = runners[setting].memory
            times = by_turns(runners, steps)
            medians = {who: statistics.median(t) for who, t in times.items()}
            said |= {"seconds": medians, "all": times}
            if theirs := [setting for setting in settings if setting in medians]:
                best = min(theirs, key=medians.__getitem__)
                ratio = round(medians[best] / medians["ours"], 3)
                said["ratio"] = ratio
                yield {"ratios": [[name, precision, batch, best, ratio]]}
            yield {"timed": [dict(said)]}  # what follows takes long
            said["seconds, samples from the host"] = mine.reading(steps)
            said["entries"] = mine.entries()
        except Exception as error:  # noqa: BLE001 - the next net may do
            said["error"] = f"{type(error).__name__}: {error}"
            yield {"races": [said], **failed(case, error, stand_in)}
        else:
            yield {"races": [said]}
        for each in runners.values():
            each.close()
        mine = None
        runners.clear()
        gc.collect()


def by_turns(runners: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Seconds a step of each in some rounds, in which all take turns."""
    times: dict[str, list[float]] = {who: [] for who in runners}
    for _ in range(ROUNDS):
        for who, runner in runners.items():
            start = time.perf_counter()
            runner.run(steps)
            times[who].append((time.perf_counter() - start) / steps)
    return times
