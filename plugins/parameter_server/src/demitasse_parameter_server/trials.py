"""Finding the best k workers of n / k threads each on a machine, by trials in a net's first
iterations."""

from __future__ import annotations

import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from demitasse import (
    CompositionError,
    DataError,
    Level,
    Machine,
    Runtime,
    Solver,
    SyncSpec,
    cache_folder,
    fingerprint,
    replacing,
)

Make: TypeAlias = Callable[..., Any]

WARM = 3
"""Iterations before those that are measured; in them kernels are tried and compiled."""

ROUNDS = 5
CLOSE = 1.15
"""Two medians whose ratio is below this may differ only because of other load on the machine."""

log = logging.getLogger("demitasse.parameter_server")

SCHEMA = 1


@dataclass(frozen=True)
class Trial:
    """A number of workers, the number of threads of each, and the seconds of one of their iterations."""

    workers: int
    threads: int
    seconds: float


def shapes(cores: int) -> list[tuple[int, int]]:
    """Return all (workers, threads of each) that use all cores."""
    return [(k, cores // k) for k in range(1, cores + 1) if cores % k == 0]


def arranged(machine: Machine, workers: int, threads: int) -> Machine:
    """Return a machine with only its outermost level, and in it the given workers, which this plugin
    synchronises."""
    sync = SyncSpec("parameter_server", {"model": "bsp"})
    outer = replace(machine.levels[0], workers=None, sync=None, cores=workers * threads)
    name = "worker" if outer.name != "worker" else "thread"
    inner = Level(name, workers, parent=outer.name, workers="threads", cores=threads, sync=sync)
    plugins = machine.plugins  # None: the automatic plugins and those that levels name
    if plugins is not None:
        plugins = tuple(dict.fromkeys((*plugins, "parameter_server")))
    return replace(machine, name=f"{workers}-workers", levels=(outer, inner), plugins=plugins)


def tried(runtime: Runtime, make: Make, solver: Solver, seconds: float, **options: Any) -> list[Trial]:
    """Return the median iteration of each shape on the runtime's machine. Each is measured for about
    ``seconds``, with the trainers that ``make(runtime, solver, **options)`` makes. Shapes with more
    workers than a batch has samples are left out. If the best two are ``CLOSE``, they are measured
    again in turns, because other load on the machine changes from second to second and would decide
    between them."""
    found = dict[tuple[int, int], Trial]()

    def measure(some: Sequence[tuple[int, int]]) -> None:
        with ExitStack() as stack:
            trainers = [
                stack.enter_context(_trainer(runtime, make, solver, *shape, options)) for shape in some
            ]
            for shape, taken in zip(some, _measured(trainers, seconds), strict=True):
                found[shape] = Trial(*shape, taken)

    for shape in shapes(cores_of(runtime.machine)):
        try:
            measure([shape])
        except DataError:
            if shape[0] == 1:
                raise
    best, *others = sorted(found.values(), key=lambda trial: trial.seconds)
    if others and others[0].seconds < best.seconds * CLOSE:
        measure([(trial.workers, trial.threads) for trial in (best, others[0])])
    return list(found.values())


@contextmanager
def _trainer(
    runtime: Runtime, make: Make, solver: Solver, workers: int, threads: int, options: Mapping[str, Any]
) -> Iterator[Any]:
    shaped = arranged(runtime.machine, workers, threads)
    with Runtime(shaped, runtime.composition, runtime.options) as trial:
        trainer = make(trial, solver, **options)
        try:
            trainer.listeners.clear()  # listeners that show a run must not show its trials
            yield trainer
        finally:
            trainer.close()


def check_free(machine: Machine, where: str) -> None:
    """Raise CompositionError, with the place ``where``, unless a machine has cores and no workers on
    them."""
    first = machine.levels[0]
    for level in machine.levels:
        if level.workers is not None or level.sync is not None:
            raise CompositionError(
                f"{where}: workers chooses who trains on the cores of level {first.name!r}, but level "
                f"{level.name!r} does so already; leave one of them out"
            )
    if first.count > 1:
        raise CompositionError(
            f"{where}: workers chooses who trains on the cores of one {first.name!r}, but there "
            f"are {first.count:,}; describe only one"
        )
    if not first.cores:
        raise CompositionError(
            f"{where}: level {first.name!r} has no cores for workers to share; add cores = ..."
        )


def cores_of(machine: Machine) -> int:
    """Return the number of cores that workers are to share."""
    return machine.levels[0].cores or 1


def _measured(trainers: Sequence[Any], seconds: float) -> list[float]:
    """Return the seconds of an iteration of each trainer, as medians of ``ROUNDS`` turns."""
    counts = list[int]()
    for trainer in trainers:
        trainer.step(WARM)
        start = time.perf_counter()
        trainer.step(1)
        counts.append(max(1, round(seconds / ROUNDS / (time.perf_counter() - start))))
    turns = [
        [trainer.step(count).seconds / count for trainer, count in zip(trainers, counts, strict=True)]
        for _ in range(ROUNDS)
    ]
    return [float(median(each)) for each in zip(*turns, strict=True)]


def name_of(solver: Solver, machine: Machine, precision: str | None = None) -> str:
    """Return the name under which trials of a solver's net are remembered. It depends on the layers and
    their parameters, which include the batch size, on the number of cores, and on the precision if one
    was requested."""
    layers = [(layer.type, repr(layer.parameters)) for layer in solver.train.layers]
    what = f"{solver.train.name} {zlib.crc32(repr(layers).encode()):08x} {cores_of(machine)} cores"
    return f"{what} {precision}" if precision else what


def memory() -> Path | None:
    """Return the file that remembers trials on this machine; None if the user has no home folder."""
    try:
        return cache_folder("workers") / f"{fingerprint()}.json"
    except RuntimeError:
        return None


_NOT_OURS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
"""Errors from reading a file that is damaged, or that another program has written."""


def remembered(path: Path | None, name: str) -> list[Trial]:
    """Return the remembered trials of a net; empty if there is no such file, or if it is not valid."""
    if path is None:
        return []
    try:
        content = json.loads(path.read_text("utf-8"))
        found = content["nets"].get(name, []) if content["schema"] == SCHEMA else []
        trials = [Trial(int(t["workers"]), int(t["threads"]), float(t["seconds"])) for t in found]
    except _NOT_OURS:
        return []
    sound = all(t.workers > 0 and t.threads > 0 and 0 < t.seconds < math.inf for t in trials)
    return trials if sound else []


def remember(path: Path | None, name: str, trials: list[Trial]) -> None:
    """Save the trials of a net beside those of other nets; the file is replaced atomically. If it
    cannot be written, this is only logged, and the trials still count."""
    if path is None:
        return
    try:
        _write(path, name, trials)
    except OSError as error:
        log.warning("trials cannot be saved in %s: %s", path, error.strerror or error)


def _write(path: Path, name: str, trials: list[Trial]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        content = json.loads(path.read_text("utf-8"))
        nets = dict(content["nets"]) if content["schema"] == SCHEMA else {}
    except _NOT_OURS:
        nets = {}
    nets[name] = [asdict(trial) for trial in trials]
    with replacing(path) as file:
        file.write_text(json.dumps({"schema": SCHEMA, "nets": nets}, indent=1), "utf-8")
