"""Of what kind the numbers of a blob are. All are computed as real numbers; but whole ones are divided
without a rest, and are whole already where a node makes them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_onnx.constants import CASTS

if TYPE_CHECKING:
    import onnx  # which a composition does not import

REAL, WHOLE, CONDITION = "real", "whole", "condition"
_CONDITIONS = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor")
)
_WHOLE = frozenset(("ArgMax", "ArgMin", "NonZero", "QuantizeLinear", "Shape", "Size"))


def kind_of(dtype: np.dtype[Any]) -> str:
    """The kind of an array's elements."""
    return REAL if dtype.kind not in "biu" else CONDITION if dtype.kind == "b" else WHOLE


def kind_of_type(number: int) -> str:
    """The kind of ONNX's type with a number; real where that is not read."""
    return kind_of(np.dtype(CASTS.get(number, np.float32)))


def kind_made(node: onnx.NodeProto, kinds: Sequence[str], attributes: Mapping[str, Any]) -> str:
    """The kind of what a node makes of operands of some kinds: that of its first one, mostly."""
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
