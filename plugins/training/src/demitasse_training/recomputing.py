"""Large activations that are cheap to compute are recomputed for the backward pass instead of kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from demitasse import Graph, Kernels, Node, Place, Request, Tensor, TensorSpec, shapes_by_operand
from demitasse.operations import VOCABULARY

LARGE, CHEAP = 1 / 20, 1 / 200
"""Limits for each recomputed activation. It must lower the peak memory of activations and their
gradients by at least the first fraction. It may cost at most the second fraction of the step's
arithmetic and, if kernels estimate their times, four times that fraction of the step's time. For
VGG-16's first convolution, with 8 images, the arena shrinks by a fifth for 0.2% of the arithmetic, which
takes 1.3% of the time. On an accelerator arithmetic is cheap, and the time is that of moving bytes: 2.8%
of all bytes for this convolution, and 8% for AlexNet's first normalisation, which is 0.2% of its
arithmetic."""

_PASSING = ("activation", "gradient")


def recompute(graph: Graph, kernels: Kernels, place: Place, streams: bool = False) -> None:
    """Drop large results of the forward pass that the backward pass reads, and recompute each before its
    first use there, from samples, parameters and what is kept anyway. The same operations compute them,
    so the numbers are the same if the tuner chooses the same kernels for both. Operations that read what
    is updated, and those that a plugin has added, run only once. ``streams`` says that an accelerator
    computes, so that the bytes moved count as time.

    The net must be differentiated, with no blobs retained. Source: Chen et al., Training Deep Nets with
    Sublinear Memory Cost (2016), for single tensors."""
    backward = next((i for i, node in enumerate(graph.nodes) if node.phase == "backward"), None)
    if backward is None:
        return
    most, pinned = _most(graph.nodes), {*graph.outputs.values(), *(t for t, _ in graph.objective)}
    made = [t for node in graph.nodes[:backward] for t in node.outputs if t and t not in pinned]
    for tensor in sorted(made, key=_nbytes, reverse=True):
        if _nbytes(tensor) < LARGE * most:
            break
        again, nodes = _made_again(graph, tensor)
        if again and _cheap(again, graph.nodes, kernels, place, streams):
            less = _most(nodes)
            if less <= (1 - LARGE) * most:
                graph.nodes[:], most = nodes, less


def _made_again(graph: Graph, tensor: Tensor) -> tuple[list[Node], list[Node]]:
    """Return the nodes that compute a tensor once more, and all of the graph's nodes with these inserted
    before its first reader in backward. Both are empty if backward does not read the tensor, or if some
    node cannot run twice."""
    maker = {t: node for node in graph.nodes for t in node.outputs if t is not None}
    late = [node for node in graph.nodes if node.phase == "backward"]
    read = {t for node in late for t in node.inputs}
    if tensor not in read:
        return [], []
    chain, wanted = set[int](), [tensor]
    changed = {
        t
        for node in graph.nodes
        for operand, t in zip(node.operation.inputs, node.inputs, strict=False)
        if operand.updated
    }
    while wanted:
        node = maker[wanted.pop()]
        if id(node) in chain:
            continue
        ours = VOCABULARY.get(node.operation.name) is node.operation
        if not ours or node.phase == "backward" or not changed.isdisjoint(node.inputs):
            return [], []
        chain.add(id(node))
        wanted += [t for t in node.inputs if t in maker and t not in read]
    order = [node for node in graph.nodes if id(node) in chain]
    twins: dict[Tensor | None, Tensor | None] = {
        t: replace(t, name=f"{t.name}.again") for node in order for t in node.outputs if t is not None
    }

    def twin(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [twins.get(t, t) for t in tensors]

    again = [
        replace(node, inputs=twin(node.inputs), outputs=twin(node.outputs), phase="backward")
        for node in order
    ]
    first = next(node for node in late if tensor in node.inputs)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is first:
            nodes += again
        reads = node.phase == "backward" and tensor in node.inputs
        nodes.append(replace(node, inputs=twin(node.inputs)) if reads else node)
    return again, nodes


def _cheap(
    again: Sequence[Node], nodes: Sequence[Node], kernels: Kernels, place: Place, streams: bool
) -> bool:
    """Whether the cost of computing ``again`` is small compared with that of all nodes."""
    if sum(map(_flops, again)) > CHEAP * sum(map(_flops, nodes)):
        return False
    some = [_seconds(node, kernels, place) for node in again if not node.operation.view]
    if None in some:
        return not streams or sum(map(_moved, again)) <= 4 * CHEAP * sum(map(_moved, nodes))
    known = (_seconds(node, kernels, place) for node in nodes if not node.operation.view)
    return sum(filter(None, some)) <= 4 * CHEAP * sum(filter(None, known))


def _most(nodes: Sequence[Node]) -> int:
    """The peak number of bytes of activations and their gradients."""
    root: dict[Tensor, Tensor] = {}
    born: dict[Tensor, int] = {}
    dies: dict[Tensor, int] = {}
    for i, node in enumerate(nodes):
        for tensor in (*node.inputs, *node.outputs):
            if tensor is not None:
                dies[tensor] = i
    for i, node in enumerate(nodes):
        given = {o.name: t for o, t in zip(node.operation.inputs, node.inputs, strict=False)}
        of = dict(node.operation.aliases)
        for operand, tensor in zip(node.operation.outputs, node.outputs, strict=False):
            if tensor is None or tensor.kind not in _PASSING:
                continue
            source = node.inputs[0] if node.operation.view else given.get(of.get(operand.name, ""))
            if source is not None and source.kind in _PASSING:
                source = root.get(source, source)
                same = source.shape == tensor.shape and dies[source] == i
                if source in born and (same or node.operation.view):
                    root[tensor] = source
                    dies[source] = max(dies[source], dies.get(tensor, i))
                    continue
            born[tensor] = i
    change = [0] * (len(nodes) + 1)
    for tensor, i in born.items():
        change[i] += _nbytes(tensor)
        change[dies.get(tensor, i) + 1] -= _nbytes(tensor)
    return max(int(total) for total in np.cumsum(change))


def _flops(node: Node) -> float:
    if node.operation.flops is not None:
        return node.operation.flops(shapes_by_operand(node), node.attributes)
    return float(sum(math.prod(tensor.shape) for tensor in node.outputs if tensor is not None))


def _moved(node: Node) -> int:
    """The bytes that a node reads and writes."""
    if node.operation.view:
        return 0
    return sum(_nbytes(tensor) for tensor in (*node.inputs, *node.outputs) if tensor is not None)


def _seconds(node: Node, kernels: Kernels, place: Place) -> float | None:
    """The time that the fastest kernel estimates for a node, or None."""
    inputs, outputs = (
        tuple(None if t is None else TensorSpec(t.shape, t.dtype) for t in tensors)
        for tensors in (node.inputs, node.outputs)
    )
    request = Request(node.operation, inputs, outputs, node.attributes, place)
    seconds = [candidate.seconds for candidate in kernels.find(request)[1]]
    return min(filter(None, seconds), default=None)


def _nbytes(tensor: Tensor) -> int:
    return TensorSpec(tensor.shape, tensor.dtype).nbytes
