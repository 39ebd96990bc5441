"""Lowering: a graph's operations become kernels. Operations are joined where one kernel does two, and
transforms are inserted where neighbouring kernels disagree on a layout."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from demitasse.errors import ShapeError
from demitasse.operations.graph import Graph, Node, Tensor
from demitasse.operations.kernel import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations.selection import Kernels
from demitasse.plan import Plan, Slot


class Chosen(NamedTuple):
    """A node whose tensors are in the layouts of the kernel that was chosen for it."""

    node: Node
    plugin: str
    candidate: Candidate
    reason: str

    @property
    def tensors(self) -> list[Tensor]:
        """The node's outputs and inputs, without absent ones."""
        return [t for t in (*self.node.outputs, *self.node.inputs) if t is not None]


class Lowering:
    """The result is ``chosen``, in order. ``layouts`` has the layouts that are not plain. ``root`` maps
    a tensor to the one in whose memory it lies (as a view, or as a twin in an equivalent layout), and
    ``gradients`` the gradient of a parameter to the parameter. Tensors in ``pinned`` are read after
    the step, so nothing else may use their memory."""

    def __init__(
        self,
        graph: Graph,
        kernels: Kernels,
        place: Place,
        slots: Sequence[Slot],
        like: Plan | None,
        retain_all: bool,
        precision: str,
        fixed: bool,
    ) -> None:
        self.graph, self.kernels, self.place = graph, kernels, place
        self.retain_all, self.fixed = retain_all, fixed
        self.precision = "f32" if retain_all and precision == "bf16" else precision
        self.chosen = list[Chosen]()
        self.layouts, self.root = dict[Tensor, Layout](), dict[Tensor, Tensor]()
        self.objective = {tensor for tensor, _ in graph.objective}
        self.pinned = {*graph.outputs.values(), *self.objective}
        self.gradients = {p.gradient: p for p in graph.parameters if p.gradient is not None}
        self._reordered = dict[tuple[Tensor, Layout], Tensor]()
        self._read_from(slots)
        if like is not None:
            # Siblings exchange flat memory, so parameters lie like the sibling's, even if slower.
            layouts = {slot.owners[0]: slot.spec.layout for slot in like.slots}
            self.layouts |= {p.tensor: layouts[p.owners[0]] for p in graph.parameters}
        for node in self._fused(self._needed()):
            if node.operation.view:
                self._view(node)
            else:
                self._choose(node)

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return the tensor as kernels see it."""
        return TensorSpec(tensor.shape, tensor.dtype, self._layout(tensor))

    def find(self, tensor: Tensor) -> Tensor:
        """Return the tensor in whose memory this one lies."""
        return self.root.get(tensor, tensor)

    def _read_from(self, slots: Sequence[Slot]) -> None:
        """If another plan's parameters are read, lay parameters out as in that plan's ``slots``."""
        given = {owner: slot for slot in slots for owner in slot.owners}
        for parameter in self.graph.parameters if given else ():
            (layer, number), shape = parameter.owners[0], parameter.tensor.shape
            slot = given.get((layer, number))
            if slot is None or slot.spec.shape != shape:
                phase = self.graph.phase
                ours = f"parameter {number} of layer {layer!r} has shape {shape} in phase {phase}"
                theirs = f"shape {slot.spec.shape}" if slot else "no such parameter"
                raise ShapeError(f"{ours}; the net that it shares parameters with has {theirs}")
            self.layouts[parameter.tensor] = slot.spec.layout

    def _needed(self) -> list[Node]:
        """Return the nodes whose results are read, without optional outputs that nothing reads."""
        needed, alive = self.pinned | set(self.gradients), list[Node]()
        for node in reversed(self.graph.nodes):
            updates = any(operand.updated for operand in node.operation.inputs)
            if updates or self.retain_all or any(t in needed for t in node.outputs):
                kept = node.outputs if self.retain_all and node.phase == "backward" else []
                needed.update(t for t in (*node.inputs, *kept) if t is not None)
                for i, operand in enumerate(node.operation.outputs):
                    if operand.optional and node.outputs[i] not in needed:
                        node.outputs[i] = None
                alive.append(node)
        return alive[::-1]

    def _fused(self, nodes: list[Node]) -> list[Node]:
        """Join each node with the only reader of its result if one plugin computes both at once. The
        joined node takes the place of the first, so all else that it reads must exist by then."""
        if self.retain_all:
            return nodes
        fused = dict(enumerate(nodes))
        made, readers = dict[Tensor | None, int](), defaultdict[Tensor | None, list[int]](list)
        for i, node in enumerate(nodes):
            made |= dict.fromkeys(node.outputs, i)
            for tensor in node.inputs:
                readers[tensor].append(i)
        for i, node in reversed(list(enumerate(nodes))):
            result = node.outputs[0] if node.operation.fuses else None
            if result is None or result in self.pinned or len(readers[result]) != 1:
                continue
            position = readers[result][0]
            reader = fused.get(position)
            if reader is None or reader.phase != node.phase:
                continue
            exist = all(made.get(t, -1) < i for t in reader.inputs if t is not result)
            if not exist or (both := _joined(node, reader)) is None:
                continue
            plugin, _ = self.kernels.find(self._request(both))
            if plugin and plugin == self.kernels.find(self._request(node))[0]:
                fused[i] = both
                del fused[position]
        return list(fused.values())

    def _view(self, node: Node) -> None:
        (source,), (target,) = filter(None, node.inputs), filter(None, node.outputs)
        if source.kind == "parameter":  # if viewed in another shape, it must be in the plain layout
            self.layouts.setdefault(source, PLAIN)
        self.root[target] = self.find(self._in_layout(source, PLAIN, node))

    def _choose(self, node: Node) -> None:
        """Choose a node's kernel, and transform its inputs and outputs where layouts disagree."""
        plugin, candidate, reason = self.kernels.choose(self._request(node), node.layer)
        made = replace(node, inputs=[*node.inputs], outputs=[*node.outputs])
        for i, tensor in enumerate(node.inputs):
            if tensor is not None:
                layout = candidate.input_layouts[i] if candidate.input_layouts else PLAIN
                if tensor.kind == "parameter":  # it takes its first reader's layout, but stays float32
                    own = replace(layout, stored="", name=layout.name.partition(" ")[0])
                    self.layouts.setdefault(tensor, PLAIN if self.retain_all or own == PLAIN else own)
                made.inputs[i] = self._in_layout(tensor, layout, node)
        self.chosen.append(Chosen(made, plugin, candidate, reason))
        for operand, tensor, twin in zip(node.operation.inputs, node.inputs, made.inputs, strict=False):
            if operand.updated and tensor and twin and self.find(twin) is not self.find(tensor):
                self._transform(twin, tensor, node)
        for i, tensor in enumerate(node.outputs):
            if tensor is not None:
                layout = candidate.output_layouts[i] if candidate.output_layouts else PLAIN
                made.outputs[i] = self._made_in(tensor, layout, node)

    def _made_in(self, tensor: Tensor, layout: Layout, node: Node) -> Tensor:
        """Return what a kernel that makes ``layout`` writes for ``tensor``: it, or a twin of it."""
        if not (self.retain_all or tensor in self.objective or tensor in self.gradients):
            self.layouts[tensor] = layout
        if self._layout(tensor) == layout:
            return tensor
        twin = self._twin(tensor, layout)
        if tensor in self.gradients and self._lie_alike(tensor, twin):
            self.root[twin], self.gradients[twin] = tensor, self.gradients[tensor]
        else:
            self._transform(twin, tensor, node)
        return twin

    def _request(self, node: Node) -> Request:
        sides = node.inputs, node.outputs
        inputs, outputs = (tuple(self.spec(t) if t else None for t in side) for side in sides)
        precision = "f32" if node.exact and self.precision == "bf16" else self.precision
        about = node.attributes, self.place, precision, self.fixed
        return Request(node.operation, inputs, outputs, *about)

    def _layout(self, tensor: Tensor) -> Layout:
        if tensor not in self.layouts and tensor in self.gradients:
            tensor = self.gradients[tensor].tensor  # a parameter's gradient lies as the parameter does
        return self.layouts.get(tensor, PLAIN)

    def _in_layout(self, tensor: Tensor, layout: Layout, near: Node) -> Tensor:
        """Return the tensor, or a twin in this layout that a transform before ``near`` makes once."""
        if self._layout(tensor) == layout:
            return tensor
        if (tensor, layout) not in self._reordered:
            self._reordered[tensor, layout] = twin = self._twin(tensor, layout)
            if self._lie_alike(tensor, twin):
                self.root[twin] = self.find(tensor)
            else:
                self._transform(tensor, twin, near)
        return self._reordered[tensor, layout]

    def _lie_alike(self, tensor: Tensor, twin: Tensor) -> bool:
        return self._layout(tensor).places(tensor.shape) == self._layout(twin).places(tensor.shape)

    def _twin(self, tensor: Tensor, layout: Layout) -> Tensor:
        twin = Tensor(f"{tensor.name}.{layout.name}", tensor.shape, tensor.dtype, "activation")
        self.layouts[twin] = layout
        return twin

    def _transform(self, source: Tensor, target: Tensor, near: Node) -> None:
        reorder = self.graph.vocabulary["reorder"]
        node = Node(reorder, [source], [target], {}, near.layer, near.phase)
        plugin, candidate, _ = self.kernels.choose(self._request(node), node.layer)
        reason = f"{self.spec(source).layout.name} to {self.spec(target).layout.name}"
        self.chosen.append(Chosen(node, plugin, candidate, reason))


def _joined(first: Node, then: Node) -> Node | None:
    """Return two nodes joined into one operation, or None. ``first`` names operations that may follow
    it with default attributes (``fuses``); any function of one element may follow too."""
    result, operation = first.outputs[0], then.operation
    named = operation.name in first.operation.fuses and then.attributes == operation.attributes
    named = named and (operation.inputs[0].variadic or then.inputs[0] is result)
    function = operation.function and not then.attributes.keys() & first.attributes
    if not named and not function:
        return None
    others = [tensor for tensor in then.inputs if tensor is not result]
    operands = first.operation.inputs + operation.inputs[-1:] * bool(others)
    name = f"{first.operation.name}_{operation.name}"
    return replace(
        first,
        operation=replace(first.operation, name=name, inputs=operands),
        attributes={**first.attributes, **(then.attributes if function else {})},
        inputs=[*first.inputs, *others],
        outputs=[*then.outputs, *first.outputs[1:]],
    )
