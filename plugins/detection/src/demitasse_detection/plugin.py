"""The hooks that the plugin serves."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """What is found in images, the loss of it, and how good it is."""
    from demitasse_detection.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Those of SSD, R-FCN, Faster R-CNN and YOLO."""
    from demitasse_detection.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """NumPy for the plugin's own words."""
    from demitasse_detection.kernels import candidates

    return candidates(request)
