"""How long each entry of a plan takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from demitasse import Entry, Step, StreamEngine, Work


def timed(
    step: Step, iterations: int, reads: Sequence[Work] = (), engine: StreamEngine | None = None
) -> list[tuple[Entry, float]]:
    """Return the mean seconds of each entry of a step over ``iterations`` passes, except what is
    computed once. ``reads`` run before each pass, untimed. Entries that an ``engine`` runs concurrently
    with its caller are timed by events between them. All events are enqueued before the first is waited
    for, so that the accelerator is timed, not the thread that gives it work."""
    works = [(entry, work) for entry, work in step.works if not entry.once]
    seconds = [0.0] * len(works)
    for _ in range(iterations):
        for read in reads:
            read()
        if engine is None:
            times = [time.perf_counter()]
            for _, work in works:
                work()
                times.append(time.perf_counter())
        else:
            events = [engine.default.record()]
            for _, work in works:
                work()
                events.append(engine.default.record())
            events[-1].wait()
            times = [event.seconds for event in events]
        for i in range(len(seconds)):
            seconds[i] += times[i + 1] - times[i]
    return [(entry, s / iterations) for (entry, _), s in zip(works, seconds, strict=True)]
