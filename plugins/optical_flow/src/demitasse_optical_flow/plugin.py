"""The hooks that the plugin serves."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, DataError, DataSource, DataSpec, LayerType, Request, hookimpl
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


@hookimpl
def data_source(spec: DataSpec) -> DataSource | None:
    """Image pairs and their flows that a text file lists; None for what is another plugin's. Raises
    DataError, with the specification's location in front, for files that are not as they should be."""
    from demitasse_optical_flow.pairs import Pairs, lists_flows

    if spec.kind not in (None, "flows", "lmdb", "leveldb") or not lists_flows(spec.source):
        return None
    try:
        return Pairs(spec)
    except DataError as error:
        where = f"{spec.location}: " * (spec.location is not None)
        raise DataError(f"{where}{error}") from error
