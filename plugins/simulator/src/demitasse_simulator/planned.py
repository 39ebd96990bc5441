"""The program ``planned``: a runtime whose trainers and nets show what would run elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demitasse import DataError, DataSource, DataSpec, GradientSync, Group, Runtime
from demitasse_simulator.described import Described
from demitasse_simulator.planning import Drawing, Samples


class Planned(Drawing):
    """The plans and notes of a runtime whose machine is elsewhere: kernels and synchronisations are the
    composed plugins', memory is counted and not taken, and there are no streams. Nothing runs."""

    def __init__(self, real: Runtime) -> None:
        super().__init__(real, real.machine, {}, {})

    def _sync(self, plugin: str) -> Callable[[Any, Group], GradientSync]:
        return _unbound

    def open_source(self, spec: DataSpec) -> DataSource:
        """The samples, or what the layer makes of any, where these are not here."""
        try:
            return Runtime.open_source(self, spec)
        except DataError:
            if declared := spec.options.get("declared"):
                return Samples(declared)
            raise


def _unbound(module: Any, group: Group) -> GradientSync:
    """A plugin's own synchronisation, with its notes. One that only predicts is bound to nothing."""
    made: GradientSync = module.gradient_sync(group=group)
    if isinstance(made, Described) or hasattr(made, "stages"):
        made.bind = _nothing  # type: ignore[method-assign]  # who trains is refused there, and nobody does
    return made


def _nothing(memory: Any) -> None:
    """There is nothing to bind."""
