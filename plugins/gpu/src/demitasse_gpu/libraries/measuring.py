"""Choosing the fastest of several ways to compute the same, by measuring them where they will run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from demitasse import DemitasseError
from demitasse_gpu.launch import captured

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.driver import Handle

ROUNDS = 3
LEAST, MOST = 0.5e-3, 20
"""A round has as many calls as fill LEAST seconds, but at most MOST. Their number follows from the time
of one call, which may be mostly the host's; the device's share of a round is still some 0.2 ms."""

LONG, HOPELESS = 0.3e-3, 2.0
"""A way is not measured any further if one call takes longer than LONG seconds, which is then mostly the
device's time, and HOPELESS times as long as the best."""


def quickest(device: Device, ways: Sequence[Callable[[int], None]]) -> int:
    """Return the index of the fastest way, by the best of some rounds. What a way writes is overwritten
    later. A way that fails is not chosen. One that cannot be captured into a graph is chosen only if
    none can. Raises an error if all fail."""
    if len(ways) == 1:
        return 0
    times, failure = list[tuple[bool, float]](), None
    for way in ways:
        try:
            best = min((seconds for ungraphed, seconds in times if not ungraphed), default=math.inf)
            times.append(measured(device, way, best))
        except (DemitasseError, MemoryError) as error:
            failure = error.with_traceback(None)  # it would keep all ways and their plans alive
            times.append((True, math.inf))
    best = min(range(len(ways)), key=times.__getitem__)
    if failure is not None and times[best][1] == math.inf:
        raise failure
    return best


def measured(device: Device, way: Callable[[int], None], best: float = math.inf) -> tuple[bool, float]:
    """Return whether a step's graph could not contain the way, and the seconds per call on the device.
    The host may take longer to enqueue a call than the device to execute it, so the calls of a round are
    one graph, and rounds are enqueued behind one that is not counted. A way that is much slower than
    ``best``, and not because of the host's time to enqueue it (a launch for each of many shares), is
    only called twice."""
    spent = list[float]()

    def call() -> None:
        begin = time.perf_counter()
        way(device.stream)
        spent.append(time.perf_counter() - begin)

    call()  # loads its code, and shows whether it runs
    (first,) = _seconds(device, call, 1)
    if first > max(LONG, HOPELESS * best) and first > 2 * spent[-1]:
        return True, first
    count = MOST if first * MOST <= LEAST else math.ceil(LEAST / first)

    def calls() -> None:
        for _ in range(count):
            call()

    with device.turn:
        wanted = device.graphs and not device.is_shared()
        graph = _graph(device, calls) if wanted else None
    try:
        work = calls if graph is None else lambda: device.driver.launch_graph(graph, device.stream)
        work()
        return wanted and graph is None, min(_seconds(device, work, ROUNDS)) / count
    finally:
        if graph is not None:
            device.driver.end_graph(graph)


def _graph(device: Device, work: Callable[[], None]) -> Handle | None:
    """Return the graph of a work; None if it cannot be captured."""
    try:
        return captured(device, work)
    except (DemitasseError, MemoryError):
        return None


def _seconds(device: Device, work: Callable[[], None], rounds: int) -> list[float]:
    """Return the device's seconds for each of ``rounds`` consecutive calls of a work."""
    driver, stream = device.driver, device.stream
    events = [driver.event() for _ in range(rounds + 1)]
    try:
        driver.record(events[0], stream)
        for event in events[1:]:
            work()
            driver.record(event, stream)
        driver.wait(events[-1])
        return [driver.seconds_between(*pair) for pair in pairwise(events)]
    finally:
        for event in events:
            driver.end_event(event)
