"""Quick measurements of this machine: memory bandwidth, a matrix product, the rates of layers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from demitasse import Level, Machine, Quantity, Rate, Runtime
from demitasse_system.sustained import sustained

SECONDS = 0.3
"""Seconds for which each of the two is repeated; the best time counts."""

MIB = 2**20


def measured(runtime: Runtime) -> Machine:
    """Return a runtime's machine with measured numbers: the program ``measure``."""
    return replace(runtime.machine, levels=measure(runtime.machine.levels, sustained(runtime)))


def measure(levels: Iterable[Level], reached: Rate | None = None) -> tuple[Level, ...]:
    """Return the levels, the outermost with its measured memory bandwidth and float32 peak, and with the
    rates that layers have ``reached``, if these were measured.

    Takes about a second, and three arrays that together are twice as large as the last-level caches (at
    least 192 MiB, at most a quarter of the memory). All cores of the level take part.
    """
    node, *inner = levels
    memory = node.memory
    if memory:
        last = [c.capacity.value * c.count for c in node.caches[-1:] if c.capacity]
        size = max(64 * MIB, 2 * sum(last) / 3)
        if memory[0].capacity is not None:
            size = min(size, memory[0].capacity.value / 12)
        bandwidth = triad(node.cores or 1, int(size))
        memory = (replace(memory[0], bandwidth=_measured(bandwidth, "B/s")), *memory[1:])
    # A convolution by fewer multiplications than are counted may exceed the rate of a product.
    peak = max([product(), *([reached.value] if reached else [])])
    return replace(node, memory=memory, peak=_measured(peak, "FLOP/s"), sustained=reached), *inner


def triad(threads: int, size: int = 64 * MIB) -> float:
    """Return bytes per second of ``a = b + s * c`` on float64 arrays of ``size`` bytes, divided over
    threads.

    As in STREAM, bytes read and written count, but not cache lines that a write fetches first. NumPy
    takes two passes over ``a``, so five arrays are moved.
    """
    import numpy as np

    count = math.ceil(size / 8 / threads) * threads
    a, b, c = (np.empty(count) for _ in range(3))
    parts = [slice(*edges) for edges in pairwise(range(0, count + 1, count // threads))]

    def touch(part: slice) -> None:
        # Each thread writes to its part first, which places the part in the thread's memory domain.
        a[part], b[part], c[part] = 0, 1, 2

    def add(part: slice) -> None:
        np.multiply(c[part], 3.0, out=a[part])
        np.add(a[part], b[part], out=a[part])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(touch, parts))
        seconds = _best(lambda: list(pool.map(add, parts)))
    return 5 * a.nbytes / seconds


def product(size: int = 1536) -> float:
    """Return operations per second of a square float32 matrix product by NumPy's BLAS, on its
    threads."""
    import numpy as np

    a = np.full((size, size), 0.5, np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / _best(lambda: np.matmul(a, a, out=out))


def _best(work: Callable[[], object]) -> float:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _measured(value: float, unit: str) -> Quantity:
    # So short a measurement is accurate to three digits at most.
    return Quantity(float(f"{value:.3g}"), unit, "measured")
