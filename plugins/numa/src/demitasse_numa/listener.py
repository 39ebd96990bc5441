"""The line about the placement of memory that a run logs at its end."""

from __future__ import annotations

import logging

from demitasse import Event
from demitasse_numa import pages
from demitasse_numa.machine import this_machine
from demitasse_numa.report import Placement, placement

log = logging.getLogger("demitasse.numa")


class Listener:
    """Reports where the pages of a training are, if its machine has several memory domains and the
    training several solvers. ``found`` keeps the last result."""

    def __init__(self) -> None:
        self.found: Placement | None = None

    def __call__(self, event: Event) -> None:
        if event.kind != "end" or "arrays" not in event.values or not pages.available():
            return
        machine = this_machine()
        if len(machine.domains) < 2:
            return
        self.found = placement(event.values["arrays"](), machine)
        if len(self.found.workers) > 1:
            log.warning("%s", self.found.line())
