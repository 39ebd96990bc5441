"""Normalisations that clip their result, as in ReLU6, computed by one operation in each direction."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from demitasse import Graph, Kernels, Node, Place, Tensor
from demitasse.operations import VOCABULARY, Operation
from demitasse_training.fusion import NORMALISATIONS, followers, request_for


def _words(name: str) -> tuple[Operation, Operation]:
    """Return the operations of a normalisation with a clip and of its gradient."""
    forward, backward = VOCABULARY[name], VOCABULARY[f"{name}_backward"]
    limits, gradient = {"least": 0.0, "most": 1.0}, f"{name}_clip_backward"
    return (
        replace(
            forward,
            name=f"{name}_clip",
            summary=f"as {name}, y at least least and at most most",
            attributes=MappingProxyType({**forward.attributes, **limits}),
            gradients=tuple(replace(rule, operation=gradient) for rule in forward.gradients),
            fuses=(),
        ),
        replace(
            backward,
            name=gradient,
            summary=f"as {name}_backward, of dy where least <= the unclipped y <= most, else of 0",
            attributes=MappingProxyType({**backward.attributes, **limits}),
        ),
    )


OPERATIONS = tuple(word for name in NORMALISATIONS for word in _words(name))
"""Each normalisation with a clip, and its gradient: in addition to what the normalisation has, their
attributes include the limits of the clip."""


def clip_normalisations(graph: Graph, kernels: Kernels, place: Place) -> None:
    """Before gradients are derived, let each normalisation clip its result if a clip is the only reader.
    The gradient can tell from the normalisation's input what was clipped. The blob in between is
    therefore neither written nor kept, and both passes go over memory one time less.

    This is done only if the plugin that computes the normalisation also computes the merged operation in
    both directions."""
    follower = followers(graph)
    for i, node in enumerate(graph.nodes):
        clip = follower(node) if node.operation.name in NORMALISATIONS else None
        if clip is None or clip.operation.name != "clip" or node.attributes["relu"]:
            continue
        one = _with_clip(graph, node, clip)
        if one is not None and _are_served(graph, node, one, kernels, place):
            graph.nodes[i] = one
            graph.nodes.remove(clip)


def _with_clip(graph: Graph, node: Node, clip: Node) -> Node | None:
    word = graph.vocabulary.get(f"{node.operation.name}_clip")
    if word is None:
        return None
    outputs = [clip.outputs[0], *node.outputs[1:]]
    return replace(node, operation=word, outputs=outputs, attributes=node.attributes | clip.attributes)


def _are_served(graph: Graph, node: Node, one: Node, kernels: Kernels, place: Place) -> bool:
    wanted = [node, one, _gradient(graph, one)]
    plugins = {kernels.find(request_for(each, place))[0] for each in wanted}
    return len(plugins) == 1 and "" not in plugins


def _gradient(graph: Graph, one: Node) -> Node:
    """Return the node that computes all gradients of the inputs that have some."""
    (rule,) = one.operation.gradients
    word, named = graph.vocabulary[rule.operation], dict[str, Tensor | None]()
    for operands, tensors in (
        (one.operation.inputs, one.inputs),
        (one.operation.outputs, one.outputs),
    ):
        named |= {operand.name: t for operand, t in zip(operands, tensors, strict=True)}
    named["dy"] = one.outputs[0]
    attributes = {key: one.attributes[key] for key in word.attributes}
    inputs, outputs = [named[name] for name in rule.operands], [named[name] for name in rule.of]
    return Node(word, inputs, outputs, attributes, one.layer, "backward")
