"""What this plugin asks of the processes of a run (``demitasse.Processes``), whoever serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Joined(Protocol):
    """Processes that MPI joins: any model needs that."""

    communicator: Any
    """One of mpi4py's with all of them, in the order of their ranks, to be duplicated."""


@runtime_checkable
class Expendable(Joined, Protocol):
    """Processes that a run can go on without: SSP and ASP need that too."""

    @property
    def lost(self) -> Mapping[int, str]:
        """The ranks that the run goes on without, and what became of each, in words. It changes as time
        goes by; from when a rank is in it, nobody hears from it again."""

    def tolerate(self, ranks: Iterable[int]) -> None:
        """From now on the run goes on without those of ``ranks`` that die, fail, fall silent or stall;
        ``check`` raises for all others as before, and ``gather`` and ``total`` do without their parts.
        Called by all, at the same point."""
