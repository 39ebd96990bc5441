"""ONNX's operators, in files by family, behind one layer type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_onnx.call import Call, Operator
from demitasse_onnx.operators import arithmetic, function, normalization, product, shape, window

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        operator.name: operator
        for family in (arithmetic, function, normalization, product, shape, window)
        for operator in family.OPERATORS
    }
)
"""Every operator that is read, by name."""


class OnnxNode:
    """A node of an ONNX model. One type for all operators, so that those who misspell a type of another
    format are not shown ONNX's."""

    name = "onnx"
    parameters: Mapping[str, Any] = MappingProxyType({})

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the operations of the node's operator. Raises ValueError that names it."""
        call = layer.parameters
        if not isinstance(call, Call):
            raise ValueError("a node of ONNX stands in an .onnx file only")
        try:
            return OPERATORS[call.operator].build(layer, bottoms, graph)
        except ValueError as error:
            raise ValueError(f"operator {call.operator}: {error}") from error
