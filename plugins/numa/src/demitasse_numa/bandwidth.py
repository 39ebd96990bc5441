"""Measuring the bandwidth between the processors of one domain and the memory of another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Barrier, Thread
from typing import Any

import numpy as np

from demitasse_numa.allocator import DomainAllocator
from demitasse_numa.binding import bind_thread
from demitasse_numa.topology import Domain, Topology

MIB = 2**20
TURNS = 5


def matrix(machine: Topology, size: int = 128 * MIB, turns: int = TURNS) -> dict[tuple[int, int], float]:
    """Return the bytes per second between each domain's processors and each domain's memory, by (domain
    of the processors, domain of the memory). Domains of memory only are included. Arrays have ``size``
    bytes, or a sixteenth of the smallest domain's memory if that is less."""
    every = (*machine.domains, *machine.others)
    sizes = [machine.nodes[n].memory for each in every for n in each.memory[:1] if n in machine.nodes]
    size = min([size, *(total // 16 // 4096 * 4096 for total in sizes if total)])
    return {
        (here.index, there.index): triad(here, there, size, turns)
        for here in machine.domains
        for there in every
    }


def triad(here: Domain, there: Domain, size: int = 128 * MIB, turns: int = TURNS) -> float:
    """Return the bytes per second of ``a = b + s * c`` on three float64 arrays of ``size`` bytes in
    ``there``, by a thread on each core of ``here``; the best of the turns. NumPy needs two passes, so
    five arrays move. As in STREAM, bytes read and bytes written count."""
    allocator = DomainAllocator(f"numa:{there.index}", there)
    blocks = [allocator.allocate(size) for _ in range(3)]
    a, b, c = (block.view(0, (size // 8,), "float64") for block in blocks)
    threads = max(1, len(here.cores))
    start, end = Barrier(threads + 1), Barrier(threads + 1)
    errors: list[BaseException] = []

    def work(part: slice) -> None:
        try:
            bind_thread(here)
            for _ in range(turns):
                start.wait()
                np.multiply(c[part], 3.0, out=a[part])
                np.add(a[part], b[part], out=a[part])
                end.wait()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
            start.abort()
            end.abort()

    helpers = [
        Thread(target=work, args=(part,), name=f"demitasse-numa-triad-{i}", daemon=True)
        for i, part in enumerate(_parts(len(a), threads))
    ]
    for helper in helpers:
        helper.start()
    times = []
    try:
        for _ in range(turns):
            start.wait()
            began = time.perf_counter()
            end.wait()
            times.append(time.perf_counter() - began)
    finally:
        for helper in helpers:
            helper.join()
        if errors:
            raise errors[0]
        for block in blocks:
            block.close()
    return float(5 * a.nbytes / min(times))


def _parts(count: int, threads: int) -> Iterator[slice]:
    for i in range(threads):
        yield slice(count * i // threads, count * (i + 1) // threads)


def table(rates: dict[tuple[int, int], float]) -> list[list[str]]:
    """Return the matrix as rows of text: a domain of processors, then GB/s to each domain's memory."""
    columns = sorted({there for _, there in rates})
    rows: list[list[str]] = []
    for here in sorted({here for here, _ in rates}):
        values: Sequence[Any] = [rates[here, there] for there in columns]
        rows.append([f"numa:{here}", *(f"{value / 1e9:.1f}" for value in values)])
    return [["GB/s", *(f"numa:{there}" for there in columns)], *rows]
