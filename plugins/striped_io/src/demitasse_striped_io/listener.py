"""The report at the end of a training that waited for samples, or skipped some."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from demitasse import Event

if TYPE_CHECKING:
    from demitasse_striped_io.source import Source

log = logging.getLogger("demitasse.striped_io")

LIMIT = 0.05
"""Waiting for samples is reported if it takes more than this fraction of the time of iterations."""
WARMING, LEAST, SHORTEST = 2, 10, 1.0
"""How many first iterations are not representative, and how many more iterations, and seconds of them, a
judgement needs: anything shorter is a trial."""

OPENED: weakref.WeakSet[Source] = weakref.WeakSet()
"""The striped sets of this process. They are registered here so that a training that reads none need not
import the code that reads them."""


class Listener:
    """Measures how long a training waits for samples. At its end, says what to change if that is over
    5%, and how many samples could not be read and were skipped. ``lines`` keeps what was said."""

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Source, float] = weakref.WeakKeyDictionary()
        self._skipped: weakref.WeakKeyDictionary[Source, int] = weakref.WeakKeyDictionary()
        self.lines: list[str] = []
        self._iterations = 0
        self._seconds = self._waited = 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._iterations, self._seconds, self._waited = 0, 0.0, 0.0
            self._before = weakref.WeakKeyDictionary({each: each.waited for each in OPENED})
            self._skipped = weakref.WeakKeyDictionary({each: each.faults.skipped for each in OPENED})
        elif event.kind == "iteration":
            self._iterations += 1
            if self._iterations > WARMING:
                self._seconds += float(event.values["seconds"])
                self._waited += float(event.values["phases"].get("read", 0.0))
        elif event.kind == "end" and "error" not in event.values:
            self.lines = [*self._without(), *self._said()]
            for line in self.lines:
                log.warning("%s", line)

    def _without(self) -> list[str]:
        lines = []
        for each in OPENED:
            count = each.faults.skipped - self._skipped.get(each, 0)
            if count:
                bad = len(each.faults.found)
                stripes = ", ".join(f"{n:,} on stripe {i}" for i, n in each.faults.by_stripe().items())
                lines.append(
                    f"{each.name}: {bad:,} of {each.size:,} samples could not be read ({stripes}); "
                    f"others took their place {count:,} time{'s' * (count != 1)}"
                )
        return lines

    def _said(self) -> list[str]:
        judged = self._iterations >= WARMING + LEAST and self._seconds >= SHORTEST
        if not judged or self._waited <= LIMIT * self._seconds:
            return []
        share = self._waited / self._seconds
        head = (
            f"waited for samples {share:.1%} of the time ({self._waited:.1f} of {self._seconds:.1f} s)"
        )
        waits = [(each.waited - self._before.get(each, 0.0), each) for each in OPENED]
        waits = [pair for pair in waits if pair[0] > 0]
        if not waits:
            return [
                f"{head}; if they are in files or a database, demitasse data convert SOURCE SET stores "
                f"them to be read in parallel, and demitasse data measure SOURCE says how fast they can "
                f"be read"
            ]
        from demitasse_striped_io.advice import remedies

        _, source = max(waits, key=lambda pair: pair[0])
        return [f"{head}, most for {source.name}", *(f"  {line}" for line in remedies(source))]
