"""Statistics over the samples of all workers. A batch normalisation, or a mean over valid labels, needs
sums over the whole batch in the middle of a pass, where the workers that share the batch add theirs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import (
    Candidate,
    Kernels,
    Node,
    Phases,
    Place,
    Plan,
    Request,
    Tensor,
    Work,
    by_operand,
)
from demitasse.operations import (
    REQUIRED,
    Attributes,
    Shape,
    Shapes,
    count,
    define,
    per_element,
    same_as,
)
from demitasse_training.fusion import request_for
from demitasse_training.shares import share_of

if TYPE_CHECKING:
    from demitasse_training.graph import NetGraph

Add = Callable[[np.ndarray], np.ndarray]

ACROSS = "sum_across_workers"
DIVISOR = "divisor"
"""An output of a loss with the attribute ``normalization``: what its sum is divided by (at least 1) if
that is ``valid``. Otherwise it is the number of labels that are not ignored."""

_CLIP = {"least": -math.inf, "most": math.inf}
_ONE = "sum_across_workers.one"


def _moments(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    if len(shapes["x"]) < 2:
        raise ValueError(f"x {shapes['x']} has no channels: they are its second axis")
    return ((2 * shapes["x"][1] + 1,),)


def _joined(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    return ((sum(count(shape) for shape in shapes["mine"]),),)


def _settled(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    kept, moments = shapes["mean"], shapes["moments"]
    if moments != (2 * count(kept) + 1,) or shapes["variance"] != kept or shapes["factor"] != (1,):
        raise ValueError(f"mean {kept}, variance {shapes['variance']} do not fit moments {moments}")
    return (kept, kept, kept)


def _whole(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    x, channels = shapes["x"], shapes["average"]
    if channels != x[1:2] or shapes["sums"] != (2 * count(channels),):
        raise ValueError(f"average {channels} and sums {shapes['sums']} do not fit x {x}")
    return (shapes["dy"],)


OPERATIONS = (
    define(
        "batch_normalization",
        "channel_moments",
        "the sums of x and of x * x over each channel (axis 1), then a channel's number of elements",
        inputs="x",
        outputs="moments:float64",
        shapes=_moments,
        flops=per_element("x", 3),
    ),
    define(
        "batch_normalization",
        ACROSS,
        "the numbers of mine, one after the other, each summed over the workers of a run; outside of an "
        "iteration, and with one worker, mine itself",
        inputs="*mine",
        outputs="total:float64",
        shapes=_joined,
    ),
    define(
        "batch_normalization",
        "settle_moments",
        "average, spread (the variance) and inverse = (spread + epsilon)^-1/2 of moments; mean, "
        "variance and factor as in batch_norm",
        inputs="moments mean! variance! factor!",
        outputs="average:real spread:real inverse:real",
        shapes=_settled,
        flops=per_element("mean", 8),
        attributes={"keep": 0.999, "averaged": False, "epsilon": 1e-5},
    ),
    define(
        "batch_normalization",
        "batch_norm_whole_backward",
        "dx as in batch_norm_backward, of a batch whose dw and db are in sums, one after the other, and "
        "whose n ends moments; dy counts where the result, before a clip, is in least to most",
        inputs="dy x w? b? average inverse sums moments",
        outputs="dx",
        shapes=_whole,
        flops=per_element("dy", 8),
        attributes={"relu": False, **_CLIP},
        aliases=["dx = dy"],
    ),
    define(
        "loss",
        "count_labels",
        "how many labels, without their fractions, are not ignore_label",
        inputs="label",
        outputs="labels:float64",
        shapes=lambda shapes, attributes: ((1,),),
        flops=per_element("label"),
        attributes={"ignore_label": REQUIRED},
    ),
    define(
        "loss",
        "over_divisor",
        "y = x / (share * max(1, divisor))",
        inputs="x divisor",
        outputs="y",
        shapes=same_as("x"),
        attributes={"share": 1.0},
        aliases=["y = x"],
    ),
)
"""The operations that take the place of ``batch_norm``, of losses over valid labels, and of their
gradients."""


def over_all_workers(graph: NetGraph, kernels: Kernels, place: Place) -> dict[str, str]:
    """Let batch normalisations, and losses over the labels that are not ignored, take their statistics
    over the samples of all workers: each of these operations becomes several, with ``ACROSS`` between
    them. The graph must be differentiated. Results and gradients are then those of one worker with all
    samples, up to rounding.

    An operation stays as it is if no kernel computes one of those in its place. Returns these operations
    by layer. Source: Ioffe and Szegedy 2015, algorithm 1, with the sums over the mini-batch split."""
    lacking: dict[str, str] = {}
    replaced: dict[int, list[Node]] = {}
    made = _Made(graph)
    for node in [node for node in graph.nodes if node.phase == "forward"]:
        split = _splits(node)
        if split is None:
            continue
        backward = _gradient_of(graph, node)
        parts = split(made, node, backward)
        missing = next(
            (
                each.operation.name
                for part in parts.values()
                for each in part
                if each.operation.name != ACROSS and not kernels.find(request_for(each, place))[1]
            ),
            "",
        )
        if missing:
            lacking[node.layer] = missing
        else:
            replaced |= parts
    graph.nodes[:] = [new for node in graph.nodes for new in replaced.get(id(node), [node])]
    if any(made.one in node.inputs for node in graph.nodes):
        graph.constants[made.one] = np.ones(1)
    return lacking


def meetings(plan: Plan, passes: int) -> list[int]:
    """Return how many numbers workers add each time, in an iteration of so many passes, up to the last
    forward pass."""
    by_phase: dict[str, list[int]] = {"forward": [], "backward": []}
    for entry in plan.entries:
        if entry.operation == ACROSS:
            (total,) = entry.outputs
            by_phase[entry.phase].append(0 if total is None else count(total.spec.shape))
    forward, backward = by_phase["forward"], by_phase["backward"]
    return [*(forward + backward) * (passes - 1), *forward]


def own_statistics(graph: NetGraph) -> list[str]:
    """Return the layers with statistics over a worker's own samples, of those that could be over all."""
    forward = [node for node in graph.nodes if node.phase == "forward"]
    return list(dict.fromkeys(node.layer for node in forward if _splits(node) is not None))


class Exchange:
    """The kernel of ``ACROSS`` for one worker. ``add`` waits for other workers and returns the sum of
    all; that time counts as synchronisation in ``phases``, once they are known."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self.phases: Phases | None = None

    def offer(self, request: Request) -> Sequence[Candidate]:
        """Return the kernel, for requests of this operation."""
        return [Candidate("exchange", self._bind)] if request.operation.name == ACROSS else []

    def _bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        (total,) = outputs

        def work() -> None:
            mine = np.concatenate([np.ravel(np.asarray(x)) for x in inputs], dtype=np.float64)
            start = time.perf_counter()
            total[...] = self._add(mine)
            if self.phases is not None:
                self.phases.synchronise += time.perf_counter() - start

        return work


Split = Callable[["_Made", Node, Node | None], dict[int, list[Node]]]


def _splits(node: Node) -> Split | None:
    """Return how a node is split, if it takes statistics that cross workers."""
    if node.operation.name in ("batch_norm", "batch_norm_clip"):
        return _split_normalisation
    if node.attributes.get("normalization") != "valid":
        return None
    ignores = node.attributes.get("ignore_label") is not None and _label_of(node) is not None
    return _split_loss if ignores or DIVISOR in by_operand(node) else None


def _label_of(node: Node) -> Tensor | None:
    operands = by_operand(node)
    found: Tensor | None = operands.get("label", operands.get("target"))
    return found


def _gradient_of(graph: NetGraph, node: Node) -> Node | None:
    """Return the node that computes a node's gradients, if there is one: it reads what a rule names."""
    operands, arriving = by_operand(node), {f"d{each.name}" for each in node.operation.outputs}
    for rule in node.operation.gradients:
        read = [None if name in arriving else operands[name] for name in rule.operands]
        for other in graph.nodes:
            same = other.operation.name == rule.operation and other.layer == node.layer
            if same and all(mine in (None, its) for mine, its in zip(read, other.inputs, strict=True)):
                return other
    return None


class _Made:
    """Makes nodes of a graph that belong to the layer of another node."""

    def __init__(self, graph: NetGraph) -> None:
        self.graph = graph
        self.one = Tensor(_ONE, (1,), graph.dtype, "constant")

    def node(
        self, near: Node, name: str, operands: Sequence[Tensor | None], attributes: Mapping[str, Any]
    ) -> Node:
        """Return an operation in the layer and phase of ``near``, with those of the attributes that it
        has."""
        known = self.graph.vocabulary[name].attributes
        given = {key: value for key, value in attributes.items() if key in known}
        node = self.graph.node(name, operands, given, near.phase)
        node.layer, node.exact = near.layer, near.exact
        for operand, tensor in zip(node.operation.outputs, node.outputs, strict=True):
            assert tensor is not None
            tensor.name = f"{near.layer}.{operand.name}"
        return node

    def total(self, near: Node, mine: Sequence[Tensor | None]) -> Node:
        """Return the operation that adds up what workers have."""
        return self.node(near, ACROSS, mine, {})


def _split_normalisation(made: _Made, node: Node, backward: Node | None) -> dict[int, list[Node]]:
    (x, *kept, w, b), (y, average, inverse) = node.inputs, node.outputs
    own = made.node(node, "channel_moments", [x], {})
    moments = made.total(node, own.outputs)
    settle = made.node(node, "settle_moments", [*moments.outputs, *kept], node.attributes)
    _, spread, _ = settle.outputs
    settle.outputs = [average, spread, inverse]
    word = node.operation.name.replace("batch_norm", "batch_norm_inference")
    operands = [x, average, spread, made.one, w, b]
    normalise = made.node(node, word, operands, node.attributes)
    normalise.outputs = [y]
    parts = {id(node): [own, moments, settle, normalise]}
    if backward is not None and backward.outputs[0] is not None:
        parts[id(backward)] = _split_gradient(made, backward, moments.outputs)
    return parts


def _split_gradient(made: _Made, node: Node, moments: Sequence[Tensor | None]) -> list[Node]:
    """A worker's gradients of scale and shift are its own sums, as all gradients are added to those of
    others later. But the gradient of its samples depends on everybody's sums."""
    dx, *wanted = node.outputs
    again = made.node(node, node.operation.name, node.inputs, node.attributes).outputs[1:]
    sums = [new if old is None else old for old, new in zip(wanted, again, strict=True)]
    own = replace(node, outputs=[None, *sums])
    total = made.total(node, sums)
    operands = [*node.inputs, *total.outputs, *moments]
    last = made.node(node, "batch_norm_whole_backward", operands, node.attributes)
    last.outputs = [dx]
    return [own, total, last]


def _split_loss(made: _Made, node: Node, backward: Node | None) -> dict[int, list[Node]]:
    """The loss becomes a sum, divided by what counts in all workers' samples. That is the loss's own
    ``DIVISOR``, or the number of its labels that are not ignored."""
    first, *others = node.outputs
    again = made.node(node, node.operation.name, node.inputs, node.attributes).outputs[0]
    summed = {"normalization": "none"}
    loss = replace(node, outputs=[again, *others], attributes=node.attributes | summed)
    divisor: Tensor | None = by_operand(node).get(DIVISOR)
    counting = []
    if divisor is None:
        counting = [made.node(node, "count_labels", [_label_of(node)], node.attributes)]
        (divisor,) = counting[0].outputs
    labels = made.total(node, [divisor])
    assert first is not None
    share = {"share": share_of(made.graph, first)}
    mean = made.node(node, "over_divisor", [again, *labels.outputs], share)
    mean.outputs = [first]
    parts = {id(node): [*counting, loss, labels, mean]}
    if backward is not None:
        dloss, *rest = backward.inputs
        arriving = made.node(backward, "over_divisor", [dloss, *labels.outputs], share)
        inputs = [*arriving.outputs, *rest]
        known = {key: value for key, value in summed.items() if key in backward.attributes}
        gradient = replace(backward, inputs=inputs, attributes=backward.attributes | known)
        parts[id(backward)] = [arriving, gradient]
    return parts
