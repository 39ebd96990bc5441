"""ONNX's operators, in files by family, as a single layer type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from demitasse import GraphBuilder, Layer, ShapeError, Tensor
from demitasse_onnx.call import Branch, Call, Made, Operator, Value
from demitasse_onnx.constants import MADE, made_of
from demitasse_onnx.operators import (
    arithmetic,
    condition,
    einsum,
    function,
    indexing,
    normalization,
    pool,
    product,
    quantized,
    recurrent,
    reduction,
    resampling,
    rounding,
    shape,
    window,
)

_FAMILIES = (
    arithmetic,
    condition,
    einsum,
    function,
    indexing,
    normalization,
    pool,
    product,
    quantized,
    recurrent,
    reduction,
    resampling,
    rounding,
    shape,
    window,
)

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {operator.name: operator for family in _FAMILIES for operator in family.OPERATORS}
)
"""All supported operators, by name."""


class OnnxNode:
    """A node of an ONNX model. All operators share one layer type, so that ONNX's operators are not
    suggested to users who misspell a type of another format."""

    name = "onnx"
    parameters: Mapping[str, Any] = MappingProxyType({})

    def __init__(self) -> None:
        # Constants that nodes made from constants and shapes, for the nodes that read them.
        self._known: WeakKeyDictionary[Tensor, np.ndarray] = WeakKeyDictionary()

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the operations of the node's operator. Raise ValueError with the operator's name."""
        call = layer.parameters
        if not isinstance(call, Call):
            raise ValueError("a node of ONNX can only be in an .onnx file")
        values = [
            self._known.get(bottoms[operand], bottoms[operand]) if isinstance(operand, int) else operand
            for operand in call.operands
        ]
        try:
            if call.operator == "If":
                return self._chosen(layer, values, bottoms, graph)
            made = self._made(layer, values, graph)
        except ShapeError as error:
            raise ShapeError(f"{error}{call.hint}") from error
        except ValueError as error:
            raise ValueError(f"operator {call.operator}: {error}{call.hint}") from error
        return [
            each if isinstance(each, Tensor) else self._constant(layer, number, each, graph)
            for number, each in enumerate(made)
        ]

    def _chosen(
        self, layer: Layer, values: Sequence[Value], bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        """Emit the branch of an If that its condition chooses."""
        condition = values[0] if values else None
        if not isinstance(condition, np.ndarray) or condition.size != 1:
            raise ValueError(
                "its condition is computed from what the net is given; only one that constants and "
                "shapes decide is supported (the override value.NAME makes an input a constant)"
            )
        name = "then_branch" if condition.item() else "else_branch"
        branch = layer.parameters.attributes.get(name)
        if not isinstance(branch, Branch):
            raise ValueError(f"has no {name}")
        blobs = dict(zip(layer.bottoms, bottoms, strict=True))
        for each in branch.layers:
            made = self.build(each, [blobs[bottom] for bottom in each.bottoms], graph)
            blobs.update(zip(each.tops, made, strict=False))
        return [blobs[output] for output in branch.outputs]

    def _made(self, layer: Layer, values: Sequence[Value], graph: GraphBuilder) -> Sequence[Made]:
        call: Call = layer.parameters
        arrays = [value for value in values if not isinstance(value, Tensor)]
        if call.operator in MADE and len(arrays) == len(values):
            return made_of(call.operator, arrays, call.attributes, len(layer.tops))
        if call.operator not in OPERATORS:
            raise ValueError("is supported for constants only, not for numbers that the net computes")
        return OPERATORS[call.operator].build(layer, values, graph)

    def _constant(self, layer: Layer, number: int, array: np.ndarray, graph: GraphBuilder) -> Tensor:
        name = layer.tops[number] if number < len(layer.tops) else f"{layer.name}.{number}"
        tensor = graph.constant(name, array)
        self._known[tensor] = array
        return tensor
