"""The results of a run (losses, scores, last snapshot) for the report and the last line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demitasse_cli import report

if TYPE_CHECKING:
    from demitasse import Event

HISTORY = 10_000
"""How many losses are kept for the report; longer runs keep every second, then every fourth, ..."""


class History:
    """Losses, test scores and the last snapshot of a run, collected from its events."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []
        self.tests: list[dict[str, Any]] = []
        self.snapshot: Path | None = None
        self._every = 1

    def __call__(self, event: Event) -> None:
        if event.kind == "iteration" and event.iteration % self._every == 0:
            self.losses.append((event.iteration, float(event.values["loss"])))
            if len(self.losses) > HISTORY:
                self._every *= 2
                self.losses = [row for row in self.losses if row[0] % self._every == 0]
        elif event.kind == "test":
            scores = dict(event.values["scores"])
            self.tests.append({"iteration": event.iteration, "scores": scores})
        elif event.kind == "snapshot":
            self.snapshot = Path(event.values["path"])

    @property
    def scores(self) -> Mapping[str, Any]:
        """The scores of the last test; empty if there was none."""
        return self.tests[-1]["scores"] if self.tests else {}


def came_to(iteration: int, loss: float, history: History, seconds: float) -> str:
    """Return a line with the results of a run."""
    parts = [report.counted(iteration, "iteration")]
    if not math.isnan(loss):
        parts.append(f"loss {loss:.4g}")
    if history.scores:
        at = history.tests[-1]["iteration"]
        when = f" of iteration {at}:" if at != iteration else ""  # interrupted runs skip the last test
        parts.append(f"test{when} {report.scores_text(history.scores)}")
    parts.append(f"{seconds:.1f} s")
    if history.snapshot is not None:
        parts.append(f"snapshot {history.snapshot}")
    return "  ".join(parts)
