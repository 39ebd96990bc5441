"""A timeline in Chrome's trace format: the iterations of a run, and the operations of one iteration."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse import write_json

if TYPE_CHECKING:
    from demitasse import Entry, Event

LIMIT = 5_000
"""How many iterations are drawn; browsers cannot show many more."""

RUN, PROFILE = 1, 2


class Timeline:
    """A listener that records the times of iterations, tests and snapshots, in microseconds.

    The phases of an iteration are drawn in order, each with the time that it took. Beside them is what
    synchronisation did concurrently, in as many rows as needed, because viewers omit events that overlap
    in one row. ``profile`` adds the operations of one iteration, end to end.
    """

    def __init__(self) -> None:
        # Times are relative to this: a clock that has run for days lacks digits for nanoseconds.
        self._start = time.perf_counter()
        self._before = 0.0
        self._drawn = 0
        self.events: list[dict[str, Any]] = [
            _name(RUN, "run: iterations as they happened"),
            _name(PROFILE, "one iteration, measured operation by operation"),
            _name(RUN, "iterations", 1),
            _name(RUN, "phases", 2),
            _name(PROFILE, "forward", 1),
            _name(PROFILE, "backward", 2),
        ]
        self._ends: list[float] = []

    def __call__(self, event: Event) -> None:
        now = time.perf_counter() - self._start
        if event.kind == "iteration" and self._drawn < LIMIT:
            self._drawn += 1
            begin = now - event.values["seconds"]
            self._add(
                RUN,
                1,
                f"iteration {event.iteration}",
                "iteration",
                begin,
                now,
                {
                    "loss": event.values["loss"],
                    "rate": event.values["rate"],
                },
            )
            for phase, seconds in event.values["phases"].items():
                self._add(RUN, 2, phase, "phase", begin, begin + seconds, {})
                begin += seconds
            spans = event.values.get("spans", tuple)()
            for name, *times in sorted(spans, key=lambda span: span[1]):
                start, stop = (at - self._start for at in times)
                self._add(RUN, self._row(start, stop), name, "synchronisation", start, stop, {})
        elif event.kind in ("test", "snapshot"):
            self._add(RUN, 1, event.kind, event.kind, self._before, now, dict(event.values))
        self._before = now

    def profile(self, entries: Iterable[tuple[Entry, float]]) -> None:
        """Add the operations of an iteration with their seconds, one after the other."""
        begin = 0.0
        for entry, seconds in entries:
            facts = {
                "kernel": entry.kernel,
                "plugin": entry.plugin,
                "operation": entry.operation,
                "flops": entry.flops,
                "bytes": entry.bytes,
            }
            row = 1 if entry.phase == "forward" else 2
            self._add(PROFILE, row, entry.layer, entry.phase, begin, begin + seconds, facts)
            begin += seconds

    def write(self, path: Path) -> None:
        """Write the file, for chrome://tracing or Perfetto."""
        write_json(path, {"traceEvents": self.events, "displayTimeUnit": "ms"}, indent=None)

    def _row(self, start: float, stop: float) -> int:
        """Return the first row of synchronisation that is free in this interval."""
        at = next((number for number, end in enumerate(self._ends) if end <= start), len(self._ends))
        if at == len(self._ends):
            self._ends.append(stop)
            self.events.append(_name(RUN, "synchronisation", 3 + at))
        self._ends[at] = stop
        return 3 + at

    def _add(
        self, process: int, row: int, name: str, kind: str, begin: float, end: float, args: Any
    ) -> None:
        # Both ends are rounded: Perfetto omits an event that overlaps its neighbour by a nanosecond.
        start, stop = (round(at * 1e6, 3) for at in (begin, end))
        self.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "ts": start,
                "dur": round(stop - start, 3),
                "pid": process,
                "tid": row,
                "args": args,
            }
        )


def _name(process: int, text: str, row: int = 0) -> dict[str, Any]:
    """Return the event that names a process, or a row of it, in a viewer."""
    kind = "thread_name" if row else "process_name"
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": text}}
