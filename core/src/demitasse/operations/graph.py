"""The graph that a plan is made from: operations on tensors, for one worker and one phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demitasse.operations import Operation, Shape

if TYPE_CHECKING:
    import numpy as np

    from demitasse.operations.kernel import Request
    from demitasse_random import RandomStream

SCALARS = {"iteration": "uint64", "sample": "uint64", "rate": "float64"}
"""One-element tensors that change with the step; ``sample`` is the number, in the global batch, of the
worker's first sample."""

Filler = Callable[[Shape, "RandomStream"], "np.ndarray"]
"""Returns a parameter's first values, in logical order, for a shape and its own random numbers."""


@dataclass(eq=False)
class Tensor:
    """A value that one operation makes and others read. ``kind`` is activation, gradient (of an
    activation), parameter, parameter_gradient, input, constant or scalar."""

    name: str
    shape: Shape
    dtype: str
    kind: str

    def __repr__(self) -> str:
        return f"{self.name} ({'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype})"


@dataclass(eq=False)
class Node:
    """One operation on tensors; absent operands are None. ``phase`` is forward or backward. An ``exact``
    node makes labels or indices, which are not stored in fewer bits at any precision."""

    operation: Operation
    inputs: list[Tensor | None]
    outputs: list[Tensor | None]
    attributes: dict[str, Any]
    layer: str
    phase: str
    exact: bool = False


@dataclass(eq=False)
class Parameter:
    """A learned array (only kept if not ``trainable``): how it is filled, its multipliers of the
    learning rate and the decay, and its ``owners``: (layer, index) pairs, several if shared."""

    tensor: Tensor
    owners: list[tuple[str, int]]
    filler: Filler
    rate: float
    decay: float
    trainable: bool
    gradient: Tensor | None = None


@dataclass(eq=False)
class Feed:
    """Samples that a ``source`` (a DataSource) delivers into tensors, by field name. Of each batch, this
    worker has ``count`` samples, starting at ``offset``."""

    layer: str
    source: Any
    tensors: dict[str, Tensor]
    batch: int
    offset: int
    count: int


@dataclass(eq=False)
class Graph:
    """A net's operations in order. ``blobs`` are tensors by the user's names, ``outputs`` those that no
    layer reads; ``objective`` has the loss's terms and weights; ``dtype`` is the real type."""

    vocabulary: Mapping[str, Operation]
    phase: str
    dtype: str
    nodes: list[Node] = field(default_factory=list)
    blobs: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    feeds: list[Feed] = field(default_factory=list)
    constants: dict[Tensor, Any] = field(default_factory=dict)
    objective: list[tuple[Tensor, float]] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, Tensor] = field(
        default_factory=lambda: {name: Tensor(name, (1,), SCALARS[name], "scalar") for name in SCALARS}
    )


def shapes_by_operand(node: Node | Request) -> dict[str, Any]:
    """Return the shapes of a node's or a request's tensors as the vocabulary's rules take them."""
    return {
        name: [t.shape for t in value] if isinstance(value, list) else value and value.shape
        for name, value in by_operand(node).items()
    }


def by_operand(node: Node | Request) -> dict[str, Any]:
    """Return the tensors of a node or a request by operand name; a variadic operand's are a list."""
    operation, result = node.operation, dict[str, Any]()
    for operands, tensors in ((operation.inputs, node.inputs), (operation.outputs, node.outputs)):
        for position, operand in enumerate(operands):
            if operand.variadic:
                result[operand.name] = list(tensors[position:])
            elif position < len(tensors):
                result[operand.name] = tensors[position]
    return result
