"""The gradients of a graph: operations by the vocabulary's rules, from the last layer to the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from demitasse import Node, Parameter, PlanError, Tensor, by_operand
from demitasse.operations import Gradient, Operation
from demitasse_training.shares import weighted

if TYPE_CHECKING:
    from demitasse_training.graph import NetGraph

Operands = dict[str, Any]
"""Tensors by an operation's names for them: one tensor, a list for a variadic operand, or None for one
that is left out. ``d`` and an output's name is the gradient of that output."""


class Differentiation:
    """The state while a graph's objective is differentiated. ``active`` are the tensors whose gradients
    are wanted; ``arriving`` are the gradients that have come to each tensor so far, one from each
    reader."""

    def __init__(self, graph: NetGraph, passes: int, every_blob: bool) -> None:
        self._graph, self._passes, self._every_blob = graph, passes, every_blob
        self._forward = list(graph.nodes)
        fed = (t for feed in graph.feeds for t in feed.tensors.values())
        self._fed = [*graph.inputs.values(), *fed]
        self.active = {p.tensor for p in graph.parameters if p.trainable}
        self.arriving: dict[Tensor, list[Tensor]] = {}
        self._named = {blob for made in graph.history.values() for _, blob in made}

    def append(self) -> dict[Tensor, Tensor]:
        """Append the operations to the graph; return the gradients of tensors. Raises PlanError if an
        operation without gradients would keep something from being learned."""
        check_learning(self._graph.objective, self._forward, self.active)
        self._activate()
        self._begin_at_the_objective()
        for node in reversed(self._forward):
            if self._every_blob:
                self._begin_at_blobs(node)
            if any(t in self.arriving for t in node.outputs):
                for rule in node.operation.gradients:
                    self._apply(rule, node)
        for tensor in self._fed:
            if len(self.arriving.get(tensor, ())) > 1:
                self._total(tensor, self._forward[0])
        made = {t: node for node in self._graph.nodes for t in node.outputs if t is not None}
        for parameter in self._graph.parameters:
            if parameter.trainable and (parts := self.arriving.get(parameter.tensor)):
                adding = self._passes > 1 or len(parts) > 1 or self._graph.retains_all
                self._collect(parameter, parts, adding, made)
        return {tensor: parts[0] for tensor, parts in self.arriving.items()}

    def _activate(self) -> None:
        """Mark the tensors whose gradients are wanted: what is learned, inputs on request, and all that
        depends on these."""
        if self._every_blob:
            self.active.update(t for t in self._fed if t.dtype == self._graph.dtype)
        for node in self._forward:
            if node.operation.gradients and any(t in self.active for t in node.inputs):
                self.active.update(t for t in node.outputs if t is not None)

    def _begin_at_the_objective(self) -> None:
        """Create the first gradients: the weights of the objective's terms."""
        graph = self._graph
        graph.objective = weighted(graph, graph.share)
        for tensor, weight in graph.objective:
            name, taken = f"d{tensor.name}", {constant.name for constant in graph.constants}
            while name in taken or name in graph.blobs:  # constants are filled by name
                name += "'"
            seed = self._constant(name, tensor, graph.dtype, weight / self._passes)
            self.arriving.setdefault(tensor, []).append(seed)

    def _begin_at_blobs(self, node: Node) -> None:
        """Give each blob that a node makes, and that no gradient reaches, zeros for the user to
        overwrite."""
        for made in node.outputs:
            if made in self._named and made in self.active and made not in self.arriving:
                self.arriving[made] = [self._constant(f"d{made.name}", made, self._graph.dtype, 0.0)]

    def _constant(self, name: str, like: Tensor, dtype: str, value: float) -> Tensor:
        made = Tensor(name, like.shape, dtype, "constant")
        self._graph.constants[made] = value
        return made

    def _total(self, tensor: Tensor, near: Node) -> None:
        """Sum the gradients that several readers give a tensor. If all blobs are retained, the sum is
        separate: it stands between the readers and the layer that made the tensor."""
        graph, parts = self._graph, self.arriving[tensor]
        (total,) = self._emit("sum", parts, {}, near)
        total.name = parts[0].name
        for position, part in enumerate(parts):
            part.name += f".{position}"
        self.arriving[tensor] = [total]
        if graph.retains_all:
            made = (n for each in graph.history.values() for n, t in each if t is tensor)
            if (number := next(made, None)) is not None:
                graph.nodes[-1].layer = f"{tensor.name}_split"
                graph.splits[f"{tensor.name}_split"] = number

    def _apply(self, rule: Gradient, node: Node) -> None:
        """Emit the operation by which a rule computes gradients of a node's operands, if any is
        wanted."""
        operands: Operands = dict(by_operand(node))
        of = [t for name in rule.of for t in listed(operands[name])]
        if not any(t in self.active for t in of):
            return
        self._add_arriving(operands, node)
        backward = self._graph.vocabulary[rule.operation]
        for name, operand in zip(rule.operands, backward.inputs, strict=False):
            if operands[name] is None and not operand.optional:
                return  # no gradient arrives at the output that this rule reads: it is 0
        inputs = [t for name in rule.operands for t in listed(operands[name])]
        if self._is_plain_sum(node, of):
            for tensor in of:  # each term's gradient is that of the sum, and needs no copy
                if tensor in self.active:
                    self.arriving.setdefault(tensor, []).extend(filter(None, inputs))
            return
        given = self._attributes(backward, node, of)
        outputs = self._emit(rule.operation, inputs, given, node)
        made = self._graph.nodes[-1].outputs
        made[len(of) :] = [None] * (len(outputs) - len(of))  # further optional results
        for position, (tensor, found) in enumerate(zip(of, outputs, strict=False)):
            if tensor is None:
                made[position] = None
            else:
                found.name = f"d{tensor.name}"
                if tensor in self.active:
                    self.arriving.setdefault(tensor, []).append(found)

    def _add_arriving(self, operands: Operands, node: Node) -> None:
        """Add the gradients of a node's outputs to its operands, each as one tensor."""
        for tensor in node.outputs:
            if tensor is not None and len(self.arriving.get(tensor, ())) > 1:
                self._total(tensor, node)
        for operand in node.operation.outputs:
            made = operands[operand.name]
            if operand.variadic:
                operands[f"d{operand.name}"] = [self._arriving_or_zeros(t) for t in made]
            else:
                operands[f"d{operand.name}"] = self.arriving[made][0] if made in self.arriving else None

    def _arriving_or_zeros(self, tensor: Tensor) -> Tensor:
        if tensor not in self.arriving:
            zeros = self._constant(f"d{tensor.name}", tensor, tensor.dtype, 0.0)
            self.arriving[tensor] = [zeros]
        return self.arriving[tensor][0]

    def _is_plain_sum(self, node: Node, of: Sequence[Tensor | None]) -> bool:
        """Whether the terms of a sum can share the sum's gradient: not if it is scaled, nor if each
        needs an array of its own."""
        learned = any(t is not None and t.kind == "parameter" for t in of)
        apart = node.attributes.get("coefficients") or self._graph.retains_all or learned
        return node.operation.name == "sum" and not apart

    def _attributes(
        self, backward: Operation, node: Node, of: Sequence[Tensor | None]
    ) -> dict[str, Any]:
        """The attributes that the gradient's operation shares with the node, and those that ask about
        operands."""
        shapes = tuple(t.shape if t is not None else None for t in of)
        asked = {
            "shape": shapes[0],
            "shapes": shapes,
            "wanted": tuple(t in self.active for t in of),
        }
        given = {**node.attributes, **asked}
        return {name: value for name, value in given.items() if name in backward.attributes}

    def _emit(
        self, operation: str, inputs: Sequence[Tensor | None], attributes: dict[str, Any], of: Node
    ) -> list[Tensor]:
        """Append an operation that belongs to the layer of a forward node."""
        node = self._graph.node(operation, inputs, attributes, "backward")
        node.layer = of.layer
        self._graph.nodes.append(node)
        return [tensor for tensor in node.outputs if tensor is not None]

    def _behind(self, node: Node | None) -> int:
        """The index in the graph after a node; after None, the graph's end."""
        nodes = self._graph.nodes
        return len(nodes) if node is None else 1 + next(i for i, n in enumerate(nodes) if n is node)

    def _collect(
        self, parameter: Parameter, parts: list[Tensor], in_place: bool, made: dict[Tensor, Node]
    ) -> None:
        """Have a parameter's gradient computed where it is to lie, or summed there."""
        graph = self._graph
        slot = Tensor(f"d{parameter.tensor.name}", parameter.tensor.shape, graph.dtype, "gradient")
        slot.kind = "parameter_gradient"
        parameter.gradient = slot
        for part in parts:
            node = made.get(part)
            if node is None or node.operation.view:  # its memory belongs to another tensor
                copy = graph.node("sum", [part], {}, "backward")
                copy.layer, (part,) = parameter.owners[0][0], filter(None, copy.outputs)
                graph.nodes.insert(self._behind(node), copy)
                node = copy
            if in_place:
                total = graph.node("accumulate", [slot, part], {}, "backward")
                total.layer = node.layer
                graph.nodes.insert(self._behind(node), total)
            else:
                node.outputs[node.outputs.index(part)] = slot
                made.pop(part, None)


def check_learning(
    objective: Sequence[tuple[Tensor, float]], forward: Sequence[Node], learned: set[Tensor]
) -> None:
    """Raise PlanError for an operation without gradients between what is ``learned`` and the objective:
    everything before it would silently stay unchanged."""
    # Each tensor that depends on what is learned, and the first operation that cuts its gradient.
    cuts = dict.fromkeys(learned, "")
    for node in forward:
        if node.operation.name == "stop_gradient":  # intended
            continue
        operands, rules = by_operand(node), node.operation.gradients
        own = "" if rules else f"layer {node.layer!r}: operation {node.operation.name!r}"
        read = [t for rule in rules for name in rule.of for t in listed(operands[name])]
        found = [cuts[t] for t in (read if rules else node.inputs) if t in cuts]
        if found:
            cuts.update(dict.fromkeys(filter(None, node.outputs), max(found) or own))
    for tensor, _ in objective:
        if told := cuts.get(tensor):
            raise PlanError(
                f"{told} has no gradients, but the loss {tensor.name!r} is computed from it: layers "
                f"before it would not learn; give the operation gradient rules, or freeze those "
                f"layers (a learning rate of 0, in Caffe's files lr_mult: 0)"
            )


def listed(operand: Tensor | list[Tensor] | None) -> list[Tensor | None]:
    """Return an operand's tensors as a list, whether it is one tensor or variadic."""
    return [*operand] if isinstance(operand, list) else [operand]
