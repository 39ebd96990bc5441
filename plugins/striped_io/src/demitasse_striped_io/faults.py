"""Faults of samples, identified by stripe, block and sample, and what is done about them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from demitasse import DataError

log = logging.getLogger("demitasse.striped_io")

SAID = 10
"""So many faults are logged one by one; after that, only the 100th, the 1,000th, and so on."""


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
    """The faults that one source has met, each sample once. ``skipped`` counts every time that another
    sample replaced a bad one."""

    def __init__(self, name: str, skipping: bool) -> None:
        self.name, self.skipping, self.skipped = name, skipping, 0
        self.found: dict[int, Fault] = {}
        self._lock = threading.Lock()

    def met(self, faults: list[Fault]) -> None:
        """Raise DataError for the faults or, when skipping, count them and continue."""
        if not faults:
            return
        if not self.skipping:
            more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
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
        """Count samples that were replaced by others."""
        with self._lock:
            self.skipped += count

    def by_stripe(self) -> dict[int, int]:
        """The number of bad samples found on each stripe."""
        return dict(sorted(Counter(fault.stripe for fault in self.found.values()).items()))
