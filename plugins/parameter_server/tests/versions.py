"""Workers whose parameters are counters: element j of a bucket is how often worker ``j % workers`` has
updated it. A worker that reads parameters therefore knows whose pushes they include, and how old they
are.

Run by mpiexec, each process is a worker: mpiexec -n 3 python versions.py OPTIONS ITERATIONS
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import numpy as np

from demitasse import Bucket, FlatMemory, GradientSync, Group, Processes, Span, Team, Work, chain
from demitasse_parameter_server.bulk import slices
from demitasse_parameter_server.gradient_sync import server_of

SPANS = (Span(0, 40), Span(40, 41), Span(41, 50_000), Span(50_000, 50_040))
"""The spans of buckets: whole cache lines, one element, so many that MPI sends them only once they are
received, and a few."""

SEED, OFTEN, NAP = 4, 0.2, 1e-3
"""For naps: the seed, how often a worker takes one where it may, and the most seconds."""

LATE = 2e-2
"""Seconds by which a server is behind all others in a stretch of iterations."""


class Counting:
    """Worker ``number`` of ``workers``; ``bound`` is how many iterations it may be ahead of another
    (None: any number). Pushes to a server's part of a bucket come one after the other. The worker
    records ``faults`` in what it reads, and may nap at every point."""

    def __init__(
        self, number: int, workers: int, bound: int | None, apart: bool, servers: int = 1
    ) -> None:
        self.number, self.workers, self.bound, self.apart = number, workers, bound, apart
        self.servers = servers
        size = SPANS[-1].stop
        self.whose = np.concatenate([np.arange(len(span)) % workers for span in SPANS])
        self.memory = FlatMemory(
            *(np.zeros(size) for _ in range(2)), {"history": np.zeros(size)}, {"rate": np.ones(1)}
        )
        self.faults: list[str] = []
        self.offset = 0
        self._dice = random.Random(SEED + number)
        self._seen = np.zeros(size)

    def bind(self, sync: GradientSync) -> None:
        """Take the works of a step, in its order."""
        buckets = [Bucket(i, span, (f"layer{i}",)) for i, span in enumerate(SPANS)]
        flat = sync.update_memory(self.memory)
        numbers = {**self.memory.numbers, **flat.numbers}
        self._waits = [(bucket.span, sync.before_forward(bucket)) for bucket in reversed(buckets)]
        self._chains = [
            (b.span, chain([sync], b, lambda span: self._update(flat, numbers, span))) for b in buckets
        ]
        self._ends = sync.begin(), sync.end()

    def iterate(self, iterations: range) -> None:
        """In each iteration read all parameters, then push to all buckets."""
        begin, end = self._ends
        memory, mine = self.memory, self.whose == self.number
        for iteration in iterations:
            self._do(begin)
            for span, wait in self._waits:
                self._do(wait)
                for piece in filter(None, slices(span, self.servers, 8)):
                    self._read(iteration, slice(piece.start, piece.stop))
            # The value of a push comes with it, and differs from push to push.
            memory.numbers["rate"][0] = 2.0 ** self._dice.randrange(-3, 3) if self.apart else 1.0
            for span, push in self._chains:
                part = slice(span.start, span.stop)
                memory.gradients[part] = mine[part] / memory.numbers["rate"][0]
                self._do(push)
            self._do(end)
            memory.gradients[...] = np.nan  # they are this worker's again

    def _read(self, iteration: int, part: slice) -> None:
        found, whose = self.memory.parameters[part] - self.offset, self.whose[part]
        own, others = found[whose == self.number], found[whose != self.number]
        if any(np.ptp(found[whose == each]) for each in set(whose[: self.workers])):
            self.faults.append(f"parts of pushes were read in {iteration}")
        if (own != iteration).any():
            self.faults.append(f"{sorted({*own})} of its own {iteration} pushes were read")
        oldest = -np.inf if self.bound is None else iteration - self.bound
        newest = np.inf if self.bound is None else iteration + self.bound + self.apart
        if not ((others >= oldest) & (others <= newest)).all():
            self.faults.append(f"{sorted({*others})} of others' pushes were read in {iteration}")
        if (found < self._seen[part]).any():
            self.faults.append(f"parameters were older in {iteration} than before it")
        self._seen[part] = found

    def _update(self, flat: FlatMemory, numbers: Any, span: Span) -> Work:
        """Return an update in steps between which other threads run. If two updates ran at the same
        time, one would be lost; a reader would see a part of an update, or the values before it, as
        this may be late."""
        part = slice(span.start, span.stop)

        def work() -> None:
            self._nap()
            for array in (flat.parameters[part], flat.state["history"][part]):
                sums = array + flat.gradients[part] * numbers["rate"][0]
                time.sleep(0)
                half = len(array) // 2
                array[:half] = sums[:half]
                time.sleep(0)
                array[half:] = sums[half:]

        return work

    def _do(self, work: Work | None) -> None:
        self._nap()
        if work is not None:
            work()

    def _nap(self) -> None:
        if self._dice.random() < OFTEN:
            time.sleep(NAP * self._dice.random())

    def counted(self, iterations: int) -> bool:
        """Return whether parameters and state here have each push of all workers exactly once."""
        parameters, history = self.memory.parameters - self.offset, self.memory.state["history"]
        return bool((parameters == iterations).all() and (history == iterations).all())

    def edit(self, iterations: int) -> None:
        """Write other parameters, after so many iterations of all workers, as a user may do between
        steps."""
        self.offset += 1000
        self.memory.parameters[...] = self.offset + iterations


def threads(options: dict[str, Any], workers: int) -> tuple[list[Counting], list[GradientSync]]:
    """Return workers of a team, with their synchronisation."""
    team = Team(workers)
    made = [Counting(i, workers, *bound_of(options)) for i in range(workers)]
    groups = [Group(("worker",), i, team, "float64", options) for i in range(workers)]
    syncs = [server_of(group) for group in groups]
    shares = [sync.shares_parameters for sync in syncs]
    for worker, sharing, sync in zip(made, shares, syncs, strict=True):
        if sharing:
            worker.memory.parameters = made[0].memory.parameters
        if sharing or sync.asynchronous:
            worker.memory.state = made[0].memory.state
        team.memory.append(worker.memory)
    for worker, sync in zip(made, syncs, strict=True):
        sync.bind(worker.memory)
    for worker, sync in zip(made, syncs, strict=True):
        worker.bind(sync)
    return made, syncs


def bound_of(options: dict[str, Any]) -> tuple[int | None, bool]:
    """Return how many iterations one worker may be ahead by the options, and whether each has
    iterations of its own."""
    model = options.get("model", "bsp")
    return {"bsp": 0, "asp": None, "ssp": options.get("staleness", 3)}[model], model != "bsp"


def main(options: dict[str, Any], iterations: int, processes: Processes) -> dict[str, Any]:
    """Return the faults that this process finds as one of the workers in two stretches of so many
    iterations, with an edit between them."""
    about = *bound_of(options), options.get("servers", 2)
    worker = Counting(processes.rank, processes.size, *about)
    sync = server_of(Group(("node",), 0, None, "float64", options, True, None, processes))
    sync.bind(worker.memory)
    worker.bind(sync)
    whole = []
    for turn in range(2):
        worker.iterate(range(turn * iterations, (turn + 1) * iterations))
        sync.quiesce()
        whole.append(processes.rank > 0 or worker.counted((turn + 1) * iterations))
        worker.edit((turn + 1) * iterations)
        processes.gather(None)
        if processes.rank == 0:
            time.sleep(LATE)
    sync.close()
    return {"faults": worker.faults, "whole": whole}


if __name__ == "__main__":
    from demitasse_allreduce.processes import MpiProcesses

    joined = MpiProcesses(options={"peer_timeout": "100 s"})
    found = [main(options, int(sys.argv[2]), joined) for options in json.loads(sys.argv[1])]
    joined.close()
    os.write(1, (json.dumps({"rank": joined.rank, "found": found}) + "\n").encode())
