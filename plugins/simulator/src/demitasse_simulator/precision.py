"""A note on which parts of a prediction in one precision rest on the numbers of another precision."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse_simulator.planning import Draft
from demitasse_simulator.rates import Costed
from demitasse_simulator.roofline import PLAIN
from demitasse_simulator.trials import wanted


def fallen_back(
    precision: str, made: Draft, costs: Sequence[Costed], *, unrated: bool
) -> tuple[str, ...]:
    """Return a line if operations are costed as in float32 because their cost in ``precision`` is
    unknown. Returns nothing if all costs are known, or if ``precision`` is float32. ``unrated`` says
    that the description has no rate in ``precision`` for operations that are costed by such a rate."""
    if precision == PLAIN:
        return ()
    chosen = [(entry, *made.requests[id(entry.candidate)]) for entry in made.plan.entries]
    halved = sum(
        any(spec is not None and spec.stored == "bfloat16" for spec in wanted(request, candidate))
        for _, candidate, request in chosen
    )
    by_source: dict[str, list[str]] = {}
    for (entry, candidate, _), cost in zip(chosen, costs, strict=True):
        if precision in candidate.kernel.split():
            continue  # the kernel's name has the precision
        by_source.setdefault(cost.source, []).append(entry.plugin)
    reasons = []
    if unrated:
        less = ", which is lower" if precision == "f64" else ""
        reasons.append(
            f"the description has no rate for {precision}{less}, so operations are costed at float32's: "
            f'give it one (peak = {{ f32 = "...", {precision} = "..." }}, `sustained` likewise)'
        )
    if precision == "f64":
        return (f"precision f64 is costed as f32: {reasons[0]}",) if reasons else ()
    if (said := by_source.get("kernel")) and not (precision == "bf16" and halved):
        reasons.append(f"kernels of {_names(said)} say what they take in float32")
    if precision == "tf32" and (measured := by_source.get("measured")) and len(measured) == len(chosen):
        reasons.append(f"no kernel of {_names(measured)} rounds what it multiplies to tf32 here")
    if precision == "bf16" and not halved:
        reasons.insert(0, "no kernel chosen stores anything in 16 bits")
    if not reasons:
        return ()
    part = " except for what is stored in 16 bits" if halved else ""
    return (f"precision {precision} falls back to f32{part}: {'; '.join(reasons)}",)


def _names(plugins: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(plugins))
