"""A plugin for trying the kit: a layer, its operation and a kernel for each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import demitasse
from demitasse import Candidate, Request
from demitasse.operations import define, same_as

BASE = ["caffe", "datasets", "training", "reference"]
LAYER = 'layer { name: "m" type: "Mish" bottom: "x" top: "y" }'
BEHIND = f'layer {{ name: "r" type: "ReLU" bottom: "x" top: "w" }} {LAYER.replace("x", "w", 1)}'

FORWARD = define(
    "activation",
    "mish",
    "y = x * tanh(log(1 + exp(x)))",
    inputs="x",
    outputs="y",
    shapes=same_as("x"),
    gradients=["x = mish_backward(dy, x)"],
    aliases=["y = x"],
)
BACKWARD = define(
    "activation",
    "mish_backward",
    "dx = dy * (t + x * (1 - t^2) * sigmoid(x)), t = tanh(log(1 + exp(x)))",
    inputs="dy x",
    outputs="dx",
    shapes=same_as("dy"),
)


def forward(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Callable[[], None]:
    (x,), (y,) = inputs, outputs

    def work() -> None:
        y[...] = x * np.tanh(np.logaddexp(0, x))

    return work


def backward(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Callable[[], None]:
    (dy, x), (dx,) = inputs, outputs

    def work() -> None:
        t = np.tanh(np.logaddexp(0, x))
        dx[...] = dy * (t + x * (1 - t * t) / (1 + np.exp(-x)))

    return work


class MishLayer:
    name = "Mish"
    parameters: dict[str, Any] = {}

    def build(self, layer: Any, bottoms: Sequence[Any], graph: Any) -> list[Any]:
        return [graph.apply("mish", bottoms[0])]


ROLES = {"operations": {}, "layer_types": {"types": ["Mish"]}, "kernels": {"spaces": ["host"]}}


class Mish:
    """The plugin; ``more`` candidates are offered after the right one for an operation."""

    manifest: dict[str, Any] = {"name": "mish", "api": ">=0.1,<0.2", "roles": ROLES}

    def __init__(self, words: Sequence[Any] = (FORWARD, BACKWARD), **more: Candidate) -> None:
        self.words, self.more = words, more

    @demitasse.hookimpl
    def operations(self) -> Any:
        return self.words

    @demitasse.hookimpl
    def layer_types(self) -> Any:
        return (MishLayer(),)

    @demitasse.hookimpl
    def kernels(self, request: Request) -> list[Candidate]:
        name = request.operation.name
        right = {"mish": forward, "mish_backward": backward}
        offered = [Candidate("NumPy", right[name])] if name in right else []
        return offered + ([self.more[name]] if name in self.more else [])
