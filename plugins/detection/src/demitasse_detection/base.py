"""What all of the plugin's layer types share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor


class DetectionLayer:
    """What the types share: how many blobs they take, and that they read Caffe's own message."""

    name: str
    bottoms: int
    tops: Collection[int] = (1,)
    parameters: Mapping[str, Any] = MappingProxyType({})

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations; its one top. Raises ValueError for another number of blobs."""
        self.check_counts(layer)
        return [self.expand(layer, bottoms, graph)]

    def check_counts(self, layer: Layer) -> None:
        """Raise ValueError for a number of blobs that the type does not have."""
        check_count("bottom", layer.bottoms, (self.bottoms,))
        check_count("top", layer.tops, self.tops)

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        """The top of a layer with the right number of blobs."""
        raise NotImplementedError


def check_count(what: str, names: Sequence[str], wanted: Collection[int]) -> None:
    """Raise ValueError for another number of bottoms or tops than one of those that are wanted."""
    if len(names) not in wanted:
        numbers = " or ".join(map(str, wanted))
        raise ValueError(f"has {len(names)} {what}s ({', '.join(names) or 'none'}), not {numbers}")


def rows_found(planned: np.ndarray) -> np.ndarray:
    """The rows of what was found, of a top 1 x 1 x N x 7 as it was planned (a view)."""
    return planned[:, :, : int(np.count_nonzero(planned[0, 0, :, 0] >= 0))]


def decimal(value: float) -> float:
    """The shortest number that a field of 32 bits holds so: 0.7, not 0.699999988."""
    return float(str(np.float32(value)))


def place(layer: Layer) -> str:
    """Where a layer stands and what it is, for errors of a step."""
    return f"{layer.location}: layer {layer.name!r} ({layer.type})"
