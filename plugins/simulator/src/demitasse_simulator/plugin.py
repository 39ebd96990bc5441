"""Hooks of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Candidate, GradientSync, Group, Request


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Offer, at places that are only described, a kernel for operations that no other plugin
    computes."""
    from demitasse_simulator.described import candidates

    return candidates(request)


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return a synchronisation that exists in simulations only."""
    from demitasse_simulator.described import Described

    return Described(group)


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """Offer ``simulate``, which predicts the time and memory of a solver's step, and ``planned``, a
    runtime that plans for the same machine on memory that is only counted."""

    def simulate(runtime: Any, solver: Any, **options: Any) -> Any:
        from demitasse_simulator.program import simulate as predict

        return predict(runtime, solver, **options)

    def planned(runtime: Any) -> Any:
        from demitasse_simulator.planned import Planned

        return Planned(runtime)

    return {"simulate": simulate, "planned": planned}


@hookimpl
def reproductions(paper: str) -> Any:
    """Return swCaffe's speedups on 1,024 nodes beside predictions."""
    from demitasse_simulator.scalability import speedups

    return speedups(paper)


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Offer ``simulate`` and ``reproduce``."""
    from demitasse_simulator.commands import reproduce, simulate

    return {"simulate": simulate, "reproduce": reproduce}
