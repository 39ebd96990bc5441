"""The cost of reading when processes share storage targets: either one target holds the whole file, or
its stripes are on several.

A step begins when the slowest process has its samples. Every process reads one mini-batch, consecutive
bytes of a file whose blocks are on ``stripes`` targets round robin. A target divides its bandwidth among
the processes that read from it, and is done when it has delivered all requested bytes. With one stripe,
one target serves all ("single-split", the default of TaihuLight's file system). With 32 stripes and
blocks of 256 MB, a mini-batch of 192 MB touches at most two, so at most N / 32 x 2 of N processes read
from one (swCaffe, V.B).

The model leaves out seeks between readers, which make a disk slower with many readers than with one, and
other jobs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from demitasse import (
    DemitasseError,
    DescriptionError,
    Level,
    Machine,
    MemorySpace,
    RandomStream,
    unknown,
)
from demitasse_striped_io.index import BLOCK, STRIPES

SAMPLING = ("random", "block")
PROCESS_STEPS, FEWEST, MOST = 65_536, 16, 256
"""The number of processes times steps over which the load of the busiest target is averaged, and the
fewest and most steps. The mean of the random draws is then accurate to about 2%."""
SEED = 1701


@dataclass(frozen=True)
class Load:
    """What one step requests of targets: the ``readers`` of the busiest one, and its ``share`` of all
    bytes of the step (1 for one target, 1 / stripes if all have the same)."""

    readers: float
    share: float


@dataclass(frozen=True)
class Reading:
    """One step in which ``processes`` read ``batch`` bytes each, from files on ``stripes`` of the
    ``targets`` of ``space``, each with this ``bandwidth`` in bytes per second. ``seconds`` is the time;
    ``readers`` are those of the busiest target, and ``bound`` is the paper's bound on them."""

    space: str
    targets: int
    bandwidth: float
    processes: int
    batch: float
    stripes: int
    block: int
    sampling: str
    readers: float
    bound: int
    seconds: float

    @property
    def aggregate(self) -> float:
        """Bytes per second of all processes together."""
        return self.processes * self.batch / self.seconds

    @property
    def each(self) -> float:
        """Bytes per second of one process."""
        return self.batch / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports."""
        return {**asdict(self), "aggregate": self.aggregate, "each": self.each}


def bound(processes: int, batch: float, stripes: int, block: int) -> int:
    """The largest number of processes that read from one target at a time if they are spread evenly: N /
    stripes for each block that a batch of consecutive bytes may touch (two if it is no longer than a
    block, the paper's N / 32 x 2), and at most all processes."""
    touched = min(stripes, math.ceil(batch / block) + 1)
    return min(processes, math.ceil(processes / stripes) * touched)


def load(processes: int, batch: float, stripes: int, block: int, sampling: str = "random") -> Load:
    """Return the busiest target's part in a step, averaged over some steps.

    ``random``: as in the paper, each process begins at a random place. ``block``: the order ``block`` of
    a striped set, in which processes read successive stretches and stripes take turns. Raises
    DemitasseError for any other sampling.
    """
    if sampling not in SAMPLING:
        raise DemitasseError(unknown("sampling", sampling, SAMPLING))
    if stripes == 1:
        return Load(float(processes), 1.0)
    circle = float(stripes * block)
    number = np.arange(processes)
    draw = RandomStream(SEED, stripes)
    readers, share = [], []
    for step in range(min(max(PROCESS_STEPS // processes, FEWEST), MOST)):
        if sampling == "block":
            starts = (number + step * processes) * batch % circle
        else:
            starts = draw.uniform(processes, 0.0, circle)
        count, size = _asked(starts, batch, stripes, block)
        readers.append(float(count.max()))
        share.append(float(size.max()) / (processes * batch))
    return Load(float(np.mean(readers)), float(np.mean(share)))


def _asked(starts: np.ndarray, batch: float, stripes: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """For each target, return the number of processes that read from it and the bytes that they read, if
    each reads ``batch`` bytes from its start in ``starts`` (processes,)."""
    count, size = np.zeros(stripes), np.zeros(stripes)
    first = starts // block
    for turn in range(math.ceil(batch / block) + 1):
        begin = (first + turn) * block
        part = np.minimum(starts + batch, begin + block) - np.maximum(starts, begin)
        part = np.maximum(part, 0.0)
        target = ((first + turn) % stripes).astype(np.int64)
        size += np.bincount(target, part, stripes)
        if turn < stripes:  # a batch longer than all stripes returns to the same ones
            count += np.bincount(target, part > 0, stripes)
    return count, size


def shared_storage(machine: Machine) -> tuple[Level, MemorySpace, float] | None:
    """Return the storage that samples are read from, and a target's bytes per second: of the innermost
    level with storage whose bandwidth is given."""
    for level in reversed(machine.levels):
        for storage in level.storage:
            if storage.bandwidth is not None:
                return level, storage, storage.bandwidth.value
    return None


def reading_cost(
    machine: Machine,
    *,
    processes: int,
    batch: float,
    stripes: int | None = None,
    block: int = BLOCK,
    sampling: str = "random",
    link: float = math.inf,
) -> Reading:
    """Return the cost of a step's reading on a described machine: ``processes`` that share its storage
    read ``batch`` bytes each, consecutively, each over its own link of ``link`` bytes per second.
    ``stripes`` is 32 by default, or the number of targets if there are fewer. Raises DescriptionError if
    no storage has a bandwidth, DemitasseError for impossible stripes, processes or batches."""
    found = shared_storage(machine)
    if found is None:
        raise DescriptionError(
            f"{machine.origin}: no level has storage with a bandwidth, which the cost of reading needs; "
            f"add it with its source"
        )
    level, storage, bandwidth = found
    used = min(STRIPES, storage.count) if stripes is None else stripes
    if not 1 <= used <= storage.count:
        raise DemitasseError(
            f"{used} stripes on {machine.name!r} (valid: 1 to {storage.count}, as many as level "
            f"{level.name!r} has {storage.space!r})"
        )
    if processes < 1 or not 0 < batch < math.inf or block < 1:
        raise DemitasseError(
            f"{processes} processes that read {batch:g} bytes each, of blocks of {block} (valid: 1 or "
            f"more)"
        )
    asked = load(processes, batch, used, block, sampling)
    seconds = max(asked.share * processes * batch / bandwidth, batch / min(link, bandwidth))
    return Reading(
        storage.space,
        storage.count,
        bandwidth,
        processes,
        batch,
        used,
        block,
        sampling,
        asked.readers,
        bound(processes, batch, used, block),
        seconds,
    )
