"""The program ``planned``: a runtime whose trainers and nets show what would run on another machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demitasse import DataError, DataSource, DataSpec, GradientSync, Group, Runtime
from demitasse_simulator.described import Described
from demitasse_simulator.planning import Drawing, Samples


class Planned(Drawing):
    """A runtime for the plans and notes of another machine. Kernels and synchronisations are those of
    the composed plugins; memory is counted but not allocated, and there are no streams. Nothing
    runs."""

    def __init__(self, real: Runtime) -> None:
        super().__init__(real, real.machine, {}, {})

    def _sync(self, plugin: str) -> Callable[[Any, Group], GradientSync]:
        return _unbound

    def open_source(self, spec: DataSpec) -> DataSource:
        """Open the samples; if they are not here, return the shapes that the layer declares."""
        try:
            return Runtime.open_source(self, spec)
        except DataError:
            if declared := spec.options.get("declared"):
                return Samples(declared)
            raise


def _unbound(module: Any, group: Group) -> GradientSync:
    """Return a plugin's own synchronisation, with its notes. If it only predicts, its ``bind`` does
    nothing."""
    made: GradientSync = module.gradient_sync(group=group)
    if isinstance(made, Described) or hasattr(made, "stages"):
        made.bind = _nothing  # type: ignore[method-assign]  # it would reject training; nothing trains
    return made


def _nothing(memory: Any) -> None:
    """Do nothing: there is nothing to bind."""
