"""What all of the plugin's layer types have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor


class DetectionLayer:
    """The common base: a type declares how many blobs it reads and makes, and reads
    Caffe's own message."""

    name: str
    bottoms: int
    tops: Collection[int] = (1,)
    parameters: Mapping[str, Any] = MappingProxyType({})

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations and return its single top. Raise ValueError for a
        wrong number of blobs."""
        self.check_counts(layer)
        return [self.expand(layer, bottoms, graph)]

    def check_counts(self, layer: Layer) -> None:
        """Raise ValueError if the layer has a number of blobs that the type does not support."""
        check_count("bottom", layer.bottoms, (self.bottoms,))
        check_count("top", layer.tops, self.tops)

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        """Return the top of a layer with the right number of blobs."""
        raise NotImplementedError


def check_count(what: str, names: Sequence[str], wanted: Collection[int]) -> None:
    """Raise ValueError if the number of bottoms or tops is not one of those that are wanted."""
    if len(names) not in wanted:
        numbers = " or ".join(map(str, wanted))
        many = f"{len(names)} {what}{'s' * (len(names) != 1)}"
        raise ValueError(f"has {many} ({', '.join(names) or 'none'}), not {numbers}")


def rows_found(planned: np.ndarray) -> np.ndarray:
    """Return the rows that were found, given a top 1 x 1 x N x 7 as planned (a view)."""
    return planned[:, :, : int(np.count_nonzero(planned[0, 0, :, 0] >= 0))]


def decimal(value: float) -> float:
    """Return the shortest decimal that a 32-bit field stores as ``value``: 0.7, not 0.699999988."""
    return float(str(np.float32(value)))


def place(layer: Layer) -> str:
    """Return the layer's location, name and type, for errors that a step raises."""
    return f"{layer.location}: layer {layer.name!r} ({layer.type})"
