"""The axis along which the samples of a batch lie, which workers divide. It is the first axis of a data
layer's tops, and another one after layers that exchange axes, as those before a recurrent net do."""

from __future__ import annotations

from math import prod
from typing import Any

from demitasse import GraphBuilder, Node, Tensor

_KEEPING = frozenset(
    [
        *("absolute", "clip", "concat", "dropout", "elu", "exponential", "gather", "inner_product"),
        *("leaky_relu", "logarithm", "lstm", "parametric_relu", "power", "product", "relu"),
        *("reverse_gradient", "rnn"),
        *("scale", "sigmoid", "slice", "softmax", "softplus", "stop_gradient", "sum", "swish", "tanh"),
    ]
)
"""Operations that leave samples where they are, unless they work along that axis themselves."""


def check_samples(x: Tensor, axis: int, what: str, graph: GraphBuilder) -> None:
    """Raise ValueError if several workers divide a batch, but not along ``axis`` of x, where ``what``
    expects samples or streams."""
    if graph.workers > 1 and sample_axis(x, graph) != axis:
        raise ValueError(
            f"{what} lie along axis {axis} of {x!r}, but {graph.workers} workers divide a batch along "
            f"the first axis of the input, which is another one (it may be time); train it with one "
            f"worker"
        )


def sample_axis(tensor: Tensor, graph: Any) -> int | None:
    """Return the axis of a tensor along which its samples lie, or None if it has none or it
    cannot be traced."""
    feeds = getattr(graph, "feeds", ())
    axes: dict[Tensor, int] = {t: 0 for feed in feeds for t in feed.tensors.values()}
    for node in graph.nodes if axes else ():
        for x in node.inputs:
            if x in axes:
                for y in node.outputs:
                    if (
                        y is not None
                        and y not in axes
                        and (axis := _moved(node, x, y, axes[x])) is not None
                    ):
                        axes[y] = axis
    return axes.get(tensor)


def share_of(batch: int, graph: GraphBuilder) -> int:
    """Return how many of a file's ``batch`` samples belong to this worker."""
    feeds = getattr(graph, "feeds", ())
    return next((feed.count for feed in feeds if feed.batch == batch), batch)


def all_samples(own: int, graph: GraphBuilder) -> int:
    """Return how many samples a batch has over all workers, given that this worker
    has ``own`` samples."""
    feeds = getattr(graph, "feeds", ())
    return own * feeds[0].batch // feeds[0].count if graph.workers > 1 and feeds else own


def _moved(node: Node, x: Tensor, y: Tensor, axis: int) -> int | None:
    """Return the axis of the samples in an operation's output y, given their axis in its input x."""
    name, given = node.operation.name, node.attributes
    if name == "permute":
        return list(given["order"]).index(axis)
    if name == "reshape":
        outer = prod(x.shape[:axis])
        fits = (
            k
            for k in sorted(range(len(y.shape)), key=lambda k: k != axis)
            if prod(y.shape[:k]) == outer and y.shape[k] == x.shape[axis]
        )
        return next(fits, None)
    kept = y.shape[axis : axis + 1] == x.shape[axis : axis + 1]
    if axis and (name not in _KEEPING or given.get("axis", axis + 1) <= axis):
        return None
    return axis if kept else None
