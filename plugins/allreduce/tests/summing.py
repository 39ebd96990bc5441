"""What each rank of ``test_gradient_sync`` runs: iterations with made-up gradients, in every stage."""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

from demitasse import Bucket, FlatMemory, GradientSync, Group, Processes, Span, Work, chain
from demitasse_allreduce import gradient_sync as gradient_sync_module
from demitasse_allreduce.gradient_sync import gradient_sync
from demitasse_allreduce.node import Node, SharedAllocator
from demitasse_allreduce.processes import MpiProcesses
from demitasse_allreduce.stages import near

EDGES = (0, 48, 48 + 5000, 48 + 5000 + 16, 6400, 9216)
"""The edges of buckets, of which some are large and some small."""

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}

OFTEN, NAP = 0.1, 2e-3
"""How often, by chance, a rank sleeps before a work, and the most seconds: any rank may be late at any
point."""


def memory(sync: GradientSync, dtype: str) -> FlatMemory:
    """Return flat memory with momentum, in the space that the synchronisation requires."""
    size = EDGES[-1]
    parameters = np.random.default_rng(1).normal(size=size).astype(dtype)
    if sync.space is None:
        return FlatMemory(parameters, np.zeros(size, dtype), {"momentum": np.zeros(size, dtype)})
    from demitasse_allreduce.plugin import allocator

    space = allocator(space=sync.space, options={})
    item = np.dtype(dtype).itemsize
    made = [space.allocate(size * item).view(0, (size,), dtype) for _ in range(2)]
    made[0][:] = parameters
    return FlatMemory(made[0], made[1], {"momentum": np.zeros(size, dtype)})


def update(flat: FlatMemory, span: Span) -> Work:
    """Update momentum and parameters in the span that a rank owns."""
    part = slice(span.start, span.stop)

    def work() -> None:
        momentum = flat.state["momentum"]
        momentum[part] = 0.5 * momentum[part] + flat.gradients[part]
        flat.parameters[part] -= momentum[part] / 4

    return work


def trained(options: Mapping[str, Any], processes: Processes, dtype: str, steps: int) -> dict[str, Any]:
    """Run iterations like those of a step; return what is then on this rank."""
    buckets = [
        Bucket(i, Span(*edges), (f"layer{len(EDGES) - i}",))
        for i, edges in enumerate(itertools.pairwise(EDGES))
    ]
    sync = gradient_sync(Group(("node",), 0, None, dtype, options, True, None, processes))
    forecast = list(sync.notes)
    flat = memory(sync, dtype)
    sync.bind(flat)
    before = [sync.before_forward(bucket) for bucket in buckets]
    works = [chain([sync], bucket, lambda span: update(flat, span)) for bucket in buckets]
    begin, end = sync.begin(), sync.end()
    rng, dice, wrong = np.random.default_rng(7), random.Random(processes.rank), set[str]()
    right, momentum = np.array(flat.parameters, np.float64), np.zeros(EDGES[-1])

    def do(work: Work | None) -> None:
        if dice.random() < OFTEN and processes.size > 1:
            time.sleep(NAP * dice.random())
        if work is not None:
            work()

    for step in range(steps):
        gradients = rng.normal(size=(processes.size, EDGES[-1])).astype(dtype)
        do(begin)
        for bucket, work in zip(reversed(buckets), reversed(before), strict=True):
            do(work)
            part = slice(bucket.span.start, bucket.span.stop)
            if not np.allclose(flat.parameters[part], right[part], rtol=0, atol=TOLERANCE[dtype]):
                wrong.add(f"bucket {bucket.index} is read in step {step} before it is there")
        for bucket, work in zip(buckets, works, strict=True):
            part = slice(bucket.span.start, bucket.span.stop)
            flat.gradients[part] = gradients[processes.rank, part]
            do(work)
        do(end)
        momentum = 0.5 * momentum + gradients.astype(np.float64).sum(axis=0)
        right -= momentum / 4
        flat.gradients[:] = np.nan  # they are this rank's again
    sync.quiesce()
    total = np.zeros(2)
    mine = np.array([float(sum(len(sync.owned(bucket.span)) for bucket in buckets)), 1.0])
    summing = sync.total(mine, total) if sync.size > 1 else None
    if summing is not None:
        summing()
    names = sorted({name.split()[0] for name, _, _ in sync.spans()})
    sync.close()
    return {
        "wrong": sorted(wrong),
        "parameters": flat.parameters.tobytes().hex(),
        "momentum": flat.state["momentum"].tobytes().hex(),
        "total": (mine if summing is None else total).tolist(),
        "owned": mine.tolist(),
        "notes": list(sync.notes),
        "forecast": forecast,
        "names": names,
    }


@contextmanager
def pretended(each: int) -> Iterator[None]:
    """Treat every so many consecutive ranks as a node; with 0, leave them as they are."""
    if not each:
        yield
        return
    world = MPI.COMM_WORLD
    node = SharedAllocator(Node(world.Split(world.rank // each)))
    homes = [rank // each * each for rank in range(world.size)]
    with (
        patch.object(near, "_allocator", lambda: node),
        patch.object(gradient_sync_module, "_homes", lambda comm: homes),
    ):
        yield


def main(wanted: list[dict[str, Any]], node_ranks: int = 0) -> None:
    processes = MpiProcesses(options={"peer_timeout": "100 s"})  # a busy machine may stop for long
    with pretended(node_ranks):
        for options in wanted:
            dtype = options.pop("dtype", "float64")
            found = trained(options, processes, dtype, int(options.pop("steps", 3)))
            every = processes.gather(found)
            if processes.rank == 0:
                print(json.dumps(every), flush=True)
    processes.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), *map(int, sys.argv[2:]))
