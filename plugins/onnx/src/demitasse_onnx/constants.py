"""Nodes that make constants of constants: worked out when a model is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from demitasse import ModelError

LARGEST_JOINED = 2**24
"""Elements of a constant that is joined of others: a few nodes that each double one would else fill any
memory. What is joined in real models are shapes."""

_CASTS = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
}


def folded(
    node: onnx.NodeProto,
    operands: Sequence[str | np.ndarray | None],
    attributes: Mapping[str, Any],
    where: str,
) -> np.ndarray | None:
    """The constant that a node makes; None for a node that is a layer. Raises ModelError."""
    if node.op_type == "Constant" and len(node.output) == 1:
        return _constant(attributes, where)
    if node.op_type not in _FOLDED or len(node.output) != 1 or not operands:
        return None
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if len(arrays) != len(operands):
        return None
    if node.op_type == "Concat" and sum(array.size for array in arrays) > LARGEST_JOINED:
        raise ModelError(f"{where}: makes a constant of more than {LARGEST_JOINED} elements")
    try:
        return np.asarray(_FOLDED[node.op_type](arrays, attributes))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise ModelError(f"{where}: cannot be worked out for its constants: {error}") from error


def _constant(attributes: Mapping[str, Any], where: str) -> np.ndarray:
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for name, value in attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in kinds and not isinstance(value, str | np.ndarray):
            return np.array(value, kinds[name])
    raise ModelError(
        f"{where}: has no value, or one of a kind that is not read ({', '.join(attributes)})"
    )


def _axes(arrays: Sequence[np.ndarray], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    listed = arrays[1].reshape(-1) if len(arrays) > 1 else attributes.get("axes", ())
    if len(listed) > 32:
        raise ValueError(f"{len(listed)} axes")
    return tuple(int(axis) for axis in listed)


def _reshape(arrays: Sequence[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
    shape = [int(extent) for extent in arrays[1].reshape(-1)]
    if len(shape) > 32:
        raise ValueError(f"{len(shape)} axes")
    return arrays[0].reshape([arrays[0].shape[i] if n == 0 else n for i, n in enumerate(shape)])


_FOLDED: dict[str, Any] = {
    "Identity": lambda arrays, attributes: arrays[0],
    "Transpose": lambda arrays, attributes: arrays[0].transpose(attributes.get("perm")),
    "Unsqueeze": lambda arrays, attributes: np.expand_dims(arrays[0], _axes(arrays, attributes)),
    "Squeeze": lambda arrays, attributes: arrays[0].squeeze(_axes(arrays, attributes) or None),
    "Cast": lambda arrays, attributes: arrays[0].astype(_CASTS[attributes["to"]]),
    "Concat": lambda arrays, attributes: np.concatenate(arrays, attributes["axis"]),
    "Reshape": _reshape,
}
