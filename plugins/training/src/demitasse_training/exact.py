"""Which operations make labels and places, which a bf16 plan is not to store in 16 bits: of numbers
above 256 that keeps some, and a label becomes another class."""

from __future__ import annotations

from demitasse import Graph, Node, Tensor
from demitasse.operations import Operation
from demitasse_training.own_shapes import users_of

_LABEL = "label"
"""What words without gradients, such as accuracy, call what they read as whole numbers."""


def mark_exact(graph: Graph) -> None:
    """Mark what is moved, added or scaled on its way to an operand through which no gradient passes, as
    labels, indices and regions are, or to a user's code, which may take it for one. It ends where
    learned numbers come in: what is read of those is a measure, and an index made of them (the place of
    a maximum) is whole from there on."""
    plain = {*graph.inputs.values(), *graph.constants, *graph.scalars.values()}
    plain.update(tensor for feed in graph.feeds for tensor in feed.tensors.values())
    for node in graph.nodes:
        made = zip(_outputs(node), node.outputs, strict=True)
        of_plain = plain.issuperset(filter(None, node.inputs))
        plain.update(t for whole, t in made if t is not None and (whole or of_plain))
    wanted = set[Tensor | None]()
    for node in reversed(graph.nodes):
        of_plain = plain.issuperset(filter(None, node.inputs))
        is_wanted = not wanted.isdisjoint(filter(None, node.outputs))
        node.exact |= is_wanted and (of_plain or not node.operation.gradients)
        if (is_wanted and of_plain) or users_of(node):
            wanted.update(node.inputs)
        else:
            read = zip(node.operation.inputs, node.inputs, strict=False)
            wanted.update(t for operand, t in read if _is_exact(node.operation, operand.name))


def _outputs(node: Node) -> list[bool]:
    """Of each output whether no gradient arrives at it, nor at what it is a view of, or it is what a
    user's code makes."""
    operation = node.operation
    arrives = {name for rule in operation.gradients for name in rule.operands}
    kinds = [*operation.outputs, *operation.outputs[-1:] * len(node.outputs)][: len(node.outputs)]
    own = bool(users_of(node))
    return [own or (not operation.view and f"d{kind.name}" not in arrives) for kind in kinds]


def _is_exact(operation: Operation, name: str) -> bool:
    if not operation.gradients:
        return name == _LABEL
    return all(name not in rule.of for rule in operation.gradients)
