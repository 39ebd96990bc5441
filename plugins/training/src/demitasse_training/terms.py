"""The terms of the objective: the blobs that count in a net's loss, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from demitasse import Layer, LayerType, NetDefinition, Solver, Step

UNNAMED = "(automatic)"
"""The name of a loss whose layer names no top."""


def weights_of(layer: Layer, kind: LayerType) -> tuple[float, ...]:
    """The weights of a layer's tops in the objective."""
    return tuple(layer.loss_weights) or (getattr(kind, "loss_weight", 0.0),)


def loss_weights(net: NetDefinition, layer_types: Mapping[str, LayerType]) -> list[tuple[str, float]]:
    """Return each blob that counts in a net's loss, with its weight, in the objective's order."""
    return [
        (name, weight)
        for layer in net.layers
        for name, weight in zip(
            chain(layer.tops, repeat(UNNAMED)),
            weights_of(layer, layer_types[layer.type]),
            strict=False,
        )
        if weight
    ]


def nets_told(solver: Solver, layer_types: Mapping[str, LayerType]) -> dict[str, Any]:
    """What a log reports about a solver's nets, and how often."""
    return {
        "net": solver.train.name,
        "display": solver.display_interval,
        "iterations": solver.max_iterations,
        "loss_weights": [dict(loss_weights(net, layer_types)) for net in (solver.train, *solver.tests)],
    }


def values(
    steps: Sequence[Step], weights: Sequence[tuple[str, float]], workers: int
) -> dict[str, float]:
    """Return the value of each of these blobs in the last pass, scaled from the samples that the
    ``steps`` had to those of all workers. Empty before the first pass."""
    if not steps:
        return {}
    whole = workers / len(steps)
    parts = zip(*(step.terms() for step in steps), strict=True)
    return {
        name: whole * sum(part) / weight for (name, weight), part in zip(weights, parts, strict=True)
    }
