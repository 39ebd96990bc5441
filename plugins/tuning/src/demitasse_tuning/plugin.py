"""The hooks of the tuning plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Finding, Tuner


@hookimpl
def tuner(allocator: Allocator, versions: Mapping[str, str], options: Mapping[str, Any]) -> Tuner | None:
    """Return a tuner for host memory. Raises CompositionError for an option that it does not have."""
    from demitasse_tuning.tuner import CandidateTuner

    return CandidateTuner(allocator, versions, options)


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Return where choices are remembered, how many there are, and whether more can be saved."""
    from demitasse_tuning.diagnosis import findings

    return findings()
