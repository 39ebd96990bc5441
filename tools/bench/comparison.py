"""The comparison: whether contenders compute the same, and how fast each setting is, by rounds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from processor_distance import Distance, told

from bench.contenders import OWN
from bench.floors import Rates
from bench.nets import NETS, OURS
from bench.workers import Failure, Worker

TURN = 0.5  # seconds that a contender runs, for at least one step, before the next one's turn
HOPELESS = 1.5  # a setting this much slower at first than its contender's best is dropped
LONG = 3.0  # seconds of a start from which on three pairs are enough
STEPS = 20  # over which losses must agree
# bf16 has 8 bits: each layer rounds by 0.4%, which 20 steps of feedback may amplify.
TOLERANCE = {"f32": 1e-3, "bf16": 3e-2}
# A gradient's relative error. A ReLU or a maximum that rounding switches changes it by far more than
# that rounding, and gradients of normalised nets are small sums of large terms: so twice a peer's is
# fine.
OF_GRADIENTS, BESIDE = {"f32": 1e-2, "bf16": 0.1}, 2.0


@dataclass(frozen=True)
class Task:
    """What is timed: a training step (``train``) or a forward pass of the deploy net (``inference``)."""

    what: str
    net: str
    precision: str
    batch: int

    def __str__(self) -> str:
        return f"{self.what} {self.net} b{self.batch} {self.precision}"


@dataclass
class Timing:
    """A contender with one setting: seconds per step of each round, the fraction of the cores that
    others on this machine used meanwhile, how far apart the processors were after it (nanoseconds per
    round trip), the peak memory in bytes and, if there are no rounds, the reason."""

    task: Task
    contender: str
    setting: str
    look: float = 0.0
    rounds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    peak: int = 0
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """The median of the rounds."""
        return median(self.rounds) if self.rounds else None


@dataclass
class Start:
    """Demitasse's seconds from composing to the third step: if kernels are tried (``cold``), and if the
    choices of such a run are ``remembered``, each in several runs; and the seconds of a step."""

    task: Task
    cold: list[float] = field(default_factory=list)
    remembered: list[float] = field(default_factory=list)
    step: float = float("inf")
    note: str = ""

    @property
    def shares(self) -> list[float]:
        """The cost of trying in each pair of runs, as a fraction of the first hundred steps, sorted."""
        pairs = zip(self.cold, self.remembered, strict=True)
        return sorted((cold - remembered) / (100 * self.step) for cold, remembered in pairs)

    @property
    def share(self) -> float | None:
        """The cost of trying: the median of the pairs; None if the runs failed."""
        return None if self.note else median(self.shares)

    @property
    def between(self) -> tuple[float, float] | None:
        """The 95% confidence interval of that median, for any distribution (by the binomial distribution
        of pairs below it); None if there are too few pairs."""
        shares, count = self.shares, len(self.shares)
        if self.note or 2 * 0.5**count > 0.05:
            return None
        below = [comb(count, k) / 2**count for k in range(count)]
        outside = next(k for k in range(count) if 2 * sum(below[: k + 2]) > 0.05)
        return shares[outside], shares[count - 1 - outside]


@dataclass(frozen=True)
class Agreement:
    """The largest relative difference of a contender's losses (or probabilities), or of the gradients of
    its first step, from the reference; ``note`` says why it is unknown."""

    task: Task
    contender: str
    reference: str
    difference: float | None
    tolerance: float
    note: str = ""
    what: str = "losses"

    @property
    def holds(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance


@dataclass
class Comparison:
    """Contenders with their interpreters and settings, and how long to measure each."""

    pythons: Mapping[str, Path]
    settings: Mapping[str, tuple[str, ...]]
    threads: int
    rounds: int
    say: Callable[[str], None]
    limit: float = 1800.0
    distance: Distance = field(default_factory=Distance)
    _references: dict[tuple[str, str, int], tuple[str, np.ndarray]] = field(default_factory=dict)

    def worker(self, contender: str, setting: str, **environment: str) -> Worker:
        python = self.pythons[contender]
        return Worker(contender, setting, python, self.threads, self.limit, environment)

    # Rates.

    def rates(self, precision: str) -> tuple[Rates, dict[str, Any]]:
        """Return the best of the contenders' matrix products and triads, and each one's figures."""
        said: dict[str, Any] = {}
        for contender, settings in self.settings.items():
            try:
                with self.worker(contender, settings[0]) as worker:
                    said[contender] = worker.ask("rates", precision=precision)
            except Failure as failure:
                said[contender] = {"error": str(failure)}
                self.say(f"rates: {contender}: {failure}")
        best = {
            what: max((float(each.get(what, 0)) for each in said.values()), default=0.0)
            for what in ("matrix_product", "triad")
        }
        return Rates(**best), said

    # Agreement.

    def check(self, task: Task) -> list[Agreement]:
        """Compare each contender, in its first setting, with the first peer in f32: the loss over some
        steps without dropout, or the probabilities of the deploy net. For training, also compare each
        parameter's first gradient with PyTorch in f64, if it is available."""
        try:
            name, wanted = self._reference(task)
        except Failure as failure:
            return [Agreement(task, OWN, "no reference", None, TOLERANCE[task.precision], str(failure))]
        found = as_others_round(list(self._against(task, name, wanted)))
        if task.what == "train" and "pytorch" in self.settings:
            found += as_others_round(list(self._gradients_against(task)))
        return found

    def _gradients_against(self, task: Task) -> Iterator[Agreement]:
        tolerance = OF_GRADIENTS[task.precision]
        try:
            wanted = self._gradients(task, "pytorch", "f64")
        except Failure as failure:
            yield Agreement(task, OWN, "no reference", None, tolerance, str(failure), "gradients")
            return
        for contender in self.settings:
            about = task, contender, "pytorch in f64"
            self.say(f"check gradients of {task}: {contender}")
            try:
                far = furthest(self._gradients(task, contender, task.precision), wanted)
                yield Agreement(*about, far, tolerance, what="gradients")
            except Failure as failure:
                yield Agreement(*about, None, tolerance, str(failure), "gradients")

    def _gradients(self, task: Task, contender: str, precision: str) -> dict[str, np.ndarray]:
        net, setting = NETS[task.net]().message(), self.settings[contender][0]
        with self.worker(contender, setting) as worker, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gradients.npz"
            how = {"precision": precision, "setting": setting, "batch": task.batch}
            worker.ask("gradients", net=net, path=str(path), **how)
            with np.load(path) as file:
                return dict(file)

    def _against(self, task: Task, name: str, wanted: np.ndarray) -> Iterator[Agreement]:
        tolerance = TOLERANCE[task.precision]
        what = "losses" if task.what == "train" else "probabilities"
        for contender, settings in self.settings.items():
            if (contender, task.precision) == (name, "f32"):
                continue
            self.say(f"check {task}: {contender}")
            try:
                found = self._computed(task, contender, settings[0], task.precision)
            except Failure as failure:
                yield Agreement(task, contender, f"{name} in f32", None, tolerance, str(failure), what)
                continue
            difference = apart(found, wanted, per_value=task.what == "train")
            yield Agreement(task, contender, f"{name} in f32", difference, tolerance, what=what)

    def _reference(self, task: Task) -> tuple[str, np.ndarray]:
        key = (task.what, task.net, task.batch)
        if key not in self._references:
            peers = [name for name in self.settings if name != OWN] or [OWN]
            self.say(f"check {task}: {peers[0]} in f32, the reference")
            found = self._computed(task, peers[0], self.settings[peers[0]][0], "f32")
            self._references[key] = peers[0], found
        return self._references[key]

    def _computed(self, task: Task, contender: str, setting: str, precision: str) -> np.ndarray:
        with self.worker(contender, setting) as worker, tempfile.TemporaryDirectory() as folder:
            self._prepare(worker, task, precision, dropout=False, warm=0)
            if task.what == "train":
                return np.array(worker.ask("run", steps=STEPS, each=True)["values"])
            path = Path(folder) / "output.npy"
            worker.ask("output", path=str(path))
            return np.asarray(np.load(path))

    # Starts.

    def start(self, task: Task, pairs: int) -> Start:
        """Run Demitasse in pairs, of which the median counts: one run that remembers nothing, and one
        with that run's choices; at most three pairs if they take long. A run before them compiles loops
        and Python's modules, which is done once per installation."""
        found = Start(task)
        with tempfile.TemporaryDirectory(prefix="demitasse-bench-") as compiled:
            try:
                self._begin(task, compiled)
                for number in range(pairs):
                    if number >= 3 and found.cold[-1] > LONG:
                        break
                    self._pair(task, found, compiled)
            except Failure as failure:
                found.note = f"failed: {failure}"
        return found

    def _pair(self, task: Task, found: Start, compiled: str) -> None:
        with tempfile.TemporaryDirectory(prefix="demitasse-bench-") as folder:
            for times in (found.cold, found.remembered):
                seconds, step = self._begin(task, compiled, folder)
                times.append(seconds)
                found.step = min(found.step, step)
        cold, remembered = found.cold[-1], found.remembered[-1]
        self.say(f"start of {task}: {cold:.2f} s, {remembered:.2f} s remembered")

    def _begin(self, task: Task, compiled: str, folder: str = "") -> tuple[float, float]:
        """Return the seconds to the third step of a process that keeps its choices in a folder (by
        default with the compiled modules), and the seconds of a step."""
        variables = {
            "XDG_CACHE_HOME": folder or compiled,
            "PYTHONPYCACHEPREFIX": compiled,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        with self.worker(OWN, self.settings[OWN][0], **variables) as worker:
            seconds = self._prepare(worker, task, task.precision, dropout=True, warm=3, collected=False)
            look = float(worker.ask("run", steps=1)["seconds"])
            return seconds, float(worker.ask("run", steps=turn(look))["seconds"])

    @staticmethod
    def _prepare(
        worker: Worker, task: Task, precision: str, dropout: bool, warm: int, collected: bool = True
    ) -> float:
        answer = worker.ask(
            "prepare",
            task=task.what,
            net=NETS[task.net]().message(),
            precision=precision,
            setting=worker.setting,
            batch=task.batch,
            dropout=dropout,
            warm=warm,
            collected=collected,
        )
        return float(answer["seconds"])

    # Speed.

    def compare(self, task: Task) -> list[Timing]:
        """Time all settings of all contenders: first briefly, and then, for those that are left, in
        rounds in which they take turns, each beginning with a different one."""
        timings: list[Timing] = []
        with ExitStack() as stack:
            standing: list[tuple[Timing, Worker]] = []
            for contender in self.settings:
                tried = list(self._looks(task, contender, stack))
                timings += [timing for timing, _ in tried]
                standing += [(timing, worker) for timing, worker in tried if not timing.note]
            for number in range(self.rounds):
                first = number % max(1, len(standing))
                for timing, worker in standing[first:] + standing[:first]:
                    self._round(timing, worker)
                ran = [(timing, worker) for timing, worker in standing if timing.rounds]
                times = ", ".join(f"{worker} {timing.rounds[-1] * 1e3:.2f}" for timing, worker in ran)
                where = told([timing.trips[-1] for timing, _ in ran if timing.trips])
                self.say(f"{task}: round {number + 1} of {self.rounds}, {where}, ms: {times}")
        return timings

    def _looks(self, task: Task, contender: str, stack: ExitStack) -> Iterator[tuple[Timing, Worker]]:
        seen: list[tuple[Timing, Worker]] = []
        for setting in self.settings[contender]:
            worker = stack.enter_context(self.worker(contender, setting))
            timing = Timing(task, contender, setting)
            seen.append((timing, worker))
            try:
                prepared = self._prepare(worker, task, task.precision, dropout=True, warm=3)
                timing.look = worker.ask("run", steps=1)["seconds"]
                for _ in range(2):
                    answer = worker.ask("run", steps=turn(timing.look))
                    timing.look = min(timing.look, answer["seconds"])
                timing.peak = answer["peak"]
                self.say(f"{task}: {worker} prepared in {prepared:.1f} s, {timing.look * 1e3:.2f} ms")
            except Failure as failure:
                timing.note = f"failed: {failure}"
                self.say(f"{task}: {worker} {timing.note}")
            best = min((each.look for each, _ in seen if not each.note), default=0.0)
            for each, its in seen:
                if not each.note and each.look > HOPELESS * best:
                    each.note = f"left after a first look at {each.look * 1e3:.2f} ms"
                if each.note:
                    its.close()
        yield from seen

    def _round(self, timing: Timing, worker: Worker) -> None:
        if timing.note:
            return
        try:
            if timing.look < TURN:
                worker.ask("run", steps=1)  # filling caches and waking threads is not counted
            before = busy()
            answer = worker.ask("run", steps=turn(timing.look))
            others = busy() - before - answer["own"]
        except Failure as failure:
            timing.note = f"failed: {failure}"
            return
        timing.others.append(max(0.0, others / answer["elapsed"] / (os.cpu_count() or 1)))
        timing.rounds.append(answer["seconds"])
        if (trip := self.distance.round_trip()) is not None:
            timing.trips.append(trip)
        timing.peak = max(timing.peak, answer["peak"])


def busy() -> float:
    """Return the seconds that this machine's cores have not been idle since it started."""
    words = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    user, nice, system, _, _, *interrupts_and_stolen = (int(word) for word in words[1:9])
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")


def turn(seconds: float) -> int:
    """Return the number of steps that fill a turn."""
    return max(1, min(500, round(TURN / max(seconds, 1e-6))))


def as_others_round(agreements: list[Agreement]) -> list[Agreement]:
    """In bf16, and for nets from files, a contender's losses may differ by 1.25 times as much as those
    of the closest other contender, because some nets amplify any rounding. Gradients may differ by twice
    as much."""
    allowed = []
    for each in agreements:
        others = [a.difference for a in agreements if a is not each and a.difference is not None]
        widens = each.task.precision == "bf16" or each.task.net not in OURS
        factor = BESIDE if each.what == "gradients" else 1.25 if widens else 0.0
        limit = factor * min(others, default=0.0)
        wider = max(each.tolerance, limit) if np.isfinite(limit) else each.tolerance
        allowed.append(replace(each, tolerance=wider))
    return allowed


def apart(found: np.ndarray, wanted: np.ndarray, per_value: bool) -> float:
    """Return the largest difference, relative to each value or to the largest; infinite for numbers that
    are not finite, or another shape."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    scale = np.abs(wanted) if per_value else np.abs(wanted).max()
    return float(np.max(np.abs(found - wanted) / scale))


def furthest(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    """Return the largest error of a parameter's gradient: the root mean square, relative to the
    gradient's own or, if that vanishes, to a thousandth of the median one's. Infinite if a gradient is
    missing or not finite."""
    size = {key: float(np.sqrt(np.mean(array**2))) for key, array in wanted.items()}
    least, far = 1e-3 * float(np.median(list(size.values()))), [0.0]
    for key, array in wanted.items():
        error = found[key] - array if key in found and found[key].shape == array.shape else np.inf
        far.append(float(np.sqrt(np.mean(np.square(error)))) / max(size[key], least))
    return max(far) if np.isfinite(far).all() else float("inf")


def tasks(what: str, net: str, precision: str) -> list[Task]:
    """Return training at the net's own batch size, or inference at 1 and 16."""
    batches = (NETS[net]().batch,) if what == "train" else (1, 16)
    return [Task(what, net, precision, batch) for batch in batches]
