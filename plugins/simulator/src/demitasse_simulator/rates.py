"""What an operation costs at a place: as its kernel says, by rates measured here, or by a roofline."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from demitasse import Candidate, Machine, Place, Request, fingerprint
from demitasse_simulator.topology import missing
from demitasse_simulator.trials import Bench, wanted

SCHEMA = 1

INTENSE = 8.0
"""Operations a byte from which on a kernel's time is taken to grow with operations, not with bytes."""

NEAR = 1.5
"""How far from a sample's size, in both bytes and operations, its rate still holds."""

AGAIN = 20.0
"""Seconds for samples that are taken again on a busy machine."""

UNSIZED = ("shape", "shapes", "segments", "stream", "seed")
"""Attributes that do not change what a kernel does to a byte."""


class Costed(NamedTuple):
    """Seconds of an operation, and how they are known: kernel, measured or roofline."""

    seconds: float
    source: str


class Rates(Protocol):
    """Costs of operations at a place."""

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """Of one call that does so many operations on so many bytes."""

    def describe(self) -> list[str]:
        """The numbers behind them, each with its source."""


class Roofline:
    """A level's peak and its memory's bandwidth: no kernel is quicker. Raises DescriptionError that
    names the key where the description lacks one of the two."""

    def __init__(self, machine: Machine, place: Place, sharing: Mapping[str, int]) -> None:
        level = machine.level(place.level)
        self._lines = []
        why = "the cost of operations at it needs, where kernels do not say theirs"
        peak, below, index = level.peak, 1, machine.levels.index(level)
        for inner in machine.levels[index + 1 :]:
            if peak is None:
                below *= inner.count
                peak = inner.peak
        around, shared = [level], 1
        while around[-1].parent is not None:
            around.append(machine.level(around[-1].parent))
        for outer in around:
            if peak is not None:
                break
            shared *= sharing.get(outer.name, 1)
            peak = machine.level(outer.parent).peak if outer.parent else None
        if peak is None:
            raise missing(machine, level, "peak", why)
        self.peak = peak.value * below / shared
        self._lines.append(f"peak {peak} x {below} / {shared} workers at level {level.name!r}")
        shared = 1
        for outer in around:
            if outer.memory:
                memory = outer.memory[0]
                if memory.bandwidth is None:
                    raise missing(machine, outer, f"memory.bandwidth of space {memory.space!r}", why)
                self.bandwidth = memory.bandwidth.value * memory.count / shared
                self._lines.append(
                    f"memory {memory.space!r} {memory.bandwidth} x {memory.count} / {shared} workers"
                )
                break
            shared *= sharing.get(outer.name, 1)
        else:
            raise missing(machine, level, "memory", why)

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """The kernel's own word, or the larger of arithmetic and memory."""
        if candidate.seconds is not None:
            return Costed(candidate.seconds, "kernel")
        return Costed(max(flops / self.peak, moved / self.bandwidth), "roofline")

    def describe(self) -> list[str]:
        return self._lines


class Sample(NamedTuple):
    """A measured call: its operations, its bytes, its seconds, and whether (1 or 0) something else on
    the machine showed in them."""

    flops: float
    bytes: float
    seconds: float
    disturbed: float = 0.0


class Table:
    """Samples by kind of kernel, in a file of this machine, or only in memory without a path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.kinds: dict[str, list[Sample]] = {}
        self.process = 0.0
        """Bytes that a process of this machine has before its tensors, once kernels are loaded."""

        self.changed = False
        if path is not None:
            self.kinds, self.process = _read(path)

    def find(self, kind: str, flops: float, moved: float) -> float | None:
        """The seconds of a call by the samples of its kind: between the two next ones in size by the
        power law through them, beyond the last one by its rate; None where none is near."""
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

    def save(self) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        if self.path is None or not self.changed:
            return
        kinds = {**_read(self.path)[0], **self.kinds}
        rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(rows)}" for kind, rows in kinds.items())
        head = (
            f'"schema": {SCHEMA}, "fingerprint": {json.dumps(fingerprint())}, "process": {self.process}'
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_text("{" + head + ', "kinds": {\n' + rows + "\n}}\n", "utf-8")
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)
        self.changed = False


def table_file() -> Path | None:
    """Where this machine's samples are kept; None where the user has no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = base if base.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "demitasse" / "simulator" / f"{fingerprint()}.json"


def _read(path: Path) -> tuple[dict[str, list[Sample]], float]:
    """The samples of a file, and the bytes of a process; nothing where the file is not there, or not of
    this machine: samples are only a saving of time, and are taken anew."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["schema"] != SCHEMA or content["fingerprint"] != fingerprint():
            return {}, 0.0
        found = {
            str(kind): [Sample(*map(float, row)) for row in rows]
            for kind, rows in content["kinds"].items()
        }
        process = float(content["process"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, 0.0
    whole = [number for rows in found.values() for sample in rows for number in sample]
    sound = all(0 <= number < math.inf for number in (*whole, process))
    return (found, process) if sound else ({}, 0.0)


def _distance(sample: Sample, flops: float, moved: float) -> float:
    return max(
        abs(math.log((sample.flops + 1) / (flops + 1))), abs(math.log((sample.bytes + 1) / (moved + 1)))
    )


def _size(flops: float, moved: float) -> float:
    return flops if flops > INTENSE * moved else max(moved, 1.0)


class Measured:
    """Rates of this machine's kernels by kind and size. Where no sample is near, one is taken: a kernel
    of that kind alone, at that size, on memory that the caches do not hold, and remembered. The step
    itself never runs. ``versions`` are the plugins'."""

    def __init__(self, table: Table, bench: Bench, versions: Mapping[str, str]) -> None:
        self.table, self.bench, self.versions = table, bench, versions
        self.taken = self.known = 0
        self._disturbed: dict[tuple[str, int], tuple[Candidate, Request]] = {}
        self.tell: Any = None
        self.suffix = ""

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """From the samples of the kernel's kind, one more where there is none near."""
        kind = kind_of(plugin, self.versions.get(plugin, ""), candidate, request) + self.suffix
        if (seconds := self.table.find(kind, flops, moved)) is None:
            if self.tell is not None:
                self.tell(kind)
            seconds = self.bench.seconds(request, candidate)
            self.table.add(kind, Sample(flops, moved, seconds, float(self.bench.disturbed)))
            self.taken += 1
        else:
            self.known += 1
        for number, sample in enumerate(self.table.kinds[kind]):
            if sample.disturbed and sample[:2] == (flops, moved):
                self._disturbed[kind, number] = candidate, request
        return Costed(seconds, "measured")

    def again(self) -> bool:
        """Take the samples in which something else on the machine showed once more, for some seconds at
        most; the quicker one stays. Whether there were any."""
        end = time.perf_counter() + AGAIN
        for (kind, number), (candidate, request) in self._disturbed.items():
            if time.perf_counter() > end:
                break
            if self.tell is not None:
                self.tell(f"measuring again: {kind.partition(' (')[0]}")
            sample = self.table.kinds[kind][number]
            seconds = min(sample.seconds, self.bench.seconds(request, candidate))
            still = float(self.bench.disturbed)
            self.table.kinds[kind][number] = sample._replace(seconds=seconds, disturbed=still)
            self.table.changed = True
        there = bool(self._disturbed)
        self._disturbed.clear()
        return there

    def describe(self) -> list[str]:
        where = f", kept in {self.table.path}" if self.table.path else ""
        return [
            f"rates of kernels by kind and size (measured): {self.known} found, {self.taken} taken now"
            f"{where}"
        ]


def kind_of(plugin: str, version: str, candidate: Candidate, request: Request) -> str:
    """What calls of one rate have in common: operation, kernel, window and stride, layouts, place."""
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
