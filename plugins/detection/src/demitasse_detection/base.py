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
        sides = ("bottom", layer.bottoms, (self.bottoms,)), ("top", layer.tops, self.tops)
        for what, names, wanted in sides:
            if len(names) not in wanted:
                numbers = " or ".join(map(str, wanted))
                raise ValueError(
                    f"has {len(names)} {what}s ({', '.join(names) or 'none'}), not {numbers}"
                )

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        """The top of a layer with the right number of blobs."""
        raise NotImplementedError


def decimal(value: float) -> float:
    """The shortest number that a field of 32 bits holds so: 0.7, not 0.699999988."""
    return float(str(np.float32(value)))


def place(layer: Layer) -> str:
    """Where a layer stands and what it is, for errors of a step."""
    return f"{layer.location}: layer {layer.name!r} ({layer.type})"
