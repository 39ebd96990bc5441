"""How long each entry of a plan takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from demitasse import Entry, Step, StreamEngine, Work


def timed(
    step: Step, iterations: int, reads: Sequence[Work] = (), engine: StreamEngine | None = None
) -> list[tuple[Entry, float]]:
    """The mean seconds of each entry of a step over some walks, but for what is done once before all;
    ``reads`` come before each, untimed. What an ``engine`` runs beside its caller is timed by events
    between the entries, all of them enqueued before the first is waited for: what is timed is the
    accelerator, not who gives it work."""
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
