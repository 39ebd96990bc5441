"""Which operations make labels and places, which a bf16 plan is not to store in 16 bits: of numbers
above 256 that keeps some, and a label becomes another class."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse import Graph, Node, Tensor
from demitasse.operations import Operand
from demitasse_training.own_shapes import users_of


def mark_exact(graph: Graph) -> None:
    """Mark what is moved, added or scaled on its way to an operand through which no gradient passes, as
    labels, indices and the boxes that others are told from are, or to a user's code, which may take it
    for one. It ends where learned numbers come in: what is read of those is a measure, and an index made
    of them (the place of a maximum) is whole from there on. What is made of samples alone on its way to
    an output of more than a number, where a label may be looked at, is marked as well."""
    plain = {*graph.inputs.values(), *graph.constants, *graph.scalars.values()}
    plain.update(tensor for feed in graph.feeds for tensor in feed.tensors.values())
    for node in graph.nodes:
        made = zip(_outputs(node), node.outputs, strict=True)
        of_plain = plain.issuperset(filter(None, node.inputs))
        plain.update(t for whole, t in made if t is not None and (whole or of_plain))
    wanted = set[Tensor | None]()
    shown = {tensor for tensor in graph.outputs.values() if tensor.shape}
    for node in reversed(graph.nodes):
        of_plain = plain.issuperset(filter(None, node.inputs))
        is_wanted = not wanted.isdisjoint(filter(None, node.outputs))
        node.exact |= is_wanted and (of_plain or not node.operation.gradients)
        if of_plain and not shown.isdisjoint(filter(None, node.outputs)):
            node.exact = True
            shown.update(filter(None, node.inputs))
        if (is_wanted and of_plain) or users_of(node):
            wanted.update(node.inputs)
        elif not node.operation.view:
            reached = {name for rule in node.operation.gradients for name in rule.of}
            read = zip(_named(node.operation.inputs, node.inputs), node.inputs, strict=True)
            wanted.update(tensor for name, tensor in read if name not in reached)


def _outputs(node: Node) -> list[bool]:
    """Of each output whether no gradient arrives at it, nor at what it is a view of, or it is what a
    user's code makes."""
    operation, own = node.operation, bool(users_of(node))
    arrives = {name for rule in operation.gradients for name in rule.operands}
    names = _named(operation.outputs, node.outputs)
    return [own or (not operation.view and f"d{name}" not in arrives) for name in names]


def _named(operands: Sequence[Operand], tensors: Sequence[Tensor | None]) -> list[str]:
    """What each tensor is to its operation; the last operand may be several."""
    names = [operand.name for operand in operands]
    return [*names, *names[-1:] * (len(tensors) - len(names))][: len(tensors)]
