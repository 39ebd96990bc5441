"""What a trainer lends to a net of its own, which then computes in the trainer's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demitasse import Slot, WorkerPlace
from demitasse_training.shares import Share


@dataclass(frozen=True)
class Lent:
    """The place where a net computes, and the memory that it borrows.

    - ``worker``: the worker's place;
    - ``slots``, ``flat``: where parameters lie, and the flat memory that contains them;
    - ``gradients``: flat memory for gradients, if the net computes any;
    - ``arena``: memory for its arena, if that is lent, too;
    - ``regions``: blocks for other regions of its plans, by name;
    - ``share``: the worker's share of the samples."""

    worker: WorkerPlace
    slots: tuple[Slot, ...]
    flat: Any
    gradients: Any = None
    arena: Any = None
    regions: Mapping[str, Any] = field(default_factory=dict)
    share: Share = field(default_factory=Share)
