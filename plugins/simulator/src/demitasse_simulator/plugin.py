"""Hooks of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Candidate, GradientSync, Group, Request


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """At places that are only described, a kernel for what no other plugin computes there."""
    from demitasse_simulator.described import candidates

    return candidates(request)


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Siblings that agree in simulations only."""
    from demitasse_simulator.described import Described

    return Described(group)


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """``simulate``: the predicted time and memory of a solver's step. ``planned``: a runtime that plans
    for the same machine, on memory that is only counted."""

    def simulate(runtime: Any, solver: Any, **options: Any) -> Any:
        from demitasse_simulator.program import simulate as predict

        return predict(runtime, solver, **options)

    def planned(runtime: Any) -> Any:
        from demitasse_simulator.planned import Planned

        return Planned(runtime)

    return {"simulate": simulate, "planned": planned}


@hookimpl
def reproductions(paper: str) -> Any:
    """The speedups of swCaffe on 1,024 nodes."""
    from demitasse_simulator.scalability import speedups

    return speedups(paper)


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``simulate`` and ``reproduce``."""
    from demitasse_simulator.commands import reproduce, simulate

    return {"simulate": simulate, "reproduce": reproduce}
