"""What this plugin requires of a run's processes (``demitasse.Processes``), whichever plugin provides
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Joined(Protocol):
    """Processes that MPI joins; every model needs this."""

    communicator: Any
    """An mpi4py communicator of all processes, in the order of their ranks, which this plugin
    duplicates."""


@runtime_checkable
class Expendable(Joined, Protocol):
    """Processes that a run can continue without; SSP and ASP also need this."""

    @property
    def lost(self) -> Mapping[int, str]:
        """The ranks that the run continues without, and what happened to each, in words. It changes over
        time. Once it has a rank, nothing more comes from that rank."""

    def tolerate(self, ranks: Iterable[int]) -> None:
        """From now on, continue the run without those of ``ranks`` that die, fail, fall silent or
        stall. ``check`` raises for all other ranks as before, and ``gather`` and ``total`` leave out
        the parts of lost ones. Called by all processes, at the same point."""
