"""The axis of the samples in everything that a net computes, so that a model can accept any
number of samples."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse import Graph, Node, Tensor


def batch_axes(graph: Graph) -> dict[Tensor, int | None]:
    """Return, for each tensor that depends on an input, the axis along which the samples of the inputs'
    first axis lie; None if they lie along no single axis, or if it is unknown."""
    found: dict[Tensor, int | None] = {
        tensor: 0 if tensor.shape else None for tensor in graph.inputs.values()
    }
    for node in graph.nodes:
        axes = {found[tensor] for tensor in node.inputs if tensor in found}
        if not axes:
            continue
        (axis,) = axes if len(axes) == 1 else (None,)
        made = None if axis is None else _after(node, axis, found)
        found.update((tensor, made) for tensor in node.outputs if tensor is not None)
    return found


def _after(node: Node, axis: int, known: dict[Tensor, int | None]) -> int | None:
    """Return the axis of the samples in a node's results."""
    word, attributes = node.operation.name, node.attributes
    x = next(tensor for tensor in node.inputs if tensor in known)
    y = node.outputs[0]
    if x is None or y is None:
        return None
    if word == "permute":
        order: Sequence[int] = attributes["order"]
        return order.index(axis)
    if word == "reshape":
        return 0 if axis == 0 and x.shape[:1] == y.shape[:1] else None
    if word == "scale":  # a factor along axes of x has the samples where x has them
        w = node.inputs[1:]
        return axis if all(attributes["axis"] == 0 for each in w if each in known) else None
    if word == "inner_product" and any(tensor in known for tensor in node.inputs[1:]):
        return None
    if word in _ACROSS and attributes["axis"] <= axis:
        return None
    if word in _ALONG and attributes["axis"] == axis:
        return None
    return axis if len(y.shape) > axis and y.shape[axis] == x.shape[axis] else None


_ACROSS = ("absolute_total", "centre", "inner_product", "square_total", "total")
"""Operations that combine all axes from ``axis`` on."""

_ALONG = ("concat", "largest", "resample", "softmax", "tile")
"""Operations that combine places along ``axis``, or move them."""
