"""The outcome of some iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """The outcome of some iterations: the loss of the last one (averaged over ``average_loss``), the
    seconds that all took, and the first worker's seconds by phase (read, forward, backward,
    synchronise)."""

    iteration: int
    loss: float
    seconds: float
    phases: Mapping[str, float]
