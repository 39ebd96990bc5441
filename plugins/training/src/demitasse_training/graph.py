"""Building a net's graph: layers expanded into operations, and their gradients derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    PluginError,
    ShapeError,
    Tensor,
    by_operand,
    shapes_by_operand,
    unknown,
)
from demitasse.operations import REQUIRED, Gradient, Operation, Shape, count
from demitasse_training.fusion import fuse_normalisations, pool_before_rectifying
from demitasse_training.known_types import check_types
from demitasse_training.shares import Share, weighted


class NetGraph(Graph):
    """What layer types build on. ``phase`` is train or test, ``dtype`` the real numbers' type;
    ``retain="all"`` keeps every blob, so that no layers become one operation.
    ``history`` has, by blob, the layers (by number) that made it and what it was then;
    ``diffs`` the gradients of tensors; ``splits``, by the name that a sum of the gradients of several
    readers has for a layer, the number of the layer below."""

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
        self.seed, self.stream, self.counted = seed, 0, False
        self._open_source = open_source
        self._share = share or Share()
        self.workers = self._share.workers
        self._input_shapes = input_shapes or {}
        self._retain_all = retain == "all"
        self._shared: dict[str, Parameter] = {}
        self._named: dict[str, int] = {}
        self.history: dict[str, list[tuple[int, Tensor]]] = {}
        self.diffs: dict[Tensor, Tensor] = {}
        self.splits: dict[str, int] = {}
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
        permissive: bool = False,
    ) -> Tensor:
        """The layer's next parameter. Layers that give the same ``shared`` name have it in common,
        with the first one's filler and multipliers; where it is ``permissive``, in another shape of as
        many elements. A rate of 0 freezes it: no gradient is made."""
        assert self._layer is not None
        layer = self._layer.name
        if self._named.setdefault(layer, self.stream) != self.stream:
            raise ModelError(
                f"{self._where()}: an earlier layer with parameters has the same name; parameters "
                f"are kept by layer name, so give each layer its own"
            )
        owner = (layer, sum(key[0] == layer for p in self.parameters for key in p.owners))
        if shared and (first := self._shared.get(shared)) is not None:
            if first.tensor.shape != shape and permissive and count(shape) == count(first.tensor.shape):
                first.owners.append(owner)
                seen: Tensor = self.apply("reshape", first.tensor, shape=tuple(shape))
                return seen
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
        try:
            source = self._open_source(spec)
        except DataError as error:
            told = str(error).removeprefix(f"{spec.location}: ")
            raise DataError(f"{self._where()}: {told}") from error
        total, offset, count = self._share.of(batch)
        if count < 1 or (self._share.apart and total < self._share.workers):
            raise DataError(
                f"{self._where()}: a batch of {batch} does not give each of {self._share.workers} "
                f"workers a sample; use a larger batch or fewer workers"
            )
        tensors = {}
        for name, dtype in fields.items():
            if name not in source.fields:
                if why := getattr(source, "absent", {}).get(name):
                    raise DataError(f"{self._where()}: {why}")
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
        check_types(net, layer_types)
        for number, layer in enumerate(net.layers):
            self._layer, self.stream = layer, number
            for bottom in layer.bottoms:
                if bottom not in self.blobs and bottom in net.left_out:
                    raise ModelError(f"{self._where()}: bottom blob {bottom!r}: {net.left_out[bottom]}")
                if bottom not in self.blobs:
                    rest = "the tops of the layers before it"
                    raise ModelError(unknown("bottom blob", bottom, self.blobs, self._where(), rest))
            kind = layer_types[layer.type]
            try:
                tops = kind.build(layer, [self.blobs[bottom] for bottom in layer.bottoms], self)
            except ValueError as error:
                raise ModelError(f"{self._where()}: {error}") from error
            if not isinstance(tops, list | tuple) or not all(isinstance(top, Tensor) for top in tops):
                raise PluginError(
                    f"{self._where()}: the layer type's build returned {tops!r}, not a list of tensors"
                )
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
                    self._overwrite(name, tensor)
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
            if self.phase == "train":
                pool_before_rectifying(self)
        return self

    def _overwrite(self, name: str, tensor: Tensor) -> None:
        """Note that the present layer makes blob ``name``. What it was before is a tensor of its own."""
        made, old = self.history.setdefault(name, []), self.blobs.get(name)
        if old is not None and old is not tensor and old.name == name:
            old.name = f"{name}@{len(made) - 1}"
        made.append((self.stream, tensor))

    def differentiate(self, passes: int = 1, *, every_blob: bool = False) -> None:
        """Append the operations that compute every trainable parameter's gradient of the objective,
        which is weighted by this worker's share in it and by 1 / passes. With several passes, several
        uses of a parameter, or all blobs retained, gradients add up in place (after a fill with 0).
        ``every_blob`` (of a retained net) adds the gradients of inputs and samples, and lets backward
        begin at any blob: one that no objective depends on has a gradient of zeros, to be written by the
        user."""
        forward, self._stage = list(self.nodes), "backward"
        active = {p.tensor for p in self.parameters if p.trainable}
        fed = [*self.inputs.values(), *(t for feed in self.feeds for t in feed.tensors.values())]
        self._check_learning(forward, active)
        active.update(t for t in fed if every_blob and t.dtype == self.dtype)
        for node in forward:
            if node.operation.gradients and any(t in active for t in node.inputs):
                active.update(t for t in node.outputs if t is not None)
        arriving: dict[Tensor, list[Tensor]] = {}
        self.objective = weighted(self, self._share)
        for tensor, weight in self.objective:
            name, taken = f"d{tensor.name}", {constant.name for constant in self.constants}
            while name in taken or name in self.blobs:  # constants are filled by name
                name += "'"
            seed = Tensor(name, tensor.shape, self.dtype, "constant")
            self.constants[seed] = weight / passes
            arriving.setdefault(tensor, []).append(seed)
        named = {blob for made in self.history.values() for _, blob in made}
        for node in reversed(forward):
            for made in node.outputs if every_blob else ():
                if made in named and made in active and made not in arriving:
                    seed = Tensor(f"d{made.name}", made.shape, self.dtype, "constant")
                    self.constants[seed] = 0.0
                    arriving[made] = [seed]
            if any(t in arriving for t in node.outputs):
                for rule in node.operation.gradients:
                    self._apply_gradient(node, rule, active, arriving)
        for tensor in fed:
            if len(arriving.get(tensor, ())) > 1:
                self._total(tensor, arriving, forward[0])
        for parameter in self.parameters:
            if parameter.trainable and (parts := arriving.get(parameter.tensor)):
                adding = passes > 1 or len(parts) > 1 or self._retain_all
                self._collect(parameter, parts, in_place=adding)
        self.diffs = {tensor: parts[0] for tensor, parts in arriving.items()}
        self._stage = "forward"

    def _check_learning(self, forward: Sequence[Node], learned: set[Tensor]) -> None:
        """Raise PlanError for an operation without gradients between what is ``learned`` and the
        objective: what is before it would stay as it is, and nobody would know."""
        # Each tensor that depends on what is learned, and the first operation that cuts its gradient.
        cuts = dict.fromkeys(learned, "")
        for node in forward:
            if node.operation.name == "stop_gradient":  # asked for
                continue
            operands, rules = by_operand(node), node.operation.gradients
            own = "" if rules else f"layer {node.layer!r}: operation {node.operation.name!r}"
            read = [t for rule in rules for name in rule.of for t in listed(operands[name])]
            found = [cuts[t] for t in (read if rules else node.inputs) if t in cuts]
            if found:
                cuts.update(dict.fromkeys(filter(None, node.outputs), max(found) or own))
        for tensor, _ in self.objective:
            if told := cuts.get(tensor):
                raise PlanError(
                    f"{told} has no gradients, and the loss {tensor.name!r} is computed by it: layers "
                    f"before it would not learn; give the operation gradient rules, or freeze those "
                    f"layers (a learning rate of 0, in Caffe's files lr_mult: 0)"
                )

    def _total(self, tensor: Tensor, arriving: dict[Tensor, list[Tensor]], near: Node) -> None:
        """Add up the gradients that several readers give a tensor. Where all blobs are retained the sum
        stands by itself, between the readers and the layer that made the tensor."""
        parts = arriving[tensor]
        total = self._emit("sum", parts, {}, near)[0]
        total.name = parts[0].name
        for position, part in enumerate(parts):
            part.name += f".{position}"
        arriving[tensor] = [total]
        if self._retain_all:
            made = (n for each in self.history.values() for n, t in each if t is tensor)
            if (number := next(made, None)) is not None:
                self.nodes[-1].layer = f"{tensor.name}_split"
                self.splits[f"{tensor.name}_split"] = number

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
            of.extend(listed(operands[name]))
        if not any(t in active for t in of):
            return
        for tensor in node.outputs:
            if tensor is not None and len(arriving.get(tensor, ())) > 1:
                self._total(tensor, arriving, node)
        for operand in node.operation.outputs:
            made = operands[operand.name]
            if operand.variadic:
                operands[f"d{operand.name}"] = [self._arriving(t, arriving) for t in made]
            else:
                operands[f"d{operand.name}"] = arriving[made][0] if made in arriving else None
        backward = self.vocabulary[rule.operation]
        for name, operand in zip(rule.operands, backward.inputs, strict=False):
            if operands[name] is None and not operand.optional:
                return  # nothing arrives where this gradient comes from: it is 0
        inputs: list[Tensor | None] = []
        for name in rule.operands:
            inputs.extend(listed(operands[name]))
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
        if "wanted" in backward.attributes:
            given["wanted"] = tuple(t in active for t in of)
        outputs = self._emit(rule.operation, inputs, given, node)
        last = self.nodes[-1]
        unnamed = len(outputs) - len(of)  # what the operation could give besides
        last.outputs[len(of) :] = [None] * unnamed
        for position, (tensor, found) in enumerate(zip(of, outputs, strict=False)):
            if tensor is None:
                last.outputs[position] = None
            else:
                found.name = f"d{tensor.name}"
                if tensor in active:
                    arriving.setdefault(tensor, []).append(found)

    def _arriving(self, tensor: Tensor, arriving: dict[Tensor, list[Tensor]]) -> Tensor:
        """The gradient that arrives at one of any number of tensors: zeros where none does."""
        if tensor not in arriving:
            zeros = Tensor(f"d{tensor.name}", tensor.shape, tensor.dtype, "constant")
            self.constants[zeros] = 0.0
            arriving[tensor] = [zeros]
        return arriving[tensor][0]

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
            made = (i for i, n in enumerate(self.nodes) if part in n.outputs)
            position = next(made, -1)
            if position < 0 or self.nodes[position].operation.view:  # its memory is another's
                copy = self._node(self.vocabulary["sum"], [part], {})
                copy.layer, (part,) = parameter.owners[0][0], filter(None, copy.outputs)
                position = position + 1 if position >= 0 else len(self.nodes)
                self.nodes.insert(position, copy)
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


def listed(operand: Tensor | list[Tensor] | None) -> list[Tensor | None]:
    """An operand's tensors: one, or those of a variadic one."""
    return [*operand] if isinstance(operand, list) else [operand]
