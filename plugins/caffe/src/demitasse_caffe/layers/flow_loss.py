"""L1Loss, which Caffe's forks have in two forms: NVIDIA's, for any numbers, and FlowNet's, for flows
that may be unknown at some places. Dosovitskiy et al. 2015, *FlowNet*; Mayer et al. 2016, *DispNet*."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import rearranged
from demitasse_caffe.layers.loss import Loss
from demitasse_caffe.layers.regions import alike
from demitasse_caffe.schema import number


class L1Loss(Loss):
    """The sum of |a - b| divided by the number of samples, as in NVIDIA's fork (DetectNet). With an
    ``l1_loss_param`` it is FlowNet's: the same sum or, with ``l2_per_location``, the sum of the lengths
    of a - b at each place. It is divided by the number of samples or, with
    ``normalize_by_num_entries``, by the number of known places; NaN marks an unknown one. With one
    bottom, that takes the place of a - b."""

    name = "L1Loss"
    bottoms = (1, 2)
    no_gradient = MappingProxyType({})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        if message.HasField("l1_loss_param"):
            return [_of_flows(message.l1_loss_param, bottoms, graph)]
        if len(bottoms) == 1:
            raise ValueError("has 1 bottom, not 2; it may with an l1_loss_param, as in FlowNet's fork")
        x = bottoms[0]
        d = graph.apply("sum", x, alike(bottoms[1], x, graph), coefficients=(1.0, -1.0))
        mean = {"coefficient": 1 / x.shape[0], "normalization": "full"}
        return [graph.apply("total", graph.apply("absolute", d), axis=0, **mean)]


def _of_flows(about: Any, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
    for field in ("epsilon", "plateau"):
        if getattr(about, field) < 0:
            raise ValueError(f"l1_loss_param {{ {field}: {getattr(about, field):g} }} is not 0 or more")
    long = bool(about.l2_per_location)
    a, b = (*bottoms, None)[:2]
    return rearranged(
        graph,
        "lpq_loss",
        *(a, b, graph.scalar("iteration")),
        p=(2.0 if long else 1.0,),
        q=(0.5 if long else 1.0,),
        q_epsilon=number(about.epsilon) if long else 0.0,
        prescale=long and bool(about.l2_prescale_by_channels),
        plateau=number(about.plateau),
        by_location=long,
        normalization="valid" if about.normalize_by_num_entries else "batch_size",
    )
