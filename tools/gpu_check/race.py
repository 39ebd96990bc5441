"""Training compared with PyTorch, in alternating turns of one run."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import held
import ours
from bench.layers import Net
from bench.nets import NETS
from cases import Cases, Table, failed
from held import Wish

Case = tuple[str, str, int]
"""A net, a precision, and a batch size."""
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
"""The nets in the order of PyTorch's compile time, longest first."""


@dataclass
class Asked:
    """What is measured. In ``folder``, PyTorch's nets are available that were prepared concurrently with
    other checks. ``brief`` omits the time of each of a net's operations. ``graphs`` also tries PyTorch's
    CUDA graphs with large nets, which are compiled a second time for this."""

    precisions: tuple[str, ...] = ("tf32", "bf16", "f32")
    nets: tuple[str, ...] = LONGEST
    settings: tuple[str, ...] = ("eager", "compiled", "reduce-overhead")
    folder: Path | None = None
    brief: bool = False
    graphs: bool = False


asked = Asked()
SETTINGS = {"big": ("eager", "compiled"), "small": ("eager", "reduce-overhead")}
"""PyTorch's settings, of which the best counts; ``Asked.graphs`` adds one to those of big nets."""
GRAPHS = "reduce-overhead"


def preparing(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Let PyTorch compile and tune what will be measured, each net in a process that then holds it. The
    nets that take longest come first, followed by what is not compiled, as far as memory allows, and
    last by what is compiled a second time, for CUDA graphs of large nets, as far as time allows."""
    if stand_in or importlib.util.find_spec("torch") is None or asked.folder is None:
        yield {"skipped": ["no PyTorch to compare with"]}
        return
    every = [
        *(Wish(*case, setting) for setting in _of_big() for case in BIG),
        *(Wish(*case, setting) for setting in SETTINGS["small"] for case in SMALL),
    ]
    wanted = [wish for wish in every if _is_asked_for(wish[:3]) and wish.setting in asked.settings]
    wanted.sort(key=_when)
    yield {"not prepared": held.prepare(wanted, asked.folder, seconds - 5)}


def _when(wish: Wish) -> tuple[int, int]:
    """The sorting key of a wish."""
    again = wish.setting == GRAPHS and wish[:3] in BIG
    return 2 if again else wish.setting == "eager", LONGEST.index(wish.net)


def _of_big() -> tuple[str, ...]:
    """PyTorch's settings for big nets."""
    return (*SETTINGS["big"], *[GRAPHS] * asked.graphs)


def _is_asked_for(case: Case) -> bool:
    return case[0] in asked.nets and case[1] in asked.precisions


def speed(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Measure seconds per training step of the papers' nets."""
    cases = (("lenet", "bf16", 16),) if stand_in else BIG
    yield from _race(cases, _of_big(), time.monotonic() + seconds, 5, stand_in, without)


def small(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """The same for nets whose time is dominated by launches."""
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
    peer, settings = None, tuple(each for each in settings if each in asked.settings)
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
                found = _peer(peer, net, Wish(name, precision, batch, setting))
                if found is None:
                    continue
                runners[setting] = found
                said |= {f"{setting} prepared": found.prepared, f"{setting} memory": found.memory}
            times = by_turns(runners, steps)
            medians = {who: statistics.median(t) for who, t in times.items()}
            said |= {"seconds": medians, "all": times}
            if theirs := [setting for setting in settings if setting in medians]:
                best = min(theirs, key=medians.__getitem__)
                ratio = round(medians[best] / medians["ours"], 3)
                said["ratio"] = ratio
                yield {"ratios": [[name, precision, batch, best, ratio]]}
            yield {"timed": [dict(said)]}  # report it now: what follows takes long
            said["seconds, samples from the host"] = mine.reading(steps)
            if not asked.brief:
                said["entries"] = mine.entries()
        except Exception as error:  # noqa: BLE001 - the next net may work
            said["error"] = f"{type(error).__name__}: {error}"
            yield {"races": [said], **failed(case, error, stand_in)}
        else:
            yield {"races": [said]}
        for each in runners.values():
            each.close()
        mine = None
        runners.clear()
        gc.collect()


def _peer(peer: Any, net: Net, wish: Wish) -> Any:
    """Return PyTorch's training where it was prepared; prepare it now if nobody was to prepare it, or if
    it is not compiled; otherwise return None."""
    if asked.folder is not None and (place := wish.place(asked.folder)).exists():
        return held.Held(place)
    if asked.folder is not None and wish.setting != "eager":
        return None
    return peer.Training(net, wish.precision, wish.setting)


def by_turns(runners: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Return seconds per step of each contender, for some rounds in which all take turns."""
    times: dict[str, list[float]] = {who: [] for who in runners}
    for _ in range(ROUNDS):
        for who, runner in runners.items():
            times[who].append(runner.timed(steps) / steps)
    return times
