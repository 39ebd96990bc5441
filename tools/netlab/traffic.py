"""The work of each rank in a measurement: timed messages. Run by ``netlab.measure`` in a lab."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

Flow = tuple[int, int]


def flows(comm: MPI.Intracomm, pairs: list[Flow], size: int, rounds: int) -> list[list[float]]:
    """On rank 0, return for each round the seconds until each of the messages (source, target), which
    all begin at once, has arrived. All namespaces share one clock, so begin and end can come from two
    ranks."""
    rank = comm.rank
    targets = [target for source, target in pairs if source == rank]
    sources = [source for source, target in pairs if target == rank]
    here = [np.empty(size, np.uint8) for _ in sources]
    out = np.ones(size, np.uint8)
    found = []
    for _ in range(rounds):
        comm.Barrier()
        # A barrier releases ranks one after the other, so agree on a time soon after it.
        begin = comm.bcast(time.monotonic() + 0.003, root=0)
        requests = [comm.Irecv(data, source) for data, source in zip(here, sources, strict=True)]
        while time.monotonic() < begin:
            time.sleep(0)
        sends = [comm.Isend(out, target) for target in targets]
        ended: dict[str, float] = {}
        while len(ended) < len(requests):
            number = MPI.Request.Waitany(requests)
            ended[f"{sources[number]} {rank}"] = time.monotonic() - begin
        MPI.Request.Waitall(sends)
        every = comm.gather(ended)
        if every is not None:
            merged = {key: value for each in every for key, value in each.items()}
            found.append([merged[f"{source} {target}"] for source, target in pairs])
    return found


def ping(comm: MPI.Intracomm, one: int, other: int, size: int, rounds: int) -> list[float]:
    """Return half the seconds of each of some round trips between two ranks, while the others wait."""
    data, half = np.ones(size, np.uint8), []
    comm.Barrier()
    if comm.rank in (one, other):
        peer = other if comm.rank == one else one
        for _ in range(rounds):
            begin = time.monotonic()
            if comm.rank == one:
                comm.Send(data, peer)
                comm.Recv(data, peer)
            else:
                comm.Recv(data, peer)
                comm.Send(data, peer)
            half.append((time.monotonic() - begin) / 2)
    halves: list[list[float]] = comm.allgather(half)
    return halves[one]


def adds(comm: MPI.Intracomm, size: int, rounds: int) -> list[float]:
    """Return the seconds in which the slowest rank adds ``size`` bytes of floats, while all ranks
    add."""
    mine, other = np.ones((2, size // 4), np.float32)
    slowest = []
    for _ in range(rounds):
        comm.Barrier()
        begin = time.monotonic()
        np.add(mine, other, out=mine)
        slowest.append(comm.allreduce(time.monotonic() - begin, MPI.MAX))
    return slowest


KINDS: dict[str, Callable[..., Any]] = {"flows": flows, "ping": ping, "adds": adds}


def main() -> None:
    comm = MPI.COMM_WORLD
    answers: list[Any] = []
    for order in json.loads(sys.argv[1]):
        kind = KINDS[order.pop("kind")]
        answers.append(kind(comm, **order))
    if comm.rank == 0:
        print(json.dumps(answers))


if __name__ == "__main__":
    main()
