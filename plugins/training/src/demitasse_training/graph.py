"""Building a net's graph: layers expanded into operations, and their gradients derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse import (
    DataError,
    DataSource,
    DataSpec,
    Feed,
    Filler,
    Graph,
    Layer,
    LayerType,
    ModelError,
    NetDefinition,
    Node,
    Parameter,
    PlanError,
    ShapeError,
    Tensor,
    by_operand,
    discover,
    shapes_by_operand,
    unknown,
)
from demitasse.operations import REQUIRED, Gradient, Operation, Shape
from demitasse_training.fusion import fuse_normalisations


@dataclass(frozen=True)
class Share:
    """A worker's part of every batch: ``index`` of ``workers``. Under weak scaling a batch in a file
    is each worker's own."""

    index: int = 0
    workers: int = 1
    weak: bool = False

    def of(self, batch: int) -> tuple[int, int, int]:
        """(global batch, offset, count) for a file's ``batch``; the first shares take the rest."""
        total = batch * self.workers if self.weak else batch
        each, rest = divmod(total, self.workers)
        offset = self.index * each + min(self.index, rest)
        return total, offset, each + (self.index < rest)


def _who_has(layer_type: str) -> str:
    """The end of the sentence about an unknown layer type: an installed plugin that lists it."""
    for manifest in discover():
        if layer_type in manifest.roles.get("layer_types", {}).get("types", ()):
            name = manifest.name
            return (
                f"; plugin {name!r} is installed and has it, but is not composed: add it to the plugins "
                f"(+{name})"
            )
    return "; a plugin adds a type with the layer_types hook"


class NetGraph(Graph):
    """What layer types build on. ``phase`` is train or test, ``dtype`` the real numbers' type;
    ``retain="all"`` keeps every blob, so that no layers become one operation."""

    def __init__(
        self,
        vocabulary: Mapping[str, Operation],
        *,
        phase: str,
        dtype: str,
        open_source: Callable[[DataSpec], DataSource],
        share: Share | None = None,
        seed: int = 0,
        input_shapes: Mapping[str, Shape] | None = None,
        retain: str | None = None,
    ) -> None:
        super().__init__(vocabulary, phase, dtype)
        self.seed, self.stream = seed, 0
        self._open_source = open_source
        self._share = share or Share()
        self._input_shapes = input_shapes or {}
        self._retain_all = retain == "all"
        self._shared: dict[str, Parameter] = {}
        self._named: dict[str, int] = {}
        self._layer: Layer | None = None
        self._stage = "forward"

    # What a layer type calls while it builds.

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation and return its output tensor, or a tuple where it has several (optional
        ones included; what nobody reads is not computed).

        Raises ShapeError that names every operand and its shape when they do not fit.
        """
        if operation not in self.vocabulary:
            raise PlanError(unknown("operation", operation, self.vocabulary, self._where()))
        node = self._node(self.vocabulary[operation], list(inputs), attributes)
        self.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def parameter(
        self,
        shape: Shape,
        filler: Filler,
        *,
        rate: float = 1.0,
        decay: float = 1.0,
        trainable: bool = True,
        shared: str | None = None,
    ) -> Tensor:
        """The layer's next parameter. Layers that give the same ``shared`` name have it in common,
        with the first one's filler and multipliers. A rate of 0 freezes it: no gradient is made."""
        assert self._layer is not None
        layer = self._layer.name
        if self._named.setdefault(layer, self.stream) != self.stream:
            raise ModelError(
                f"{self._where()}: an earlier layer with parameters has the same name; parameters "
                f"are kept by layer name, so give each layer its own"
            )
        owner = (layer, sum(key[0] == layer for p in self.parameters for key in p.owners))
        if shared and (first := self._shared.get(shared)) is not None:
            if first.tensor.shape != shape:
                raise ShapeError(
                    f"{self._where()}: shares parameter {shared!r} with layer "
                    f"{first.owners[0][0]!r}, where its shape is {first.tensor.shape}; here {shape}"
                )
            first.owners.append(owner)
            return first.tensor
        tensor = Tensor(f"{layer}[{owner[1]}]", tuple(shape), self.dtype, "parameter")
        parameter = Parameter(tensor, [owner], filler, rate, decay, trainable and rate != 0)
        self.parameters.append(parameter)
        if shared:
            self._shared[shared] = parameter
        return tensor

    def input(self, name: str, shape: Shape) -> Tensor:
        """A tensor that the caller of the net fills; its declared shape may be overridden."""
        shape = tuple(self._input_shapes.get(name, shape))
        tensor = Tensor(name, shape, self.dtype, "input")
        self.inputs[name] = tensor
        return tensor

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """A tensor that is filled once, before the first step."""
        tensor = Tensor(name, tuple(value.shape), self.dtype, "constant")
        self.constants[tensor] = value
        return tensor

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Tensors that a data source fills each step with this worker's part of ``batch`` samples:
        one for each entry of ``fields``, a field's name to an element type (``raw`` as it is stored,
        ``real`` the plan's)."""
        assert self._layer is not None
        source = self._open_source(spec)
        total, offset, count = self._share.of(batch)
        if count < 1:
            raise DataError(
                f"{self._where()}: a batch of {batch} does not give each of {self._share.workers} "
                f"workers a sample; use a larger batch or fewer workers"
            )
        tensors = {}
        for name, dtype in fields.items():
            if name not in source.fields:
                raise DataError(unknown("field of the samples", name, source.fields, self._where()))
            stored = source.fields[name]
            kind = {"raw": stored.dtype, "real": self.dtype}.get(dtype, dtype)
            tensors[name] = Tensor(f"{self._layer.name}.{name}", (count, *stored.shape), kind, "input")
        self.feeds.append(Feed(self._layer.name, source, tensors, total, offset, count))
        return tuple(tensors.values())

    def scalar(self, name: str) -> Tensor:
        """One of SCALARS as a one-element tensor."""
        return self.scalars[name]

    # How a graph comes to be.

    def build(self, net: NetDefinition, layer_types: Mapping[str, LayerType]) -> NetGraph:
        """Expand all layers of a net. Raises ModelError or ShapeError that names file, line and
        layer."""
        consumed: set[str] = set()
        self.definition = net
        for number, layer in enumerate(net.layers):
            self._layer, self.stream = layer, number
            if layer.type not in layer_types:
                raise ModelError(
                    unknown("layer type", layer.type, layer_types, self._where()) + _who_has(layer.type)
                )
            for bottom in layer.bottoms:
                if bottom not in self.blobs:
                    raise ModelError(unknown("bottom blob", bottom, self.blobs, self._where()))
            kind = layer_types[layer.type]
            try:
                tops = kind.build(layer, [self.blobs[bottom] for bottom in layer.bottoms], self)
            except ValueError as error:
                raise ModelError(f"{self._where()}: {error}") from error
            if len(tops) < len(layer.tops):
                raise ModelError(
                    f"{self._where()}: makes {len(tops)} tops, {len(layer.tops)} are named: "
                    f"{', '.join(layer.tops)}"
                )
            consumed.update(layer.bottoms)
            weights = layer.loss_weights or (getattr(kind, "loss_weight", 0.0),)
            for position, tensor in enumerate(tops):
                name = layer.tops[position] if position < len(layer.tops) else None
                if name is not None:
                    if name in self.blobs and name not in layer.bottoms:
                        raise ModelError(
                            f"{self._where()}: top {name!r} is already the top of another layer; "
                            f"only a layer that also reads it may overwrite it"
                        )
                    if tensor.kind == "activation":
                        tensor.name = name
                    self.blobs[name] = tensor
                    consumed.discard(name)
                if position < len(weights) and weights[position]:
                    self.objective.append((tensor, weights[position]))
        self._layer = None
        self.outputs = {name: t for name, t in self.blobs.items() if name not in consumed}
        if not self._retain_all:
            fuse_normalisations(self)
        return self

    def differentiate(self, passes: int = 1) -> None:
        """Append the operations that compute every trainable parameter's gradient of the objective,
        which is weighted by this worker's share of the samples and by 1 / passes. With several
        passes, or several uses of a parameter, gradients add up in place (after a fill with 0)."""
        forward, self._stage = list(self.nodes), "backward"
        active = {p.tensor for p in self.parameters if p.trainable}
        for node in forward:
            if node.operation.gradients and any(t in active for t in node.inputs):
                active.update(t for t in node.outputs if t is not None)
        arriving: dict[Tensor, list[Tensor]] = {}
        share = self.feeds[0].count / self.feeds[0].batch if self.feeds else 1.0
        self.objective = [(tensor, weight * share) for tensor, weight in self.objective]
        for tensor, weight in self.objective:
            seed = Tensor(f"d{tensor.name}", tensor.shape, self.dtype, "constant")
            self.constants[seed] = weight / passes
            arriving.setdefault(tensor, []).append(seed)
        for node in reversed(forward):
            if any(t in arriving for t in node.outputs):
                for rule in node.operation.gradients:
                    self._apply_gradient(node, rule, active, arriving)
        for parameter in self.parameters:
            if parameter.trainable and (parts := arriving.get(parameter.tensor)):
                self._collect(parameter, parts, in_place=passes > 1 or len(parts) > 1)
        self._stage = "forward"

    def _apply_gradient(
        self,
        node: Node,
        rule: Gradient,
        active: set[Tensor],
        arriving: dict[Tensor, list[Tensor]],
    ) -> None:
        operands = by_operand(node)
        of: list[Tensor | None] = []
        for name in rule.of:
            of.extend(operands[name] if isinstance(operands[name], list) else [operands[name]])
        if not any(t in active for t in of):
            return
        for operand, tensor in zip(node.operation.outputs, node.outputs, strict=True):
            parts = arriving.get(tensor, []) if tensor is not None else []
            if tensor is not None and len(parts) > 1:
                total = self._emit("sum", parts, {}, node)[0]
                total.name = parts[0].name
                for number, part in enumerate(parts):
                    part.name += f".{number}"
                arriving[tensor] = parts = [total]
            operands[f"d{operand.name}"] = parts[0] if parts else None
        inputs: list[Tensor | None] = []
        for name in rule.operands:
            inputs.extend(operands[name] if isinstance(operands[name], list) else [operands[name]])
        backward = self.vocabulary[rule.operation]
        learned = any(t is not None and t.kind == "parameter" for t in of)
        apart = node.attributes.get("coefficients") or self._retain_all or learned
        if node.operation.name == "sum" and not apart:
            for tensor in of:  # each term's gradient is the sum's own, and needs no copy
                if tensor in active:
                    arriving.setdefault(tensor, []).extend(filter(None, inputs))
            return
        given = {k: v for k, v in node.attributes.items() if k in backward.attributes}
        shapes = tuple(t.shape if t is not None else None for t in of)
        if "shape" in backward.attributes:
            given["shape"] = shapes[0]
        if "shapes" in backward.attributes:
            given["shapes"] = shapes
        outputs = self._emit(rule.operation, inputs, given, node)
        last = self.nodes[-1]
        for position, (tensor, made) in enumerate(zip(of, outputs, strict=True)):
            if tensor is None:
                last.outputs[position] = None
            else:
                made.name = f"d{tensor.name}"
                if tensor in active:
                    arriving.setdefault(tensor, []).append(made)

    def _emit(
        self, operation: str, inputs: Sequence[Tensor | None], attributes: dict[str, Any], of: Node
    ) -> list[Tensor]:
        node = self._node(self.vocabulary[operation], list(inputs), attributes)
        node.layer = of.layer
        self.nodes.append(node)
        return [tensor for tensor in node.outputs if tensor is not None]

    def _collect(self, parameter: Parameter, parts: list[Tensor], in_place: bool) -> None:
        slot = Tensor(f"d{parameter.tensor.name}", parameter.tensor.shape, self.dtype, "gradient")
        slot.kind = "parameter_gradient"
        parameter.gradient = slot
        for part in parts:
            position = next(i for i, n in enumerate(self.nodes) if part in n.outputs)
            node = self.nodes[position]
            if in_place:
                total = self._node(self.vocabulary["accumulate"], [slot, part], {})
                total.layer = node.layer
                self.nodes.insert(position + 1, total)
            else:
                node.outputs[node.outputs.index(part)] = slot

    def _node(
        self, operation: Operation, inputs: list[Tensor | None], attributes: dict[str, Any]
    ) -> Node:
        complete = dict(operation.attributes)
        for name, value in attributes.items():
            if name not in complete:
                raise PlanError(unknown(f"attribute of {operation.name}", name, complete, self._where()))
            complete[name] = value
        missing = [name for name, value in complete.items() if value is REQUIRED]
        fixed = [operand for operand in operation.inputs if not operand.variadic]
        variadic = len(fixed) < len(operation.inputs)
        inputs += [None] * (len(fixed) - len(inputs))
        absent = [o.name for o, t in zip(fixed, inputs, strict=False) if t is None and not o.optional]
        if missing or absent or (len(inputs) > len(fixed) and not variadic):
            raise PlanError(
                f"{self._where()}: operation {operation.name} takes "
                f"{', '.join(o.name for o in operation.inputs)}; given {inputs}, without "
                f"{', '.join(missing + absent) or 'nothing'}"
            )
        node = Node(operation, inputs, [], complete, self._layer_name(), self._stage)
        try:
            made = operation.shapes(shapes_by_operand(node), complete)
        except ValueError as error:
            blobs = "; ".join(repr(t) for t in inputs if t is not None)
            raise ShapeError(f"{self._where()}: {operation.name}: {error} [{blobs}]") from error
        first = next((t.dtype for t in inputs if t is not None), self.dtype)
        kinds = list(operation.outputs)
        if kinds and kinds[-1].variadic:
            kinds += kinds[-1:] * (len(made) - len(kinds))
        kind = "activation" if self._stage == "forward" else "gradient"
        node.outputs = [
            Tensor(
                f"{node.layer}.{operand.name}",
                tuple(shape),
                {None: first, "real": self.dtype}.get(operand.dtype, operand.dtype or first),
                kind,
            )
            for operand, shape in zip(kinds, made, strict=True)
        ]
        return node

    def _layer_name(self) -> str:
        return self._layer.name if self._layer is not None else ""

    def _where(self) -> str:
        if self._layer is None:
            return "net"
        return f"{self._layer.location}: layer {self._layer.name!r} ({self._layer.type})"
