"""The hooks that this plugin implements."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, DataError, DataSource, DataSpec, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Return cost volumes, warping by a flow, and losses that ignore unknown places."""
    from demitasse_optical_flow.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Return the layer types of FlowNet's fork and of PWC-Net."""
    from demitasse_optical_flow.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return NumPy kernels for the plugin's own operations."""
    from demitasse_optical_flow.kernels import candidates

    return candidates(request)


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Return image pairs and their flows that a text file lists, or None for another plugin's source.
    Raise DataError, which begins with the location of the specification, for invalid files."""
    from demitasse_optical_flow.pairs import Pairs, lists_flows

    if spec.kind not in (None, "flows", "lmdb", "leveldb") or not lists_flows(spec.source):
        return None
    try:
        return Pairs(spec)
    except DataError as error:
        where = f"{spec.location}: " * (spec.location is not None)
        raise DataError(f"{where}{error}") from error
