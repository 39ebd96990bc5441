"""Progress of training: permanent lines and, on a terminal, one live line below them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from demitasse import launched, printable
from demitasse_cli.outlets import Drawing
from demitasse_cli.report import human_time, pace, scores_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from demitasse import Event

WINDOW = 50
"""How many iterations rates are averaged over: enough to be steady, few enough to be current."""


WARMING = 2
"""How many first iterations are not representative, because kernels are compiled in them."""

PATIENCE = 2.0
"""After so many seconds, a log says what delays the first iteration."""

BETWEEN = 30.0
"""Seconds between two lines of a log about the same test."""

BINDING, WHY = "binding kernels", "the first time compiles them"
CHOOSING = "choosing kernels (the first time compiles and tries them)"
BAR = 16


class Meter:
    """Rates over the last iterations, and the remaining time."""

    def __init__(self, iteration: int, last: int) -> None:
        self.first, self.iteration, self.last = iteration, iteration, last
        self.samples, self.seconds = 0, 0.0
        self._counted = 0
        self._steady: tuple[int, float, float] | None = None
        self._window: deque[tuple[int, float, float]] = deque(maxlen=WINDOW)

    def count(self, event: Event) -> None:
        """Count an iteration."""
        values = event.values
        samples, seconds = int(values["samples"]), float(values["seconds"])
        self.iteration = event.iteration
        self.samples += samples
        self.seconds += seconds
        self._counted += 1
        if self._counted <= WARMING + 1:
            self._window.clear()
        if self._counted <= WARMING:
            self._steady = (event.iteration, time.perf_counter(), self.seconds)
        self._window.append((samples, seconds, float(values["phases"].get("read", 0.0))))

    @property
    def samples_per_second(self) -> float:
        """Samples per second over the window."""
        seconds = sum(row[1] for row in self._window)
        return sum(row[0] for row in self._window) / seconds if seconds else 0.0

    @property
    def overall(self) -> float:
        """Samples per second over all iterations, excluding tests and snapshots."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waiting(self) -> float:
        """The share of the window's time in which workers waited for samples."""
        seconds = sum(row[1] for row in self._window)
        return sum(row[2] for row in self._window) / seconds if seconds else 0.0

    @property
    def left(self) -> float:
        """Seconds to the last iteration: the window's time per iteration, plus the time that tests and
        snapshots have added per iteration so far."""
        if self.iteration >= self.last:
            return 0.0
        if self._counted < WARMING or self._steady is None:
            return float("inf")
        pace = sum(row[1] for row in self._window) / len(self._window)
        since, at, seconds = self._steady
        if self.iteration > since:
            between = time.perf_counter() - at - (self.seconds - seconds)
            pace += max(0.0, between) / (self.iteration - since)
        return pace * (self.last - self.iteration)

    def fields(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the words for an iteration, by topic."""
        loss = values.get("smoothed", values["loss"])
        return {
            "loss": f"loss {loss:.4g}",
            "rate": f"rate {values['rate']:.4g}",
            "speed": self._speed,
            "wait": f"data wait {self.waiting:.1%}",
            "left": f"left {human_time(self.left)}",
        }

    @property
    def _speed(self) -> str:
        """The speed over the window; in iterations if samples are not counted, as when a user's layer
        makes them."""
        if self.samples:
            return f"{pace(self.samples_per_second)} samples/s"
        seconds = sum(row[1] for row in self._window)
        return f"{pace(len(self._window) / seconds if seconds else 0.0)} iterations/s"

    def line(self, values: Mapping[str, Any]) -> str:
        """Return an iteration as one line."""
        return "  ".join([f"iteration {self.iteration}", *self.fields(values).values()])


@contextmanager
def said_if_long(text: str, stream: IO[str]) -> Iterator[None]:
    """Print ``text`` if the block takes long. At its end, raises the OSError of a stream that no longer
    accepts output: what is printed next would be dropped silently."""
    lost: list[OSError] = []

    def say() -> None:
        with suppress(ValueError):  # a closed stream; the next print reports it
            try:
                print(text, file=stream, flush=True)
            except OSError as error:
                lost.append(error)

    waiting = threading.Timer(PATIENCE, say)
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        waiting.join()
    if lost:
        raise lost[0]


class Lines:
    """Progress for logs: a line at the solver's display interval, and at tests and snapshots."""

    def __init__(self, meter: Meter, interval: int, stream: IO[str]) -> None:
        self.meter, self.interval, self.stream = meter, interval, stream
        self.waiting: threading.Timer | None = None
        self._since = time.monotonic()  # the last event other than a test's batches

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self.wait()
        elif self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
        if event.kind != "testing":
            self._since = time.monotonic()
        if event.kind == "iteration":
            self.meter.count(event)
            if self.due(event):
                self.say(self.meter.line(event.values))
                for size in event.values.get("sizes", ()):
                    blob = f"parameter {size.name}" if size.phase == "update" else size.name
                    self.say(f"    {size.phase:<8} {size.layer}: {blob} {size.what} {size.mean:.6g}")
        elif event.kind == "testing":
            self.testing(event)
        elif event.kind == "test":
            self.say(f"iteration {event.iteration}  test  {scores_text(event.values['scores'])}")
        elif event.kind == "snapshot":
            self.say(f"iteration {event.iteration}  snapshot {event.values['path']}")

    def testing(self, event: Event) -> None:
        """Report the progress of a long test, now and then."""
        if time.monotonic() - self._since >= BETWEEN:
            self._since = time.monotonic()
            self.say(f"iteration {event.iteration}  {tested(event)}")

    def wait(self) -> None:
        """Say what delays the first iteration, or the test before it, if it takes long."""
        self.waiting = threading.Timer(PATIENCE, self.say, [f"{BINDING} ({WHY})"])
        self.waiting.daemon = True
        self.waiting.start()

    def due(self, event: Event) -> bool:
        """Whether an iteration gets a permanent line of its own."""
        return self.interval > 0 and event.iteration % self.interval == 0

    def say(self, text: str) -> None:
        """Print a permanent line, visible at once in a log that someone follows."""
        print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """End what is still open."""
        if self.waiting is not None:
            self.waiting.cancel()


class Quiet(Lines):
    """Counts, and prints nothing."""

    def say(self, text: str) -> None:
        """Print nothing."""


class Live(Lines):
    """Progress for a terminal: one line that changes, with test scores and snapshots above it."""

    def __init__(self, meter: Meter, interval: int, stream: IO[str]) -> None:
        super().__init__(meter, 0, stream)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        # One line high, so that what a signal handler prints between two refreshes stays readable.
        self._bar = BarColumn(bar_width=BAR)
        self._place = TextColumn("{task.fields[place]}", table_column=Column(no_wrap=True))
        self._status = TextColumn(
            "{task.fields[status]}", table_column=Column(no_wrap=True, overflow="crop")
        )
        self._progress: Progress = Progress(
            self._place,
            self._bar,
            self._status,
            console=Console(file=cast("IO[str]", Drawing(stream)), highlight=False),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(
            "", total=meter.last, completed=meter.first, place="", status="starting"
        )
        self._fields: Mapping[str, str] = {"status": "starting"}
        self._draw(meter.first, self._fields)
        self._progress.start()

    def __call__(self, event: Event) -> None:
        if event.kind in ("test", "snapshot"):
            # Printing above the line draws it again in its latest state.
            self._draw(event.iteration, self._fields)
            self._progress.refresh()
        super().__call__(event)
        if event.kind == "start":
            self._fields = {"status": BINDING, "why": f"({WHY})"}
        elif event.kind == "iteration":
            self._fields = self.meter.fields(event.values)
        if event.kind in ("start", "iteration"):
            self._draw(event.iteration, self._fields)

    def testing(self, event: Event) -> None:
        """Show the test's progress in the line until the scores are there."""
        self._draw(event.iteration, {"status": tested(event)})

    def wait(self) -> None:
        """Do nothing: the live line says it from the start."""

    def _draw(self, iteration: int, fields: Mapping[str, str]) -> None:
        place, bar, shown = fit(iteration, self.meter.last, fields, self._progress.console.width)
        both = (self._place, self._status)
        self._progress.columns = (self._place, self._bar, self._status) if bar else both
        self._progress.update(self._task, completed=iteration, place=place, status=shown)

    def say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal, leaving the last state visible."""
        super().close()
        self._progress.stop()


def tested(event: Event) -> str:
    """Return how many of a test's batches are done, in words."""
    return f"testing {event.values['done']}/{event.values['batches']}"


def fit(iteration: int, last: int, fields: Mapping[str, str], width: int) -> tuple[str, int, str]:
    """Return the place, the bar's width and the text of the fields for a line of ``width`` columns. The
    least important parts are left out until the rest fits, so that no number is cut."""
    place, bar, shown = f"{iteration}/{last}".rjust(2 * len(str(last)) + 1), BAR, dict(fields)

    def length() -> int:
        # There is a column between the parts.
        return len(place) + bar + len("  ".join(shown.values())) + (2 if bar else 1)

    for name in ("why", "wait", "rate", "bar", "speed", "last", "left"):
        if length() <= width:
            break
        if name == "bar":
            bar, place = 0, place.strip()
        elif name == "last":
            place = str(iteration)
        else:
            shown.pop(name, None)
    return place, bar, "  ".join(shown.values())


class Batches:
    """How many batches of a test are done; shows nothing, for streams that are not terminals."""

    def done(self, count: int) -> None:
        """Report that ``count`` batches are done."""


class LiveBatches(Batches):
    """A line that changes, and disappears in the end."""

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._task = progress, progress.add_task("batches", total=count)

    def done(self, count: int) -> None:
        self._progress.update(self._task, completed=count)


@contextmanager
def batches(count: int, stream: IO[str], quiet: bool = False) -> Iterator[Batches]:
    """Show the progress of a test of so many batches while the block runs."""
    if quiet or not _is_live(stream):
        yield Batches()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=cast("IO[str]", Drawing(stream)), highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        yield LiveBatches(progress, count)


def shown(meter: Meter, interval: int, stream: IO[str], quiet: bool = False) -> Lines:
    """Return the progress that suits the stream: live on a terminal that supports it, else plain
    lines."""
    if quiet:
        return Quiet(meter, interval, stream)
    return (Live if _is_live(stream) else Lines)(meter, interval, stream)


def _is_live(stream: IO[str]) -> bool:
    """Whether the stream is a terminal on which a line can change. Open MPI's mpiexec gives each process
    a terminal, and copies what is written there to its own output, which may be a file."""
    relayed = (found := launched()) is not None and (not found.alone or found.protocol == "PMIx")
    return not relayed and stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
