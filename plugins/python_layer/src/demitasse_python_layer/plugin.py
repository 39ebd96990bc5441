"""The hooks that the plugin serves."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """What a user's layer does forward and backward."""
    from demitasse_python_layer.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Python."""
    from demitasse_python_layer.layer import PythonLayer

    return (PythonLayer(),)


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Calls of the user's own methods."""
    from demitasse_python_layer.kernels import candidates

    return candidates(request)
