"""Progress of training: permanent lines, and on a terminal one live line below them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from demitasse_cli.report import human_time, scores_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from demitasse import Event

WINDOW = 50
"""Iterations over which rates are averaged: enough to be steady, few enough to be current."""


class Meter:
    """Rates over the last iterations, and the time that is left."""

    def __init__(self, iteration: int, last: int) -> None:
        self.first, self.iteration, self.last = iteration, iteration, last
        self.started = time.perf_counter()
        self.samples, self.seconds = 0, 0.0
        self._window: deque[tuple[int, float, float]] = deque(maxlen=WINDOW)

    def count(self, event: Event) -> None:
        """Take an iteration into account."""
        values = event.values
        samples, seconds = int(values["samples"]), float(values["seconds"])
        self.iteration = event.iteration
        self.samples += samples
        self.seconds += seconds
        self._window.append((samples, seconds, float(values["phases"].get("read", 0.0))))

    @property
    def samples_per_second(self) -> float:
        """Over the window."""
        seconds = sum(row[1] for row in self._window)
        return sum(row[0] for row in self._window) / seconds if seconds else 0.0

    @property
    def overall(self) -> float:
        """Samples per second over all iterations, without tests and snapshots."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waiting(self) -> float:
        """The share of the window's time in which workers waited for samples."""
        seconds = sum(row[1] for row in self._window)
        return sum(row[2] for row in self._window) / seconds if seconds else 0.0

    @property
    def left(self) -> float:
        """Seconds to the last iteration, at the pace so far, tests and snapshots included."""
        done = self.iteration - self.first
        if not done:
            return float("inf")
        return (time.perf_counter() - self.started) / done * (self.last - self.iteration)

    def line(self, values: Mapping[str, Any]) -> str:
        """An iteration in words."""
        loss = values.get("smoothed", values["loss"])
        return (
            f"iteration {self.iteration}  loss {loss:.4g}  rate {values['rate']:.4g}  "
            f"{self.samples_per_second:.0f} samples/s  data wait {self.waiting:.1%}  "
            f"left {human_time(self.left)}"
        )


class Lines:
    """Progress for logs: a line at the solver's display interval, and at tests and snapshots."""

    def __init__(self, meter: Meter, interval: int, stream: IO[str]) -> None:
        self.meter, self.interval, self.stream = meter, interval, stream

    def __call__(self, event: Event) -> None:
        if event.kind == "iteration":
            self.meter.count(event)
            if self.due(event):
                self.say(self.meter.line(event.values))
        elif event.kind == "test":
            self.say(f"iteration {event.iteration}  test  {scores_text(event.values['scores'])}")
        elif event.kind == "snapshot":
            self.say(f"iteration {event.iteration}  snapshot {event.values['path']}")

    def due(self, event: Event) -> bool:
        """Whether an iteration has a permanent line of its own."""
        return self.interval > 0 and event.iteration % self.interval == 0

    def say(self, text: str) -> None:
        """A permanent line, seen at once by who follows a log."""
        print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing stays open."""


class Quiet(Lines):
    """Counts, and says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Live(Lines):
    """Progress for a terminal: one line that changes, test scores and snapshots above it."""

    def __init__(self, meter: Meter, interval: int, stream: IO[str]) -> None:
        super().__init__(meter, 0, stream)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        # One line high: what a signal handler prints between two refreshes then stays readable.
        self._progress: Progress = Progress(
            TextColumn(
                "{task.completed:.0f}/{task.total:.0f}",
                table_column=Column(no_wrap=True, min_width=2 * len(str(meter.last)) + 1),
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, overflow="crop")),
            console=Console(file=stream, highlight=False),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(
            "", total=meter.last, completed=meter.first, status="starting"
        )
        self._progress.start()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "iteration":
            status = self.meter.line(event.values).partition("  ")[2]
            self._progress.update(self._task, completed=event.iteration, status=status)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was, the last state standing."""
        self._progress.stop()


def shown(meter: Meter, interval: int, stream: IO[str], quiet: bool = False) -> Lines:
    """What fits where the lines go: live on a terminal that can, else plain lines."""
    if quiet:
        return Quiet(meter, interval, stream)
    live = stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    return (Live if live else Lines)(meter, interval, stream)
