"""One rank of a contender, which sums when the driver asks. It runs in the contender's interpreter, so
of this project it imports only the contender that it measures.

A line from the driver is ``BYTES BATCH COUNT``. The answer is COUNT pairs of (begin, end), in seconds of
the machine's monotonic clock, each for BATCH consecutive sums after a barrier of the library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Sum = Callable[[], object]


def mpi() -> tuple[int, Callable[[int], Sum], Sum, Callable[[Any], Sum]]:
    """Return the library's own sum."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def over(array: Any) -> Sum:
        return lambda: comm.Allreduce(MPI.IN_PLACE, array)

    return comm.rank, lambda nbytes: over(np.zeros(nbytes // 4, np.float32)), comm.Barrier, over


def gloo() -> tuple[int, Callable[[int], Sum], Sum, Callable[[Any], Sum]]:
    """Return the sum of torch.distributed over gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def over(array: Any) -> Sum:
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)

    return dist.get_rank(), lambda nbytes: over(np.zeros(nbytes // 4, np.float32)), dist.barrier, over


def call() -> tuple[int, Callable[[int], Sum], Sum, Callable[[Any], Sum]]:
    """Return ``demitasse_allreduce.allreduce`` of an ordinary array."""
    from mpi4py import MPI

    from demitasse_allreduce import allreduce
    from demitasse_allreduce.call import node_of

    comm = MPI.COMM_WORLD
    node = node_of(comm)
    assert node is not None

    def over(array: Any) -> Sum:
        return lambda: allreduce(array, comm)

    barrier = node.barrier().run
    return comm.rank, lambda nbytes: over(np.zeros(nbytes // 4, np.float32)), barrier, over


def shared() -> tuple[int, Callable[[int], Sum], Sum, Callable[[Any], Sum]]:
    """Return the sum of arrays from the allocator of ``shared:node``."""
    from mpi4py import MPI

    from demitasse_allreduce.node import Node, SharedAllocator

    comm = MPI.COMM_WORLD
    node = Node(comm)
    allocator = SharedAllocator(node)

    def make(nbytes: int) -> Sum:
        array = allocator.allocate(nbytes).view(0, (nbytes // 4,), "float32")
        array[:] = 0
        return node.allreduce(array).run

    def over(array: Any) -> Sum:
        mine = allocator.allocate(array.nbytes).view(0, array.shape, array.dtype)

        def run() -> None:
            mine[:] = array
            node.allreduce(mine).run()
            array[:] = mine

        return run

    return comm.rank, make, node.barrier().run, over


def check(rank: int, size: int, over: Callable[[Any], Sum]) -> None:
    """Check that the contender's sum is right."""
    numbers = np.random.default_rng(1).standard_normal((size, 100_003))
    array = numbers[rank].astype(np.float32)
    over(array)()
    if not np.allclose(array, numbers.sum(0), atol=1e-5):
        raise SystemExit("the sum is wrong")


def main() -> None:
    contender, name, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rank, make, barrier, over = {"mpi": mpi, "gloo": gloo, "call": call, "shared": shared}[contender]()
    check(rank, size, over)
    sums: dict[int, Sum] = {}
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        print(json.dumps({"name": name, "rank": rank, "process": os.getpid()}), file=lines, flush=True)
        for line in lines:
            nbytes, batch, count = map(int, line.split())
            run = sums.get(nbytes) or sums.setdefault(nbytes, make(nbytes))
            run()
            times = []
            for _ in range(count):
                barrier()
                begin = time.monotonic()
                for _ in range(batch):
                    run()
                times.append((begin, time.monotonic()))
            print(json.dumps(times), file=lines, flush=True)
    os._exit(0)  # ranks that are asked to end need not agree on it


if __name__ == "__main__":
    main()
