"""The hooks that this plugin implements."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Candidate, LayerType, Request, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Return the operations for detections in images, their losses and their evaluation."""
    from demitasse_detection.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Return the layer types of SSD, R-FCN, Faster R-CNN and YOLO."""
    from demitasse_detection.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return NumPy kernels for the plugin's own operations."""
    from demitasse_detection.kernels import candidates

    return candidates(request)
