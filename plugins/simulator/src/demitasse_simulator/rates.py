"""The cost of an operation at a place, from rates of kernels that are measured on this machine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from demitasse import (
    Candidate,
    Request,
    cache_folder,
    fingerprint,
    replacing,
)
from demitasse_simulator.trials import Bench, wanted

T = TypeVar("T")
SCHEMA = 2

INTENSE = 8.0
"""Operations per byte above which a kernel's time is assumed to grow with operations, not with bytes."""

NEAR = 1.5
"""The largest ratio between a sample's size and another, in both bytes and operations, at which the
sample's rate still holds."""

AGAIN = 20.0
"""The most seconds spent on taking samples again. This is done once all samples are taken, because
other load on the machine, or on the host of a virtual machine, comes and goes (measured: kernels of
ResNet-50 ran at half speed for a second, and none of the system's figures showed why). Later
simulations take samples again as long as they are disturbed."""

ONCE = 0.5

UNSIZED = ("shape", "shapes", "segments", "stream", "seed")
"""Attributes that do not change what a kernel does per byte."""


class Costed(NamedTuple):
    """The seconds of an operation and their source: kernel, measured or roofline."""

    seconds: float
    source: str


class Call(NamedTuple):
    """A kernel that a plugin offers for a request, with the operations and the bytes moved by one
    call."""

    plugin: str
    candidate: Candidate
    request: Request
    flops: float
    moved: float


class Rates(Protocol):
    """Costs of operations at a place."""

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """Return the cost of one call that does ``flops`` operations and moves ``moved`` bytes."""

    def describe(self) -> list[str]:
        """Return lines with the numbers behind the costs, each with its source."""


class Sample(NamedTuple):
    """A measured call: its operations, its bytes, its seconds, and the ``doubt`` about them: 1 if
    something else on the machine disturbed it, 0.5 if it was taken at one time only, else 0."""

    flops: float
    bytes: float
    seconds: float
    doubt: float = 0.0


class Table:
    """Samples by kind of kernel, in a file for this machine or, without a path, only in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.kinds: dict[str, list[Sample]] = {}
        self.process: dict[str, float] = {}
        """Bytes that a process on this machine needs besides its tensors, once kernels are loaded: with
        nets that fit in the caches (warm) and with others (cold), for which libraries keep more
        memory."""

        self.changed = False
        if path is not None:
            self.kinds, self.process = _read(path)

    def find(self, kind: str, flops: float, moved: float) -> float | None:
        """Return the seconds of a call from the samples of its kind: between two samples of nearby size
        by the power law through both, beyond the last one by its rate. None if no sample is near."""
        close = [s for s in self.kinds.get(kind, ()) if _distance(s, flops, moved) <= math.log(NEAR)]
        if not close:
            return None
        size = _size(flops, moved)
        below = [s for s in close if _size(s.flops, s.bytes) <= size]
        above = [s for s in close if _size(s.flops, s.bytes) >= size]
        nearest = min(close, key=lambda s: _distance(s, flops, moved))
        if not below or not above:
            return nearest.seconds * size / max(_size(nearest.flops, nearest.bytes), 1e-30)
        low = max(below, key=lambda s: _size(s.flops, s.bytes))
        high = min(above, key=lambda s: _size(s.flops, s.bytes))
        a, b = _size(low.flops, low.bytes), _size(high.flops, high.bytes)
        if a == b:
            return nearest.seconds
        part = math.log(size / a) / math.log(b / a)
        return float(low.seconds ** (1 - part) * high.seconds**part)

    def add(self, kind: str, sample: Sample) -> None:
        """Remember a sample."""
        self.kinds.setdefault(kind, []).append(sample)
        self.changed = True

    def save(self) -> str:
        """Write the file, as a whole or not at all. Returns what went wrong, or an empty text."""
        if self.path is None or not self.changed:
            return ""
        kinds = {**_read(self.path)[0], **self.kinds}
        rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(rows)}" for kind, rows in kinds.items())
        about = {"schema": SCHEMA, "fingerprint": fingerprint(), "process": self.process}
        head = json.dumps(about)[1:-1]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as partial:
                partial.write_text("{" + head + ', "kinds": {\n' + rows + "\n}}\n", "utf-8")
        except OSError as error:
            return f"the measurements cannot be saved in {self.path}: {error.strerror or error}"
        self.changed = False
        return ""


def table_file() -> Path | None:
    """Return the file that keeps this machine's samples; None if the user has no home folder."""
    try:
        return cache_folder("simulator") / f"{fingerprint()}.json"
    except RuntimeError:
        return None


def _read(path: Path) -> tuple[dict[str, list[Sample]], dict[str, float]]:
    """Return the samples in a file, and the bytes of a process. Both are empty if the file does not
    exist, is damaged or belongs to another machine: stored samples only save time, and are taken
    again."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["schema"] != SCHEMA or content["fingerprint"] != fingerprint():
            return {}, {}
        found = {
            str(kind): [Sample(*map(float, row)) for row in rows]
            for kind, rows in content["kinds"].items()
        }
        process = {str(name): float(size) for name, size in content["process"].items()}
    except (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return {}, {}
    whole = [number for rows in found.values() for sample in rows for number in sample]
    sound = all(0 <= number < math.inf for number in (*whole, *process.values()))
    return (found, process) if sound else ({}, {})


def _distance(sample: Sample, flops: float, moved: float) -> float:
    return max(
        abs(math.log((sample.flops + 1) / (flops + 1))), abs(math.log((sample.bytes + 1) / (moved + 1)))
    )


def _size(flops: float, moved: float) -> float:
    return flops if flops > INTENSE * moved else max(moved, 1.0)


class Measured:
    """Rates of this machine's kernels by kind and size. If no sample is near, one is taken and
    remembered: the kernel is run alone at that size, on memory that the caches do not hold if ``bench``
    evicts them. The step itself never runs. ``versions`` are those of the plugins. ``suffix`` is
    appended to the names of the measured kinds. ``tell`` is called with a line about each
    measurement."""

    def __init__(
        self,
        table: Table,
        bench: Bench,
        versions: Mapping[str, str],
        *,
        suffix: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.table, self.bench, self.versions, self.suffix = table, bench, versions, suffix
        self.taken = self.known = 0
        self._doubtful: dict[tuple[str, int], Callable[[], float]] = {}
        self._tell = tell

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """Return the cost from the samples of the kernel's kind. If none is near, one more is taken."""
        kind = self._kind(plugin, candidate, request)
        take = partial(self.bench.seconds, request, candidate)
        if (seconds := self.table.find(kind, flops, moved)) is None:
            seconds = self._take(kind, take)
            self._add(kind, flops, moved, seconds)
        else:
            self.known += 1
        self._remember(kind, flops, moved, take)
        return Costed(seconds, "measured")

    def in_parts(self, gradient: Call, update: Call) -> tuple[Costed, Costed]:
        """Return the cost of all parts of a gradient together, and that of the update of one part.
        Gradients and updates are measured in turn, as a step calls them."""
        parts = gradient.candidate.parts
        kinds = f"{self._kind(*gradient[:3])} in parts", f"{self._kind(*update[:3])} after its gradient"
        both = partial(
            self.bench.in_parts, gradient.request, gradient.candidate, update.request, update.candidate
        )
        takes: tuple[Callable[[], float], Callable[[], float]]
        takes = (lambda: both()[0]), (lambda: both()[1] / parts)
        together = self.table.find(kinds[0], *gradient[3:])
        each = self.table.find(kinds[1], *update[3:])
        if together is None or each is None:
            together, updates = self._take(kinds[0], both)
            each = updates / parts
            self._add(kinds[0], *gradient[3:], together)
            self._add(kinds[1], *update[3:], each)
        else:
            self.known += 1
        for kind, call, take in zip(kinds, (gradient, update), takes, strict=True):
            self._remember(kind, *call[3:], take)
        return Costed(together, "measured"), Costed(each, "measured")

    def _kind(self, plugin: str, candidate: Candidate, request: Request) -> str:
        return kind_of(plugin, self.versions.get(plugin, ""), candidate, request) + self.suffix

    def _take(self, kind: str, take: Callable[[], T]) -> T:
        self._say("measuring", kind)
        self.taken += 1
        return take()

    def _say(self, what: str, kind: str) -> None:
        if self._tell is not None:
            self._tell(f"{what} {kind.partition(' (')[0]}")

    def _add(self, kind: str, flops: float, moved: float, seconds: float) -> None:
        self.table.add(kind, Sample(flops, moved, seconds, 1.0 if self.bench.disturbed else ONCE))

    def _remember(self, kind: str, flops: float, moved: float, take: Callable[[], float]) -> None:
        """Remember how to take a doubtful sample of exactly this size again."""
        for number, sample in enumerate(self.table.kinds.get(kind, ())):
            if sample.doubt and sample[:2] == (flops, moved):
                self._doubtful[kind, number] = take

    def again(self) -> bool:
        """Take the doubtful samples once more, for at most AGAIN seconds. The faster sample is kept,
        except that an undisturbed sample always replaces a disturbed one. Returns whether there were
        any."""
        end = time.perf_counter() + AGAIN
        for (kind, number), take in self._doubtful.items():
            if time.perf_counter() > end:
                break
            self._say("measuring again:", kind)
            sample, seconds = self.table.kinds[kind][number], take()
            still = 1.0 if self.bench.disturbed else 0.0
            if sample.doubt < 1 and still:
                still, seconds = sample.doubt, sample.seconds
            elif sample.doubt < 1 or still:
                seconds = min(seconds, sample.seconds)
            self.table.kinds[kind][number] = sample._replace(seconds=seconds, doubt=still)
            self.table.changed = True
        there = bool(self._doubtful)
        self._doubtful.clear()
        return there

    def describe(self) -> list[str]:
        where = f", kept in {self.table.path}" if self.table.path else ""
        return [
            f"rates of kernels by kind and size (measured): {self.known} found, {self.taken} taken now"
            f"{where}"
        ]


def kind_of(plugin: str, version: str, candidate: Candidate, request: Request) -> str:
    """Return a text for what calls with the same rate have in common: operation, kernel, window and
    stride, layouts, place."""
    given = {k: v for k, v in sorted(request.attributes.items()) if k not in UNSIZED}
    attributes = " ".join(f"{k}={v}" for k, v in given.items() if not hasattr(v, "shape"))
    specs = wanted(request, candidate)
    layouts = " ".join(
        "-" if s is None else f"{s.stored}@{s.layout.order}{s.layout.blocks}" for s in specs[:4]
    )
    windows = {s.shape[2:] for s in specs[1:3] if s is not None and len(s.shape) == 4}
    small = sorted(w for w in windows if max(w, default=0) <= 11)
    place = request.place
    return (
        f"{plugin} {version}: {request.operation.name} by {candidate.kernel} ({layouts}) {attributes} "
        f"{small}; threads {place.threads}, {request.precision}, {place.space}"
    )
