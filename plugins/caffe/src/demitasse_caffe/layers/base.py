"""What all of Caffe's layer types share: counts of blobs, learned parameters, axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.fillers import filler
from demitasse_caffe.schema import number

Shape = tuple[int, ...]
Counts = tuple[int, int | None]
"""At least, and at most (None: any number)."""


class CaffeLayer:
    """A layer type of Caffe's.

    A type says its name and how many blobs it takes and makes, and ``expand`` emits its operations.
    A ValueError gains file, line and layer where the graph is built.
    """

    name: str
    bottoms: Counts = (1, 1)
    tops: Counts = (1, 1)
    loss_weight: float = 0.0
    parameters: Mapping[str, Any] = MappingProxyType({})
    """Empty: a Caffe type reads Caffe's own message."""

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations; a tensor for each top."""
        _check_count("bottom", layer.bottoms, self.bottoms)
        _check_count("top", layer.tops, self.tops)
        self._check_propagation(layer, bottoms, graph)
        return self.expand(layer, layer.parameters, bottoms, graph)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        """Emit the operations of a layer whose LayerParameter is ``message``."""
        raise NotImplementedError

    def _check_propagation(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> None:
        """A gradient cannot be stopped; a false that stops none (to samples, to labels) is fine."""
        for position, passes in enumerate(layer.parameters.propagate_down):
            stops = position < len(bottoms) and bottoms[position].kind == "activation"
            labels = self.loss_weight and position > 0
            if stops and not passes and not labels and graph.phase == "train":
                raise ValueError(
                    f"propagate_down: false is not supported (bottom {layer.bottoms[position]!r}); "
                    f"freeze the layers below it with lr_mult: 0"
                )


def learned(graph: GraphBuilder, message: Any, index: int, shape: Shape, fill: Any) -> Tensor:
    """Parameter ``index`` of a layer, filled as the FillerParameter ``fill`` says, with the
    multipliers and the shared name of the layer's param number ``index``."""
    rate, decay, shared = 1.0, 1.0, None
    if index < len(message.param):
        spec = message.param[index]
        rate, decay, shared = number(spec.lr_mult), number(spec.decay_mult), spec.name or None
    return graph.parameter(shape, filler(fill), rate=rate, decay=decay, shared=shared)


def in_training(message: Any, graph: GraphBuilder) -> bool:
    """Whether the layer trains: its own phase where it has one, else the net's."""
    return bool(message.phase == 0) if message.HasField("phase") else graph.phase == "train"


def canonical(axis: int, tensor: Tensor) -> int:
    """An axis counted from the front. Raises ValueError when the tensor has no such axis."""
    axes = len(tensor.shape)
    if not -axes <= axis < axes:
        raise ValueError(f"axis {axis} is not one of the {axes} axes of {tensor!r}")
    return axis % axes


def _check_count(what: str, names: Sequence[str], counts: Counts) -> None:
    least, most = counts
    if len(names) < least or (most is not None and len(names) > most):
        if most is None:
            wanted = f"{least} or more"
        else:
            wanted = f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"has {len(names)} {what}s ({', '.join(names) or 'none'}), not {wanted}")
