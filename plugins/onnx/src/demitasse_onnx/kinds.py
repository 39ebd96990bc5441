"""The kind of a blob's numbers. All are computed in floating point, but integers are divided without a
remainder, and may have been converted to integers by a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_onnx.constants import CASTS

if TYPE_CHECKING:
    import onnx  # not imported when the plugin is composed

REAL, WHOLE, CONDITION = "real", "whole", "condition"
_CONDITIONS = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor")
)
_WHOLE = frozenset(("ArgMax", "ArgMin", "NonZero", "QuantizeLinear", "Shape", "Size"))


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return the kind of an array's elements."""
    return REAL if dtype.kind not in "biu" else CONDITION if dtype.kind == "b" else WHOLE


def kind_of_type(number: int) -> str:
    """Return the kind of ONNX's type with a number; real if the type is not supported."""
    return kind_of(np.dtype(CASTS.get(number, np.float32)))


def kind_made(node: onnx.NodeProto, kinds: Sequence[str], attributes: Mapping[str, Any]) -> str:
    """Return the kind of what a node makes from operands of some kinds: usually that of
    its first operand."""
    operator, place = node.op_type, 0
    if operator in _CONDITIONS:
        return CONDITION
    if operator in _WHOLE:
        return WHOLE
    if operator == "Cast" and isinstance(attributes.get("to"), int):
        return kind_of_type(attributes["to"])
    if operator in ("ConstantOfShape", "DequantizeLinear"):
        value = attributes.get("value")
        return kind_of(value.dtype) if isinstance(value, np.ndarray) else REAL
    if operator in ("CastLike", "Where"):
        place = 1
    return kinds[place] if place < len(kinds) else REAL
