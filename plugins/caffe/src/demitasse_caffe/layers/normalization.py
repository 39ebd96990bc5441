"""Local response normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer
from demitasse_caffe.schema import number


class LRN(CaffeLayer):
    """x over a power of the sum of squares around it: across channels, or in a square of one
    channel (where Caffe has no k: it is 1). Krizhevsky et al. 2012, section 3.3."""

    name = "LRN"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        lrn = message.lrn_param
        within = lrn.norm_region == lrn.WITHIN_CHANNEL
        if lrn.local_size % 2 == 0:
            raise ValueError(f"local_size {lrn.local_size} has no middle: it must be odd")
        if len(bottoms[0].shape) != 4:
            raise ValueError(f"normalises samples x channels x rows x columns, not {bottoms[0]!r}")
        normalised, _ = graph.apply(
            "lrn_within_channel" if within else "lrn_across_channels",
            bottoms[0],
            size=lrn.local_size,
            alpha=number(lrn.alpha),
            beta=number(lrn.beta),
            k=1.0 if within else number(lrn.k),
        )
        return [normalised]
