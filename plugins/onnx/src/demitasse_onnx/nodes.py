"""The nodes of a model's graph as layers, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from demitasse import Layer, Location, ModelError, shortened, unknown
from demitasse_onnx.call import Branch, Call, Shape
from demitasse_onnx.constants import MADE, made_of
from demitasse_onnx.kinds import REAL, kind_made, kind_of, kind_of_type
from demitasse_onnx.operators import OPERATORS
from demitasse_onnx.patterns import written_as_one
from demitasse_onnx.values import array, attribute

SUPPORTED = "as the README of demitasse-onnx lists them"
_DOMAINS = ("", "ai.onnx")
MICROSOFTS = ("DynamicQuantizeLSTM",)
"""The supported operators of ONNX Runtime's own domain."""

READ = (set(OPERATORS) - {"Input", "Loss", "Samples", *MICROSOFTS}) | MADE | {"If"}
"""The ONNX operators that are supported; the remaining entries of OPERATORS belong to
the reader itself."""

_FLOW = ("Loop", "Scan")

_PADDED = ("Conv", "AveragePool")
"""Operators that can pad their input with zeros themselves."""

Operand = str | np.ndarray | None
"""The name of a computed tensor, a constant, or None."""


class Nodes:
    """Expands a graph. Whatever a node reads has been ``made`` before it, or is a constant, or is one of
    ``initializers``, by name. A branch also reads what its graph, ``around`` it, has made so far."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        opset: int,
        path: Path,
        initializers: Mapping[str, onnx.TensorProto],
        hint: str = "",
        around: Nodes | None = None,
    ) -> None:
        self._hint, self._inside = hint, around is not None
        self._graph, self._opset, self._path = graph, opset, path
        self._location, self._initializers = Location(str(path)), initializers
        self._constants: dict[str, np.ndarray] = {}
        self._made = {value.name for value in graph.input if value.name not in initializers}
        self._kinds = {  # kinds of the values of inputs and nodes
            value.name: kind_of_type(value.type.tensor_type.elem_type) for value in graph.input
        }
        self._padded: dict[str, tuple[str, Shape]] = {}  # by output of a Pad: its input, its zeros
        self._layers = set(self._made)  # names of layers
        if around is not None:
            self._constants.update(around._constants)
            self._kinds.update(around._kinds)
            self._made.update(around._made)
            self._layers = around._layers
        self._used: set[str] = set()
        self._held = {  # values of Constant nodes
            node.output[0]: each.t
            for node in graph.node
            if node.op_type == "Constant" and len(node.output) == 1
            for each in node.attribute
            if each.name == "value" and each.HasField("t")
        }
        self._nodes = written_as_one(graph, self._number)
        self._makers = {
            name: number for number, node in enumerate(self._nodes) for name in node.output if name
        }

    def layers(self) -> Iterator[Layer]:
        """Yield the layers that the outputs need. Raise ModelError with node and operator."""
        needed = self._needed()
        for number, node in enumerate(self._nodes):
            if number not in needed:
                continue
            operator = shortened(repr(node.op_type)[1:-1])  # on one line, whatever characters it has
            name = shortened(node.name, quoted=True)
            where = f"{self._path}: node {number} {name} ({operator})"
            _check_known(node, where)
            operands = [self._operand(each, number, where) for each in node.input]
            about = f"node {name} ({operator})"
            attributes = {
                each.name: self._branch(each.g)
                if node.op_type == "If" and each.type == onnx.AttributeProto.GRAPH
                else attribute(each, self._path, about)
                for each in node.attribute
            }
            self._check_new(node, where)
            if node.op_type in MADE and not any(isinstance(operand, str) for operand in operands):
                self._work_out(node, operands, attributes, where)
                continue
            if node.op_type == "Pad" and (zeros := self._zeros(node, operands, attributes)) is not None:
                self._made.add(node.output[0])
                self._padded[node.output[0]] = (str(operands[0]), zeros)
                continue
            kinds = [self._kind(operand) for operand in operands]
            yield self._layer(node, operands, attributes, number, kinds)
            self._made.update(each for each in node.output if each)
            if isinstance(then := attributes.get("then_branch"), Branch):
                self._kinds.update(zip(node.output, then.kinds, strict=False))
            else:
                self._kinds.update(dict.fromkeys(node.output, kind_made(node, kinds, attributes)))
        yield from self._outputs({name for number in needed for name in _read_by(self._nodes[number])})

    def _branch(self, graph: onnx.GraphProto) -> Branch:
        """Return a branch of an If, with all that it may read of what is around it."""
        own = {tensor.name: tensor for tensor in graph.initializer}
        nodes = Nodes(
            graph, self._opset, self._path, {**self._initializers, **own}, self._hint, around=self
        )
        layers, outputs = tuple(nodes.layers()), tuple(value.name for value in graph.output)
        made = {top for layer in layers for top in layer.tops}
        read = {name for layer in layers for name in layer.bottoms} | set(outputs)
        where = f"{self._path}: a branch"
        kinds = [nodes._kind(nodes._operand(name, len(graph.node), where)) for name in outputs]
        return Branch(layers, outputs, tuple(sorted(read - made)), tuple(kinds))

    def _work_out(
        self, node: onnx.NodeProto, operands: list[Operand], attributes: dict[str, Any], where: str
    ) -> None:
        """Evaluate a node whose operands are all constant."""
        arrays = [None if isinstance(operand, str) else operand for operand in operands]
        try:
            made = made_of(node.op_type, arrays, attributes, len(node.output))
        except ValueError as error:
            raise ModelError(f"{where}: {error}") from error
        self._constants.update(
            (name, value) for name, value in zip(node.output, made, strict=False) if name
        )

    def _number(self, name: str) -> float | None:
        """Return the value of a constant that consists of one number."""
        tensor = self._initializers.get(name, self._held.get(name))
        if tensor is None or len(tensor.dims) > 1 or math.prod(tensor.dims) != 1:
            return None
        value = array(tensor, self._path, f"constant {name!r}").reshape(())
        return float(value) if value.dtype.kind == "f" else None

    def _needed(self) -> set[int]:
        """Return the numbers of the nodes on which an output of the graph depends."""
        wanted = {value.name for value in self._graph.output}
        if not wanted:
            raise ModelError(f"{self._path}: the graph has no output")
        self._used = set(wanted)
        needed = set()
        for number in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[number]
            if any(name in self._used for name in node.output if name):
                needed.add(number)
                self._used.update(_read_by(node))
        return needed

    def _operand(self, name: str, number: int, where: str) -> Operand:
        if name in self._initializers and name not in self._constants:
            tensor = self._initializers[name]
            self._constants[name] = array(tensor, self._path, f"initializer {name!r}")
        if not name or name in self._made:
            return name or None
        if name not in self._constants:
            if (maker := self._makers.get(name, -1)) >= number:
                node = self._nodes[maker]
                told = f"{shortened(repr(node.name))} ({shortened(repr(node.op_type)[1:-1])})"
                raise ModelError(
                    f"{where}: input {shortened(repr(name))} is made by node {maker} {told}, which is "
                    f"not before it: nodes must be in the order of computation, without cycles"
                )
            raise ModelError(unknown("input", name, {*self._made, *self._constants}, where))
        return self._constants[name]

    def _kind(self, operand: Operand) -> str:
        if isinstance(operand, np.ndarray):
            return kind_of(operand.dtype)
        return REAL if operand is None else self._kinds.get(operand, REAL)

    def _check_new(self, node: onnx.NodeProto, where: str) -> None:
        before = {*self._made, *self._constants, *self._initializers}
        if taken := {name for name in node.output if name} & before:
            raise ModelError(f"{where}: {shortened(min(taken), quoted=True)} is made twice")

    def _layer(
        self,
        node: onnx.NodeProto,
        operands: list[Operand],
        attributes: dict[str, Any],
        number: int,
        kinds: Sequence[str],
    ) -> Layer:
        zeros: Shape = ()
        if isinstance(operands[0] if operands else None, str) and str(operands[0]) in self._padded:
            operands[0], zeros = self._padded[str(operands[0])]
        bottoms = [n for each in attributes.values() if isinstance(each, Branch) for n in each.reads]
        bottoms = list(dict.fromkeys(bottoms))
        places: list[int | np.ndarray | None] = []
        for operand in operands:
            if isinstance(operand, str):
                if operand not in bottoms:
                    bottoms.append(operand)
                places.append(bottoms.index(operand))
            else:
                places.append(operand)
        outputs = list(node.output)
        while outputs and not self._is_read(outputs[-1]):
            outputs.pop()
        tops = tuple(name or f"{node.name or number}.{place}" for place, name in enumerate(outputs))
        name = self._name(node.name or (tops[0] if tops else str(number)), number)
        shared = self._shared(node, operands, attributes)
        about = (zeros, shared, self._hint, tuple(kinds), self._inside)
        call = Call(node.op_type, self._opset, attributes, tuple(places), *about)
        return Layer(name, "onnx", tuple(bottoms), tops, call, self._location)

    def _shared(self, node: onnx.NodeProto, operands: list[Operand], attributes: dict[str, Any]) -> str:
        """Return the name under which nodes that read the same learned arrays share them, as
        the branches of a siamese net do; "" if they do not. Arrays with a single value do not
        count: exporters store those once for unrelated nodes, for example the scales of
        untrained batch normalisations."""
        held = {i: each for i, each in enumerate(operands) if isinstance(each, np.ndarray)}
        if node.op_type not in OPERATORS or OPERATORS[node.op_type].arrays is None:
            return ""
        if all(array.size < 2 or (array == array.flat[0]).all() for array in held.values()):
            return ""
        names = [(place, node.input[place]) for place in held]
        return f"{node.op_type} {names} {sorted(attributes.items(), key=str)}"

    def _name(self, first: str, number: int) -> str:
        """Return a unique name for a layer."""
        name = first if first not in self._layers else f"{first}.{number}"
        while name in self._layers:
            name += "."
        self._layers.add(name)
        return name

    def _is_read(self, name: str) -> bool:
        return name != "" and name in self._used

    def _outputs(self, read: set[str]) -> Iterator[Layer]:
        """Yield layers for outputs. A net's outputs are the blobs that no layer reads; if nodes
        read an output, an in-place layer makes it again, and a constant output becomes a layer
        without a bottom."""
        for value in self._graph.output:
            blob, name = (value.name,), f"{value.name}.output"
            known = {**self._constants, **self._initializers}
            if value.name not in self._made and value.name in known:
                held = self._operand(value.name, len(self._nodes), f"{self._path}: output")
                assert isinstance(held, np.ndarray)
                call = Call("Identity", self._opset, {}, (held,))
                yield Layer(name, "onnx", (), blob, call, self._location)
            elif value.name not in self._made:
                raise ModelError(unknown("output", value.name, {*self._made, *known}, self._path))
            elif value.name in read:
                call = Call("Identity", self._opset, {}, (0,))
                yield Layer(name, "onnx", blob, blob, call, self._location)

    def _zeros(
        self, node: onnx.NodeProto, operands: list[Operand], attributes: Mapping[str, Any]
    ) -> Shape | None:
        """Return the zeros that a Pad puts around the spatial axes of its input, if all its readers can
        do that themselves; None otherwise."""
        made = node.output[0]
        readers = [other for other in self._nodes if made in _read_by(other)]
        if made in {value.name for value in self._graph.output} or any(
            other.op_type not in _PADDED or made in other.input[1:] for other in readers
        ):
            return None
        listed = operands[1] if len(operands) > 1 else attributes.get("pads")
        value = operands[2] if len(operands) > 2 else attributes.get("value", 0.0)
        if (
            listed is None
            or isinstance(listed, str)
            or isinstance(value, str)
            or not isinstance(operands[0], str)
            or (len(operands) > 3 and operands[3] is not None)
            or attributes.get("mode", "constant") != "constant"
            or (value is not None and np.any(value))
        ):
            return None
        return _around_space(tuple(int(each) for each in np.asarray(listed).reshape(-1)))


def _read_by(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, or that the nodes of its branches do."""
    inner = [each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    names = {name for graph in inner for each in graph.node for name in _read_by(each)}
    return names.union(node.input, *({value.name for value in graph.output} for graph in inner))


def _check_known(node: onnx.NodeProto, where: str) -> None:
    """Raise ModelError for an operator that is not supported."""
    if node.domain == "com.microsoft" and node.op_type in MICROSOFTS:
        return
    ours = node.domain in _DOMAINS
    if ours and node.op_type not in READ and onnx.defs.has(node.op_type):
        told = "; exporters do not write it if shapes are fixed" if node.op_type in _FLOW else ""
        raise ModelError(
            f"{where}: ONNX's operator {node.op_type!r} is not supported ({len(READ)} are, {SUPPORTED})"
            f"{told}"
        )
    if not ours:
        kind = shortened(f"{node.domain}.{node.op_type}", quoted=True)
        only = ", ".join(f"com.microsoft.{name}" for name in MICROSOFTS)
        raise ModelError(
            f"{where}: unknown operator {kind}; of other domains than ONNX's, only {only} is supported"
        )
    if node.op_type not in READ:
        raise ModelError(unknown("operator", node.op_type, READ, where, SUPPORTED))


def _around_space(pads: Shape) -> Shape | None:
    """Reduce pads (before every axis, then after every axis) to those of the spatial axes. Return None
    if samples or channels are padded, too, if something is cropped, or if there are no spatial axes."""
    axes = len(pads) // 2
    if len(pads) < 6 or len(pads) % 2 or min(pads) < 0:
        return None
    if any(pads[:2]) or any(pads[axes : axes + 2]):
        return None
    return pads[2:axes] + pads[axes + 2 :]
