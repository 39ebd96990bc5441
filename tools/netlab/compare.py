"""Allreduces in one lab, side by side: MPICH's default, each of its algorithms, and each of Demitasse's
next to the cost model's prediction, based on measurements in the same lab just before; and the lower
bound: the bytes that any allreduce must send, without the sum."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import load_machine, unknown
from demitasse_schedules import RANK_MAPS, Topology, cost, rounds_of, topology
from netlab.lab import Netlab
from netlab.measure import KB, MB, Measurement, measure
from netlab.network import LabError

CONTEST = Path(__file__).with_name("contest.py")
DEFAULT = "MPICH default"
AUTO = "ours auto"
FLOOR = "floor, no sums"
HALVING = "recursive-halving-doubling"

MPICH: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {"algorithm": "auto"},
    **{
        f"MPICH {name}": {"algorithm": name}
        for name in (
            "nb",
            "smp",
            "recursive_doubling",
            "recursive_multiplying",
            "reduce_scatter_allgather",
            "k_reduce_scatter_allgather",
            "recexch",
            "ring",
            "tree",
        )
    },
    "MPICH tree, 256 KB": {"algorithm": "tree", "chunk": 256 * KB},
}
"""All values of MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM except ``ccl``, which is for GPUs; the tree also
with a pipeline, which another variable of MPICH enables."""

GOALS = {"orders": 1.7, "best": 1.0, "default": 1.3, "model": 0.15}


@dataclass(frozen=True)
class Comparison:
    """Seconds of each contender (its rounds, by size), predictions for ours (by size), and what ``auto``
    chose (by size; empty if it did not take part)."""

    measurement: Measurement
    sizes: tuple[int, ...]
    seconds: Mapping[str, Sequence[Sequence[float]]]
    predicted: Mapping[str, Sequence[float]]
    choices: tuple[str, ...] = ()

    def median(self, name: str, size: int) -> float:
        """Return the median of a contender's rounds for size number ``size``."""
        return statistics.median(self.seconds[name][size])

    def best_of_mpich(self, size: int) -> str:
        """Return the fastest of MPICH's contenders for size number ``size``."""
        own = [name for name in self.seconds if name in MPICH]
        return min(own, key=lambda name: self.median(name, size))

    def _quartiles(self, name: str, other: str, size: int) -> tuple[float, float]:
        """Return the quartiles of the ratio of two contenders' times in the same round."""
        rounds = zip(self.seconds[name][size], self.seconds[other][size], strict=True)
        low, high = np.percentile([one / two for one, two in rounds], (25, 75))
        return float(low), float(high)

    def findings(self) -> list[dict[str, Any]]:
        """Return the figures that the goals need, by size: ratios of medians, and the largest error of
        the model with the algorithm concerned. What was not run is left out."""
        found = []
        for number, size in enumerate(self.sizes):
            each: dict[str, Any] = {"bytes": size}
            maps = [f"ours {HALVING}, {order}" for order in RANK_MAPS]
            if self.seconds.keys() >= set(maps):
                natural, dealt = (self.median(name, number) for name in maps)
                each["orders"] = natural / dealt
            if AUTO in self.seconds and DEFAULT in self.seconds:
                auto, name = self.median(AUTO, number), self.best_of_mpich(number)
                each["default"] = self.median(DEFAULT, number) / auto
                each["best"] = self.median(name, number) / auto
                each |= {"best_of_mpich": name, "quartiles": self._quartiles(name, AUTO, number)}
                if FLOOR in self.seconds:
                    each["floor"] = self.median(FLOOR, number) / auto
            errors = {
                name: self.median(name, number) / seconds[number] - 1
                for name, seconds in self.predicted.items()
            }
            if errors:
                worst = max(errors, key=lambda name: abs(errors[name]))
                each |= {"model": errors[worst], "worst": worst}
            found.append(each)
        return found

    def json(self) -> dict[str, Any]:
        """Return all numbers, in seconds and bytes."""
        return {
            "sizes": self.sizes,
            "seconds": self.seconds,
            "predicted": self.predicted,
            "choices": self.choices,
            "findings": self.findings(),
            "goals": GOALS,
            "lab": self.measurement.json(),
        }

    def table(self) -> str:
        """Return the same for people: median milliseconds, the ratio to MPICH's default, and the ratio
        of measured to predicted time."""
        width = max(map(len, self.seconds))
        heads = (f"{size / MB:g} MB   default/   /model" for size in self.sizes)
        lines = [" " * width + "".join(f"{head:>28}" for head in heads)]
        for name in self.seconds:
            cells = []
            for number in range(len(self.sizes)):
                took = self.median(name, number)
                ratio = f"{self.median(DEFAULT, number) / took:9.2f}" if DEFAULT in self.seconds else ""
                model = f"{took / self.predicted[name][number]:9.2f}" if name in self.predicted else ""
                cells.append(f"{took * 1e3:10.1f}{ratio:>9}{model:>9}")
            lines.append(f"{name:{width}}" + "".join(cells))
        return "\n".join([*lines, "", *self._verdicts()])

    def only(self, number: int) -> Comparison:
        """Return the same for one size."""
        return Comparison(
            self.measurement,
            self.sizes[number : number + 1],
            {name: each[number : number + 1] for name, each in self.seconds.items()},
            {name: each[number : number + 1] for name, each in self.predicted.items()},
            self.choices[number : number + 1],
        )

    def _verdicts(self) -> list[str]:
        lines = []
        for size, choice in zip(self.sizes, self.choices, strict=False):
            lines.append(f"{size / MB:g} MB: auto picks {choice}")
        for each in self.findings():
            size = f"{each['bytes'] / MB:g} MB"
            if "orders" in each:
                met = _met(each["orders"] >= GOALS["orders"])
                lines.append(
                    f"{size}: {HALVING} dealt round-robin is {each['orders']:.2f} times as fast as in "
                    f"natural order (goal {GOALS['orders']}: {met})"
                )
            if "best" in each:
                low, high = each["quartiles"]
                tied = low <= GOALS["best"] <= high
                met = "a tie, by these rounds" if tied else _met(each["best"] >= GOALS["best"])
                lines.append(
                    f"{size}: {AUTO} is {each['best']:.3f} times as fast as {each['best_of_mpich']} "
                    f"(in half of the rounds {low:.3f} to {high:.3f}; "
                    f"goal {GOALS['best']}: {met})"
                )
                lines.append(
                    f"{size}: {AUTO} is {each['default']:.2f} times as fast as {DEFAULT} "
                    f"(goal {GOALS['default']}: {_met(each['default'] >= GOALS['default'])})"
                )
            if "floor" in each:
                lines.append(
                    f"{size}: the least that any must send takes {each['floor']:.1%} of {AUTO}'s time"
                )
            if "model" in each:
                met = _met(abs(each["model"]) <= GOALS["model"])
                lines.append(
                    f"{size}: the model's worst is {each['worst']}, measured {each['model']:+.1%} "
                    f"(goal {GOALS['model']:.0%}: {met})"
                )
        return lines


def _met(yes: bool) -> str:
    return "met" if yes else "not met"


def ours(lab: Netlab, names: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return Demitasse's algorithms (all, or some) as contenders: arguments of ``schedule`` by name."""
    if names is not None and not names:
        return {}
    known = _known()
    inside, hosts = lab.plan.inside, lab.plan.hosts
    dealt = [host for first in range(inside) for host in range(first, hosts, inside)]
    found: dict[str, dict[str, Any]] = {}
    for name, algorithm in known.items():
        if names is not None and name not in names:
            continue
        if "groups" in algorithm.options:
            found[f"ours {name}"] = {"algorithm": name, "groups": inside}
            continue
        for order, numbers in zip(RANK_MAPS, (None, dealt), strict=True):
            more = {} if numbers is None else {"order": numbers}
            found[f"ours {name}, {order}"] = {"algorithm": name, **more}
    return found


def check(
    sizes: Sequence[int],
    rounds: int,
    mpich: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
) -> None:
    """Raise LabError, before a lab is built, for arguments that ``compare`` does not support."""
    if rounds < 1 or not sizes or min(sizes) < KB:
        raise LabError(f"{rounds} rounds of {list(sizes)} bytes (valid: at least 1, of at least {KB})")
    theirs = sorted({words["algorithm"] for words in MPICH.values()})
    for what, names, valid in (
        ("algorithm of MPICH", mpich, theirs),
        ("algorithm", algorithms, [*_known(), "auto"] if algorithms else []),
    ):
        for name in names or ():
            if name not in valid:
                raise LabError(unknown(what, name, valid))


def _known() -> dict[str, Any]:
    """Return Demitasse's algorithms by name, including those of other plugins."""
    from demitasse_allreduce.algorithms import ALGORITHMS, others

    return {**ALGORITHMS, **others()}


def predictions(
    contenders: Mapping[str, Mapping[str, Any]], network: Topology, sizes: Sequence[int], gamma: float
) -> dict[str, list[float]]:
    """Return the cost model's seconds of each of ours, for each size in bytes (of float32)."""
    if not contenders:
        return {}
    from demitasse_allreduce.algorithms import schedule

    place, found = network.place(network.endpoints), {}
    for name, words in contenders.items():
        made = [schedule(ranks=len(place), size=size // 4, **_named(words)) for size in sizes]
        found[name] = [cost(rounds_of(one), network, place, gamma=gamma).seconds for one in made]
    return found


def _named(words: Mapping[str, Any]) -> dict[str, Any]:
    return {"name" if key == "algorithm" else key: value for key, value in words.items()}


def compare(
    lab: Netlab,
    sizes: Sequence[int] = (8 * MB, 16 * MB, 32 * MB),
    rounds: int = 3,
    mpich: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
    measured: Measurement | None = None,
    told: Callable[[Comparison], object] = lambda found: None,
) -> Comparison:
    """Measure the lab, and then every contender ``rounds`` times for each size in bytes, by turns.
    ``mpich`` and ``algorithms`` choose some of MPICH's and of ours (default: all); ``auto`` is among
    ours unless they are chosen without it. A measurement passed as ``measured`` is not repeated.
    ``told`` is called after each size with the results so far. Raises LabError for an unknown contender,
    or if the job fails."""
    check(sizes, rounds, mpich, algorithms)
    automatic = algorithms is None or "auto" in algorithms
    schedules = ours(lab, algorithms and [name for name in algorithms if name != "auto"])
    theirs = {
        name: words
        for name, words in MPICH.items()
        if mpich is None or name == DEFAULT or words["algorithm"] in mpich
    }
    found = measure(lab) if measured is None else measured
    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder) / "lab.toml"
        description.write_text(found.description())
        machine = load_machine(str(description))
        network = topology(machine, machine.levels)
        contenders: dict[str, tuple[str, Mapping[str, Any]]] = {
            name: ("mpich", words) for name, words in theirs.items()
        }
        contenders[FLOOR] = ("floor", {})
        contenders |= {name: ("ours", words) for name, words in schedules.items()}
        if automatic:
            contenders[AUTO] = ("auto", {"machine": str(description), "gamma": found.gamma})
        order = {"sizes": list(sizes), "rounds": rounds, "contenders": contenders}
        predicted, choices = predictions(schedules, network, sizes, found.gamma), list[str]()
        seconds: dict[str, list[list[float]]] = {name: [] for name in contenders}
        job = lab.start(
            [sys.executable, str(CONTEST), json.dumps(order)], stdout=subprocess.PIPE, text=True
        )
        for number, line in enumerate(job.stdout or ()):
            said = json.loads(line)
            for name, each in said["seconds"].items():
                seconds[name].append(each)
            for way in said["ways"]:
                chosen, cost_of = choice(way, network, sizes[number], found.gamma)
                choices.append(chosen)
                predicted.setdefault(AUTO, []).append(cost_of)
            known = {name: each[: number + 1] for name, each in predicted.items()}
            done = tuple(sizes[: number + 1])
            told(now := Comparison(found, done, seconds, known, tuple(choices[: number + 1])))
        if job.wait():
            raise LabError(f"the comparison ended with exit status {job.returncode}")
    return now


def choice(way: Mapping[str, Any], network: Topology, size: int, gamma: float) -> tuple[str, float]:
    """Return what ``auto`` picked for so many bytes, in words, and the model's seconds."""
    from demitasse_allreduce.choice import Chooser, Way

    chosen = Way(**way)
    chooser = Chooser(network, network.endpoints, gamma=gamma)
    return str(chosen), chooser.predict(chosen, size // 4)
