"""Building a net's graph: layers expanded into operations, and their gradients derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

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
    blamed,
    check_plain,
    shapes_by_operand,
    shortened,
    unknown,
)
from demitasse.operations import REQUIRED, Operation, Shape, count
from demitasse_training.differentiation import Differentiation
from demitasse_training.exact import mark_exact
from demitasse_training.fusion import fuse_normalisations, pool_before_rectifying
from demitasse_training.known_types import MOST_TOLD, check_types
from demitasse_training.own_shapes import SampleShapes
from demitasse_training.samples import check_fields
from demitasse_training.shape_rules import (
    check_asked,
    check_filler,
    check_operands,
    check_shape,
    check_shapes,
)
from demitasse_training.shares import Share
from demitasse_training.terms import weights_of

Scoring: TypeAlias = Callable[[Sequence[np.ndarray]], Mapping[str, Any]]
"""Computes a test's scores of a top from its rows in all batches; the keys are appended to its name."""


class NetGraph(Graph):
    """The graph that layer types build. ``phase`` is train or test; ``dtype`` is the type of real
    numbers; ``retain="all"`` keeps every blob, so that no layers are fused. ``input_shapes`` and
    ``sample_shapes`` (by layer and field) replace the declared shapes of inputs and the shapes of a
    source's first sample. ``varying`` has the layers whose samples come one at a time, each in a shape
    of its own. ``history`` has, for each blob, the numbers of the layers that made it and the tensor it
    then was. ``found`` cuts a planned top to the rows that exist, if its layer's type can tell;
    ``scoring`` computes a test's score of a top if that is not its mean. ``diffs`` has the gradients of
    tensors. ``splits`` maps the name of a sum of several readers' gradients to the number of the layer
    below."""

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
        sample_shapes: SampleShapes | None = None,
        retain: str | None = None,
        frees: bool = False,
    ) -> None:
        super().__init__(vocabulary, phase, dtype)
        self.seed, self.stream, self.counted = seed, 0, False
        self._open_source = open_source
        self.share = share or Share()
        self.workers = self.share.workers
        self._input_shapes, self._sample_shapes = input_shapes or {}, sample_shapes or {}
        self.retains_all, self._frees = retain == "all", frees
        self._shared: dict[str, Parameter] = {}
        self._named: dict[str, int] = {}
        self._owned: Counter[str] = Counter()
        self.varying = set[str]()
        self.history: dict[str, list[tuple[int, Tensor]]] = {}
        self.found: dict[Tensor, Callable[[np.ndarray], np.ndarray]] = {}
        self.scoring: dict[Tensor, Scoring] = {}
        self.diffs: dict[Tensor, Tensor] = {}
        self.splits: dict[str, int] = {}
        self._layer: Layer | None = None

    # What a layer type calls while it builds.

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation and return its output tensor, or a tuple if it has several (including
        optional ones; outputs that nobody reads are not computed).

        Raises ShapeError that names every operand and its shape if they do not fit.
        """
        check_operands(operation, inputs, self._where())
        if operation not in self.vocabulary:
            raise PlanError(unknown("operation", operation, self.vocabulary, self._where()))
        node = self.node(operation, inputs, attributes)
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
        """Return the layer's next parameter. Layers that give the same ``shared`` name share it, with
        the first layer's filler and multipliers. If it is ``permissive``, it may have another shape with
        the same number of elements. A rate of 0 freezes it: it gets no gradient, except in a net that
        ``frees`` all."""
        assert self._layer is not None
        layer = self._layer.name
        check_shape("a parameter", shape, self._where())
        check_filler(filler, self._where())
        if self._named.setdefault(layer, self.stream) != self.stream:
            raise ModelError(
                f"{self._where()}: an earlier layer with parameters has the same name; parameters "
                f"are kept by layer name, so give each layer its own"
            )
        owner = (layer, self._owned[layer])
        self._owned[layer] += 1
        if shared and (first := self._shared.get(shared)) is not None:
            if first.tensor.shape != shape and permissive and count(shape) == count(first.tensor.shape):
                first.owners.append(owner)
                seen: Tensor = self.apply("reshape", first.tensor, shape=tuple(shape))
                return seen
            if first.tensor.shape != shape:
                raise ShapeError(
                    f"{self._where()}: shares parameter {shared!r} with layer "
                    f"{first.owners[0][0]!r}, where its shape is {first.tensor.shape}; here it is "
                    f"{shape}"
                )
            first.owners.append(owner)
            return first.tensor
        tensor = Tensor(f"{layer}[{owner[1]}]", tuple(shape), self.dtype, "parameter")
        parameter = Parameter(
            tensor, [owner], filler, rate, decay, trainable and (rate != 0 or self._frees)
        )
        self.parameters.append(parameter)
        if shared:
            self._shared[shared] = parameter
        return tensor

    @property
    def owning(self) -> Sequence[str]:
        """The layers that have parameters, in the net's order."""
        return tuple(self._named)

    def input(self, name: str, shape: Shape) -> Tensor:
        """Return a tensor that the net's caller fills; ``input_shapes`` may override the declared
        shape."""
        check_shape("an input", shape, self._where())
        shape = tuple(self._input_shapes.get(name, shape))
        tensor = Tensor(name, shape, self.dtype, "input")
        self.inputs[name] = tensor
        return tensor

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """Return a tensor that is filled once, before the first step."""
        tensor = Tensor(name, tuple(value.shape), self.dtype, "constant")
        self.constants[tensor] = value
        return tensor

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Return tensors that a data source fills in each step with this worker's part of ``batch``
        samples: one for each entry of ``fields``, which maps a field's name to an element type (``raw``
        as stored, ``real`` for the plan's)."""
        assert self._layer is not None
        check_asked(fields, batch, self._where())
        try:
            if isinstance(spec.source, str):
                check_plain(spec.source)
            source = self._open_source(spec)
        except DataError as error:
            told = str(error).removeprefix(f"{spec.location}: ")
            raise DataError(f"{self._where()}: {told}") from error
        check_fields(source, self._where())
        self.counted = self.counted or getattr(source, "stands_in", False)
        total, offset, count = self.share.of(batch)
        if count < 1 or (self.share.apart and total < self.share.workers):
            raise DataError(
                f"{self._where()}: a batch of {batch} does not give each of {self.share.workers} "
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
            shape = self._sample_shapes.get((self._layer.name, name), stored.shape)
            tensors[name] = Tensor(f"{self._layer.name}.{name}", (count, *shape), kind, "input")
        self.feeds.append(Feed(self._layer.name, source, tensors, total, offset, count))
        if batch == 1 and getattr(source, "varies", False):
            self.varying.add(self._layer.name)
        return tuple(tensors.values())

    def scalar(self, name: str) -> Tensor:
        """Return one of SCALARS as a one-element tensor. Raises PluginError for any other name."""
        if name not in self.scalars:
            raise PluginError(unknown("scalar", name, self.scalars, self._where()))
        return self.scalars[name]

    # Construction.

    def build(self, net: NetDefinition, layer_types: Mapping[str, LayerType]) -> NetGraph:
        """Expand all layers of a net. Raises ModelError or ShapeError that names file, line and
        layer."""
        consumed: set[str] = set()
        self.definition = net
        check_types(net, layer_types)
        for number, layer in enumerate(net.layers):
            self._layer, self.stream = layer, number
            kind = layer_types[layer.type]
            tops = self._tops(layer, kind, self._bottoms(layer, net))
            if found := getattr(kind, "found", None):
                self.found |= dict.fromkeys(tops, found)
            if callable(getattr(kind, "score", None)):
                self.scoring |= dict.fromkeys(tops, partial(_scored, kind, layer, self._where()))
            consumed.update(layer.bottoms)
            for name, tensor in zip(layer.tops, tops, strict=False):
                self._name_top(name, tensor, layer)
                consumed.discard(name)
            terms = zip(tops, weights_of(layer, kind), strict=False)
            self.objective += [(tensor, weight) for tensor, weight in terms if weight]
        self._layer = None
        self.outputs = {name: t for name, t in self.blobs.items() if name not in consumed}
        mark_exact(self)
        if not self.retains_all:
            fuse_normalisations(self)
            if self.phase == "train":
                pool_before_rectifying(self)
        return self

    def _bottoms(self, layer: Layer, net: NetDefinition) -> list[Tensor]:
        for bottom in layer.bottoms:
            if bottom not in self.blobs and bottom in net.left_out:
                raise ModelError(f"{self._where()}: bottom blob {bottom!r}: {net.left_out[bottom]}")
            if bottom not in self.blobs:
                rest = "the tops of the layers before it"
                raise ModelError(unknown("bottom blob", bottom, self.blobs, self._where(), rest))
        return [self.blobs[bottom] for bottom in layer.bottoms]

    def _tops(self, layer: Layer, kind: LayerType, bottoms: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what a layer type builds from a layer's bottoms: a tensor for each top, perhaps
        more."""
        try:
            known = getattr(kind, "raises", (ValueError, OSError))
            with blamed(kind, "in build", self._where(), known):
                tops = kind.build(layer, bottoms, self)
        except ValueError as error:
            raise ModelError(f"{self._where()}: {shortened(error, MOST_TOLD)}") from error
        if not isinstance(tops, list | tuple) or not all(isinstance(top, Tensor) for top in tops):
            raise PluginError(
                f"{self._where()}: the layer type's build returned {tops!r}, not a list of tensors"
            )
        if len(tops) < len(layer.tops):
            raise ModelError(
                f"{self._where()}: makes {len(tops)} tops, but {len(layer.tops)} are named: "
                f"{', '.join(layer.tops)}"
            )
        return tops

    def _name_top(self, name: str, tensor: Tensor, layer: Layer) -> None:
        if name in self.blobs and name not in layer.bottoms:
            raise ModelError(
                f"{self._where()}: top {name!r} is already the top of another layer; "
                f"only a layer that also reads it may overwrite it"
            )
        self._overwrite(name, tensor)
        if tensor.kind == "activation":
            tensor.name = name
        self.blobs[name] = tensor

    def _overwrite(self, name: str, tensor: Tensor) -> None:
        """Note that the current layer makes blob ``name``. Its earlier value is a tensor of its own."""
        made, old = self.history.setdefault(name, []), self.blobs.get(name)
        if old is not None and old is not tensor and old.name == name:
            old.name = f"{name}@{len(made) - 1}"
        made.append((self.stream, tensor))

    def differentiate(self, passes: int = 1, *, every_blob: bool = False) -> None:
        """Append the operations that compute the gradient of the objective for every trainable
        parameter. The objective is weighted by this worker's share of it and by 1 / passes. With several
        passes, several uses of a parameter, or all blobs retained, gradients are summed in place, after
        a fill with 0. ``every_blob`` (only if all blobs are retained) adds the gradients of inputs and
        samples, and lets backward begin at any blob: a blob that no objective depends on has a gradient
        of zeros, for the user to write."""
        self.diffs = Differentiation(self, passes, every_blob).append()

    def node(
        self,
        name: str,
        given: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        phase: str = "forward",
    ) -> Node:
        """Return an operation of the current layer on tensors, with complete attributes and output
        tensors of its own; it is not yet in the graph. Raises PlanError if operands or attributes do not
        fit the operation, ShapeError if shapes do not fit."""
        operation, inputs = self.vocabulary[name], [*given]
        complete = dict(operation.attributes)
        for key, value in attributes.items():
            if key not in complete:
                raise PlanError(unknown(f"attribute of {name}", key, complete, self._where()))
            complete[key] = value
        missing = [key for key, value in complete.items() if value is REQUIRED]
        fixed = [operand for operand in operation.inputs if not operand.variadic]
        variadic = len(fixed) < len(operation.inputs)
        inputs += [None] * (len(fixed) - len(inputs))
        absent = [o.name for o, t in zip(fixed, inputs, strict=False) if t is None and not o.optional]
        if missing or absent or (len(inputs) > len(fixed) and not variadic):
            raise PlanError(
                f"{self._where()}: operation {name} takes "
                f"{', '.join(o.name for o in operation.inputs)}; given {inputs}, without "
                f"{', '.join(missing + absent) or 'nothing'}"
            )
        node = Node(operation, inputs, [], complete, self._layer_name(), phase)
        try:
            with blamed(
                f"operation {operation.name!r}", "in its shape rule", self._where(), (ValueError,)
            ):
                made = operation.shapes(shapes_by_operand(node), complete)
        except ValueError as error:
            blobs = "; ".join(repr(t) for t in inputs if t is not None)
            told = shortened(f"{name}: {error} [{blobs}]", MOST_TOLD)
            raise ShapeError(f"{self._where()}: {told}") from error
        first = next((t.dtype for t in inputs if t is not None), self.dtype)
        kinds = list(operation.outputs)
        check_shapes(operation, made, self._where())
        if kinds and kinds[-1].variadic:
            kinds += kinds[-1:] * (len(made) - len(kinds))
        kind = "activation" if phase == "forward" else "gradient"
        node.outputs = [
            Tensor(
                f"{node.layer}.{operand.name}",
                tuple(shape),
                {None: first, "real": self.dtype}.get(operand.dtype, operand.dtype or first),
                kind,
            )
            for operand, shape in zip(kinds, made, strict=True)
        ]
        # Values computed from losses are exact, because gradients begin there.
        node.exact = all(t is None or t.shape == () for t in (*inputs, *node.outputs))
        return node

    def _layer_name(self) -> str:
        return self._layer.name if self._layer is not None else ""

    def _where(self) -> str:
        if self._layer is None:
            return "net"
        named = shortened(self._layer.name, quoted=True)
        return f"{self._layer.location}: layer {named} ({self._layer.type})"


def _scored(kind: Any, layer: Layer, where: str, batches: Sequence[np.ndarray]) -> Mapping[str, Any]:
    """The scores that a layer type computes from all batches."""
    with blamed(kind, "in score", where):
        return dict(kind.score(layer, batches))
