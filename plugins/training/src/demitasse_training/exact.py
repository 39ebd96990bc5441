"""Operations on labels and positions, which a bf16 plan must not store in 16 bits: above 256, bfloat16
cannot represent every integer, so a label would become another class."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse import Graph, Node, Tensor
from demitasse.operations import Operand
from demitasse_training.own_shapes import users_of


def mark_exact(graph: Graph) -> None:
    """Mark operations that move, add or scale numbers on their way to an operand without a gradient,
    such as labels, indices, and the reference of box offsets, or to a user's code, which may treat them
    as labels. The marking ends where learned numbers come in, because what is read of those is a
    measurement; it starts again with an index computed from them (the position of a maximum), which is
    an integer. Also marked is what samples alone determine on its way to a non-scalar output, where
    someone may look at a label."""
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
    """For each output, whether no gradient arrives at it or at the tensor of which it is a view, or
    whether a user's code makes it."""
    operation, own = node.operation, bool(users_of(node))
    arrives = {name for rule in operation.gradients for name in rule.operands}
    names = _named(operation.outputs, node.outputs)
    return [own or (not operation.view and f"d{name}" not in arrives) for name in names]


def _named(operands: Sequence[Operand], tensors: Sequence[Tensor | None]) -> list[str]:
    """The operand name of each tensor; the last operand may have several tensors."""
    names = [operand.name for operand in operands]
    return [*names, *names[-1:] * (len(tensors) - len(names))][: len(tensors)]
