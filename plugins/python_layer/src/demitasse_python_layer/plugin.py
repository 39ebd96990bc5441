"""The hooks that this plugin implements."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Return the operations for a user's layer, forward and backward."""
    from demitasse_python_layer.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Return the layer type Python."""
    from demitasse_python_layer.layer import PythonLayer

    return (PythonLayer(),)


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return candidates that call the user's own methods."""
    from demitasse_python_layer.kernels import candidates

    return candidates(request)
