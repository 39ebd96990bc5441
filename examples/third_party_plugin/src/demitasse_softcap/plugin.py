"""SoftCap: an operation, a layer type that emits it, and a kernel that computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from demitasse import Candidate, GraphBuilder, Layer, LayerType, Request, Tensor, Work, hookimpl
from demitasse.operations import Operation, define, same_as

SOFTCAP = define(
    "activation",
    "softcap",
    "y = cap * tanh(x / cap)",
    inputs="x",
    outputs="y",
    shapes=same_as("x"),
    attributes={"cap": 30.0},
    gradients=["x = softcap_backward(dy, y)"],
    aliases=["y = x"],
)
SOFTCAP_BACKWARD = define(
    "activation",
    "softcap_backward",
    "dx = dy * (1 - (y / cap)^2)",
    inputs="dy y",
    outputs="dx",
    shapes=same_as("dy"),
    attributes={"cap": 30.0},
    aliases=["dx = dy"],
)


class SoftCap:
    """``soft_cap_param { cap: 30 }``: bounds a blob smoothly to (-cap, cap)."""

    name = "SoftCap"
    parameters = {"cap": 30.0}

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Return one top of the bottom's shape. Raises ValueError for a cap that is not positive."""
        cap = layer.parameters["cap"]
        if cap <= 0:
            raise ValueError(f"cap {cap} should be positive")
        return [graph.apply("softcap", bottoms[0], cap=cap)]


@hookimpl
def operations() -> Iterable[Operation]:
    return (SOFTCAP, SOFTCAP_BACKWARD)


@hookimpl
def layer_types() -> Iterable[LayerType]:
    return (SoftCap(),)


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    if request.operation.name not in ("softcap", "softcap_backward"):
        return []
    cap = request.attributes["cap"]

    def forward(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        (x,), (y,) = inputs, outputs

        def work() -> None:
            np.divide(x, cap, out=y)
            np.tanh(y, out=y)
            np.multiply(y, cap, out=y)

        return work

    def backward(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        (dy, y), (dx,) = inputs, outputs
        slope = workspace.view(y.dtype).reshape(y.shape)

        def work() -> None:
            np.divide(y, cap, out=slope)
            np.multiply(slope, slope, out=slope)
            np.subtract(1, slope, out=slope)
            np.multiply(dy, slope, out=dx)

        return work

    if request.operation.name == "softcap":
        return [Candidate("NumPy", forward)]
    scratch = request.inputs[0].plain.nbytes if request.inputs[0] is not None else 0
    return [Candidate("NumPy", backward, workspace=scratch)]
