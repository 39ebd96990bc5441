"""Folding normalisations and scales of channels into the weights of the layer before them."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse import Graph, Kernels, Node, Place, Tensor
from demitasse.operations import Attributes, Shape, Shapes, define, per_element
from demitasse_training.fusion import followers, request_for

_PRODUCTS = ("convolution", "inner_product")
_FOLLOWERS = ("batch_norm_inference", "scale")


def _shapes(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    w, axis = shapes["w"], attributes["axis"]
    along = [shapes[name] for name in ("b", "mean", "variance", "slope", "level")]
    if shapes["factor"] not in (None, (1,)) or any(
        each not in (None, w[axis : axis + 1]) for each in along
    ):
        raise ValueError(f"b, statistics, slope and level {along} do not fit w {w} along axis {axis}")
    return w, w[axis : axis + 1]


FOLD = define(
    "batch_normalization",
    "fold_normalization",
    "folded_w = w * s along axis, folded_b = (b - mean / factor) * s + level; "
    "s = slope * (variance / factor + epsilon)^-1/2, without statistics s = slope",
    inputs="w b? mean? variance? factor? slope? level?",
    outputs="folded_w folded_b",
    shapes=_shapes,
    flops=per_element("w"),
    attributes={"axis": 0, "epsilon": 1e-5},
)
"""The operation that computes the weights and biases of a product merged with what follows it."""


def fold_normalisations(graph: Graph, kernels: Kernels, place: Place) -> None:
    """Let each convolution or inner product also compute what follows it, by weights and biases derived
    from the parameters. What follows may be normalisations of its channels by stored statistics and
    scales of them by known numbers. A ReLU that was part of a normalisation becomes an operation of
    its own again, for the product to compute.

    The net must not compute gradients, and its parameters must not change, so that the new weights are
    computed once. An operation is folded only if nobody else reads the blob in between, and if a
    kernel for the folding exists."""
    if FOLD.name not in graph.vocabulary:
        return
    follower, known = followers(graph), _known(graph)
    for product in [node for node in graph.nodes if node.operation.name in _PRODUCTS]:
        while (after := follower(product)) is not None and _folds(product, after, known):
            fold = _fold(graph, product, after)
            if not kernels.find(request_for(fold, place, fixed=True))[1]:
                break
            graph.nodes.insert(graph.nodes.index(product), fold)
            w, b = fold.outputs
            known.update(filter(None, (w, b)))
            product.inputs[1:] = [w, b]
            position = graph.nodes.index(after)
            if after.attributes.get("relu"):
                relu = graph.vocabulary["relu"]
                source, about = product.outputs[0], (dict(relu.attributes), after.layer, after.phase)
                graph.nodes[position] = Node(relu, [source], after.outputs, *about)
                break
            product.outputs[0] = after.outputs[0]
            del graph.nodes[position]


def _known(graph: Graph) -> set[Tensor]:
    """Return the constants and the parameters that no operation changes."""
    changed = {
        tensor
        for node in graph.nodes
        for operand, tensor in zip(node.operation.inputs, node.inputs, strict=False)
        if operand.updated
    }
    return ({parameter.tensor for parameter in graph.parameters} | set(graph.constants)) - changed


def _folds(product: Node, after: Node, known: set[Tensor]) -> bool:
    """Whether what follows multiplies each of the product's channels by a number and adds another."""
    channels = 1 if product.operation.name == "convolution" else product.attributes["axis"]
    learned = [tensor for tensor in after.inputs[1:] if tensor is not None]
    return (
        after.operation.name in _FOLLOWERS
        and after.attributes.get("axis", 1) == channels
        and all(len(tensor.shape) == 1 for tensor in learned)
        and known.issuperset([*learned, *filter(None, product.inputs[1:])])
    )


def _fold(graph: Graph, product: Node, after: Node) -> Node:
    """Return the operation that computes the weights and biases of both."""
    w, b = (*product.inputs[1:], None)[:2]
    assert w is not None
    kept = after.inputs[1:4] if after.operation.name == "batch_norm_inference" else [None] * 3
    learned = (*after.inputs[-2:], None)[:2]
    attributes = {**FOLD.attributes, "axis": int(bool(product.attributes.get("transpose")))}
    if "epsilon" in after.attributes:
        attributes["epsilon"] = after.attributes["epsilon"]
    channels = w.shape[attributes["axis"]]
    made = [
        Tensor(f"{after.layer}.folded_w", w.shape, w.dtype, "activation"),
        Tensor(f"{after.layer}.folded_b", (channels,), w.dtype, "activation"),
    ]
    inputs = [w, b, *kept, *learned]
    return Node(graph.vocabulary[FOLD.name], inputs, list(made), attributes, after.layer, "forward")
