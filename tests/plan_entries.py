"""What tests ask of the entries of a plan."""

from __future__ import annotations

from demitasse import Entry, Plan


def of_layer(plan: Plan, layer: str, phase: str = "forward") -> Entry:
    """The one entry of a layer in a phase, layout changes aside."""
    (entry,) = [
        e
        for e in plan.entries
        if (e.layer, e.phase) == (layer, phase) and e.operation not in ("reorder", "accumulate")
    ]
    return entry


def operations(plan: Plan, layer: str | None = None, phase: str | None = None) -> list[str]:
    return [e.operation for e in plan.entries if layer in (None, e.layer) and phase in (None, e.phase)]
