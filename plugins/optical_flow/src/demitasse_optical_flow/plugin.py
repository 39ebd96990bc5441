"""The hooks that the plugin serves."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Cost volumes, warping by a flow, and losses that leave out what is not known."""
    from demitasse_optical_flow.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Those of FlowNet's fork and of PWC-Net."""
    from demitasse_optical_flow.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """NumPy for the plugin's own words."""
    from demitasse_optical_flow.kernels import candidates

    return candidates(request)
