"""What can go wrong with a sample, named by stripe, block and sample, and what is done about it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from demitasse import DataError

log = logging.getLogger("demitasse.striped_io")

SAID = 10
"""Faults that are logged one by one; from then on each tenfold."""


@dataclass(frozen=True)
class Fault:
    """A sample that could not be read, and why."""

    stripe: int
    block: int
    sample: int
    what: str

    def __str__(self) -> str:
        return f"stripe {self.stripe}, block {self.block}, sample {self.sample}: {self.what}"


class Faults:
    """The faults that were met by one source, each sample once. ``skipped`` counts every time that
    another sample took the place of one."""

    def __init__(self, name: str, skipping: bool) -> None:
        self.name, self.skipping, self.skipped = name, skipping, 0
        self.found: dict[int, Fault] = {}
        self._lock = threading.Lock()

    def met(self, faults: list[Fault]) -> None:
        """Stop, or go on and count. Raises DataError."""
        if not faults:
            return
        if not self.skipping:
            more = f" (and {len(faults) - 1:,} others)" if len(faults) > 1 else ""
            raise DataError(f"{self.name}: {faults[0]}{more}; on_error=skip continues without it")
        with self._lock:
            for fault in faults:
                if fault.sample in self.found:
                    continue
                self.found[fault.sample] = fault
                number = len(self.found)
                if number <= SAID:
                    log.warning("%s: skipped: %s", self.name, fault)
                elif str(number).strip("0") == "1":
                    log.warning("%s: skipped: %s samples so far", self.name, f"{number:,}")

    def replaced(self, count: int) -> None:
        """Count samples that others took the place of."""
        with self._lock:
            self.skipped += count

    def by_stripe(self) -> dict[int, int]:
        """How many samples of each stripe were found bad."""
        return dict(sorted(Counter(fault.stripe for fault in self.found.values()).items()))
