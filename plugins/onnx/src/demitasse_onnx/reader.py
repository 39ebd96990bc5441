"""An ONNX model as a net: each node a layer, constants among the layers' parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from demitasse import Layer, Location, ModelError, NetDefinition, Solver, Weights, unknown
from demitasse_onnx.call import LARGEST, Call, Shape
from demitasse_onnx.constants import folded
from demitasse_onnx.operators import OPERATORS
from demitasse_onnx.values import array, attribute, check_texts, type_name

REAL = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
_PADDED = ("Conv", "AveragePool")
SUPPORTED = "as the README of demitasse-onnx lists them"


class OnnxReader:
    """A model file: serves its net, and its weights by the names of the nodes that have them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            data = path.read_bytes()
            self._model = onnx.ModelProto.FromString(data)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
        except (DecodeError, ValueError) as error:
            raise ModelError(f"{path}: is no ONNX model, damaged, or cut off: {error}") from error
        if not self._model.HasField("graph") or not self._model.graph.node:
            raise ModelError(f"{path}: is no ONNX model, or one without a node ({len(data)} bytes)")
        check_texts(self._model, path)
        self._opset = next(
            (s.version for s in self._model.opset_import if s.domain in ("", "ai.onnx")), 1
        )

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """The layers; the phase decides what dropout does, nothing else. ``overrides`` set the shapes
        of inputs: ``input.NAME`` to numbers, as "1,3,224,224" or a list. An extent that the file leaves
        open is 1 without. Raises ModelError that names node and operator."""
        if phase not in ("train", "test"):
            raise ModelError(f"unknown phase {phase!r} (valid: test, train)")
        location = Location(str(self._path))
        layers = (*self._inputs(overrides or {}), *self._layers())
        return NetDefinition(self._model.graph.name or self._path.stem, phase, layers, location)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Not in a model file."""
        raise ModelError(f"{self._path}: is a net; a solver is needed here")

    def weights(self) -> Weights:
        """The learned numbers by layer, in the order in which the layer has them."""
        result = Weights()
        for layer in self._layers():
            operator = layer.parameters.operator
            try:
                arrays = OPERATORS[operator].learned(layer.parameters)
            except ValueError as error:
                raise ModelError(
                    f"{layer.location}: layer {layer.name!r}: operator {operator}: {error}"
                ) from error
            if arrays:
                result.parameters[layer.name] = arrays
        return result

    def _initializers(self) -> dict[str, onnx.TensorProto]:
        graph = self._model.graph
        if graph.sparse_initializer:
            raise ModelError(f"{self._path}: has sparse initializers, which are not read")
        return {tensor.name: tensor for tensor in graph.initializer}

    def _inputs(self, overrides: Mapping[str, Any]) -> Iterator[Layer]:
        known = self._initializers()
        inputs = {value.name: value for value in self._model.graph.input if value.name not in known}
        shapes: dict[str, Any] = {}
        for key, value in overrides.items():
            name = key.removeprefix("input.")
            if name == key or name not in inputs:
                valid = [f"input.{each}" for each in inputs]
                raise ModelError(unknown("override", key, valid, self._path))
            shapes[name] = value
        for name, value in inputs.items():
            where = f"{self._path}: input {name!r}"
            tensor = value.type.tensor_type
            if not value.type.HasField("tensor_type") or tensor.elem_type not in REAL:
                raise ModelError(
                    f"{where}: has elements of type {type_name(tensor.elem_type)}; real numbers are "
                    f"supported"
                )
            if not tensor.HasField("shape") and name not in shapes:
                raise ModelError(f"{where}: has no shape; give one as the override 'input.{name}'")
            shape = self._shape(shapes[name], where) if name in shapes else _declared(tensor.shape)
            if any(extent < 1 for extent in shape) or math.prod(shape) > LARGEST:
                raise ModelError(f"{where}: its shape {shape} is not of 1 to {LARGEST} elements")
            call = Call("Input", self._opset, {"shape": shape})
            yield Layer(name, "onnx", (), (name,), call, Location(str(self._path)))

    def _shape(self, given: Any, where: str) -> Shape:
        parts = given.split(",") if isinstance(given, str) else given
        try:
            return tuple(int(part) for part in parts)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{where}: {given!r} is no shape, as 1,3,224,224 is") from error

    def _layers(self) -> Iterator[Layer]:
        """The nodes that the outputs need, as layers."""
        graph = self._model.graph
        tensors = self._initializers()
        constants: dict[str, np.ndarray] = {}
        made = {value.name for value in graph.input if value.name not in tensors}
        padded: dict[str, tuple[str, Shape]] = {}
        names: set[str] = set(made)
        needed = self._needed()
        for number, node in enumerate(graph.node):
            if number not in needed:
                continue
            where = f"{self._path}: node {number} {node.name!r} ({node.op_type})"
            operands: list[str | np.ndarray | None] = []
            for name in node.input:
                if name in tensors and name not in constants:
                    constants[name] = array(tensors[name], self._path, f"initializer {name!r}")
                if name and name not in made and name not in constants:
                    raise ModelError(unknown("input", name, {*made, *constants}, where))
                operands.append(None if not name else name if name in made else constants[name])
            attributes = {
                given.name: attribute(given, self._path, f"node {node.name!r} ({node.op_type})")
                for given in node.attribute
            }
            if taken := {name for name in node.output if name} & {*made, *constants, *tensors}:
                raise ModelError(f"{where}: {sorted(taken)[0]!r} has been made before")
            if (value := folded(node, operands, attributes, where)) is not None:
                constants[node.output[0]] = value
                continue
            if (
                node.domain not in ("", "ai.onnx")
                or node.op_type not in OPERATORS
                or node.op_type == "Input"
            ):
                kind = (
                    node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
                )
                supported = set(OPERATORS) - {"Input"} | {"Constant"}
                raise ModelError(unknown("operator", kind, supported, where, SUPPORTED))
            if node.op_type == "Pad" and (zeros := self._zeros(node, operands, attributes)) is not None:
                made.add(node.output[0])
                padded[node.output[0]] = (str(operands[0]), zeros)
                continue
            yield self._layer(node, operands, attributes, padded, names, number)
            made.update(name for name in node.output if name)
        # A net's outputs are the blobs that no layer reads; a layer in place makes it anew.
        read = {name for number in needed for name in graph.node[number].input}
        for value in graph.output:
            if value.name not in made:
                raise ModelError(unknown("output", value.name, made, self._path))
            if value.name in read:
                call, name = Call("Identity", self._opset, {}, (0,)), f"{value.name}.output"
                blob = (value.name,)
                yield Layer(name, "onnx", blob, blob, call, Location(str(self._path)))

    def _layer(
        self,
        node: onnx.NodeProto,
        operands: list[str | np.ndarray | None],
        attributes: dict[str, Any],
        padded: Mapping[str, tuple[str, Shape]],
        names: set[str],
        number: int,
    ) -> Layer:
        zeros: Shape = ()
        if isinstance(operands[0] if operands else None, str) and str(operands[0]) in padded:
            operands[0], zeros = padded[str(operands[0])]
        bottoms: list[str] = []
        places: list[int | np.ndarray | None] = []
        for operand in operands:
            if isinstance(operand, str):
                if operand not in bottoms:
                    bottoms.append(operand)
                places.append(bottoms.index(operand))
            else:
                places.append(operand)
        outputs = list(node.output)
        while outputs and not self._read(outputs[-1]):
            outputs.pop()
        tops = tuple(name or f"{node.name or number}.{place}" for place, name in enumerate(outputs))
        first = node.name or (tops[0] if tops else str(number))
        name = first if first not in names else f"{first}.{number}"
        while name in names:
            name += "."
        names.add(name)
        call = Call(node.op_type, self._opset, attributes, tuple(places), zeros)
        place = Location(str(self._path))
        return Layer(name, "onnx", tuple(bottoms), tops, call, place)

    def _needed(self) -> set[int]:
        """The numbers of the nodes on which an output of the graph depends."""
        graph = self._model.graph
        wanted = {value.name for value in graph.output}
        if not wanted:
            raise ModelError(f"{self._path}: the graph has no output")
        self._used = set(wanted)
        needed = set()
        for number in range(len(graph.node) - 1, -1, -1):
            node = graph.node[number]
            if any(name in self._used for name in node.output if name):
                needed.add(number)
                self._used.update(node.input)
        return needed

    def _read(self, name: str) -> bool:
        return name != "" and name in self._used

    def _zeros(
        self, node: onnx.NodeProto, operands: list[Any], attributes: Mapping[str, Any]
    ) -> Shape | None:
        """What a Pad puts around the space of its input where all that reads it can do that itself;
        None where not."""
        readers = [other for other in self._model.graph.node if node.output[0] in other.input]
        final = {value.name for value in self._model.graph.output}
        if node.output[0] in final or any(
            other.op_type not in _PADDED or list(other.input).count(node.output[0]) != 1
            for other in readers
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
        ):
            return None
        pads = tuple(int(each) for each in np.asarray(listed).reshape(-1))
        axes = len(pads) // 2
        if value is not None and np.any(value):
            return None
        if (
            attributes.get("mode", "constant") != "constant"
            or len(pads) < 6
            or len(pads) % 2
            or min(pads) < 0
        ):
            return None
        if any(pads[:2]) or any(pads[axes : axes + 2]):
            return None
        return pads[2:axes] + pads[axes + 2 :]


def _declared(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(dim.dim_value if dim.HasField("dim_value") else 1 for dim in shape.dim)
