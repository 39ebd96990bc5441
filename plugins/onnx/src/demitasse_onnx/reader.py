"""An ONNX model as a net: each node is a layer, and constants are among the layers' parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from demitasse import (
    Layer,
    Location,
    ModelError,
    NetDefinition,
    Solver,
    Weights,
    looks_like,
    shortened,
    unknown,
)
from demitasse_onnx.call import LARGEST, MOST_AXES, Call, Shape
from demitasse_onnx.constants import CASTS
from demitasse_onnx.functions import without_functions
from demitasse_onnx.nodes import Nodes
from demitasse_onnx.operators import OPERATORS
from demitasse_onnx.values import check_texts, type_name

_TYPES = onnx.TensorProto
NUMBERS = (
    *(_TYPES.FLOAT, _TYPES.DOUBLE, _TYPES.FLOAT16, _TYPES.BFLOAT16),
    *(_TYPES.UINT8, _TYPES.UINT16, _TYPES.UINT32, _TYPES.UINT64, _TYPES.BOOL),
    *(_TYPES.INT8, _TYPES.INT16, _TYPES.INT32, _TYPES.INT64),
)
"""The element types that inputs may have; all inputs are passed as floating-point numbers."""

_VALUE = "value."
"""The prefix of overrides that make an input constant."""

_VERSIONED = 3
"""The first version of the format in which a file states the version of its operators."""


class OnnxReader:
    """A model file: provides its net, and its weights by the names of the nodes that have them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            data = path.read_bytes()
            self._model = onnx.ModelProto.FromString(data)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
        except (DecodeError, ValueError) as error:
            told = looks_like(data[:512])
            raise ModelError(
                f"{path}: is not an ONNX model, or is damaged or cut off: {error}; it {told}"
            ) from error
        if not self._model.HasField("graph") or not self._model.graph.node:
            raise ModelError(
                f"{path}: is not an ONNX model, or has no nodes: it {looks_like(data[:512])}"
            )
        check_texts(self._model, path)
        self._opset = self._version()
        self._model = without_functions(self._model, self._opset, path)

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Return the layers. The phase decides only what dropout does. ``overrides`` set the shapes of
        inputs: they map ``input.NAME`` to numbers, as "1,3,224,224" or as a list. An extent that the
        file leaves open is 1 by default. ``value.NAME`` makes an input of one number a constant. Raise
        ModelError with node and operator."""
        if phase not in ("train", "test"):
            raise ModelError(f"unknown phase {phase!r} (valid: test, train)")
        location, told = Location(str(self._path)), overrides or {}
        known = {**self._initializers(), **self._given(told)}
        layers = (*self._inputs(told, known), *self._layers(known, self._hint(told)))
        return NetDefinition(self._model.graph.name or self._path.stem, phase, layers, location)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Raise ModelError: a model file has no solver."""
        raise ModelError(f"{self._path}: is a net; a solver is needed here")

    def weights(self) -> Weights:
        """Return the learned arrays by layer, in the layer's own order."""
        result = Weights()
        for layer in self._layers(self._initializers()):
            operator = layer.parameters.operator
            if operator not in OPERATORS:  # it makes constants and learns nothing
                continue
            try:
                arrays = OPERATORS[operator].learned(layer.parameters)
            except ValueError as error:
                raise ModelError(
                    f"{layer.location}: layer {layer.name!r}: operator {operator}: {error}"
                ) from error
            if arrays:
                result.parameters[layer.name] = arrays
        return result

    def _version(self) -> int:
        """Return the version of ONNX's operators. Files from before operators had versions do not state
        it. Raise ModelError."""
        said = [int(each.version) for each in self._model.opset_import if each.domain in ("", "ai.onnx")]
        newest = int(onnx.defs.onnx_opset_version())
        if not said and self._model.ir_version < _VERSIONED:
            return 1
        if not said or not 1 <= said[0] <= newest:
            others = ", ".join(sorted({shortened(each.domain) for each in self._model.opset_import}))
            told = f"version {said[0]}" if said else "no version"
            only = f", only of those of {others}" if others and not said else ""
            raise ModelError(
                f"{self._path}: says {told} of ONNX's operators (opset){only} (valid: 1 to {newest})"
            )
        return said[0]

    def _initializers(self) -> dict[str, onnx.TensorProto]:
        graph = self._model.graph
        if graph.sparse_initializer:
            raise ModelError(f"{self._path}: has sparse initializers, which are not supported")
        return {tensor.name: tensor for tensor in graph.initializer}

    def _given(self, overrides: Mapping[str, Any]) -> dict[str, onnx.TensorProto]:
        """Return the inputs that overrides make constant. Raise ModelError."""
        made = {}
        for value in self._model.graph.input:
            if (key := f"{_VALUE}{value.name}") not in overrides:
                continue
            try:
                kind = CASTS[value.type.tensor_type.elem_type]
                shape = _declared(value.type.tensor_type.shape)
                number = np.full(shape, float(overrides[key])).astype(kind)
            except (KeyError, TypeError, ValueError) as error:
                raise ModelError(f"{self._path}: {key} is {overrides[key]!r}, not one number") from error
            made[value.name] = onnx.numpy_helper.from_array(number, value.name)
        return made

    def _inputs(
        self, overrides: Mapping[str, Any], known: Mapping[str, onnx.TensorProto]
    ) -> Iterator[Layer]:
        inputs = {value.name: value for value in self._model.graph.input if value.name not in known}
        shapes: dict[str, Any] = {}
        for key, value in overrides.items():
            name = key.removeprefix("input.")
            if key.removeprefix(_VALUE) in known and key.startswith(_VALUE):
                continue
            if name == key or name not in inputs:
                valid = [f"{prefix}{each}" for each in inputs for prefix in ("input.", _VALUE)]
                raise ModelError(unknown("override", key, valid, self._path))
            shapes[name] = value
        for name, value in inputs.items():
            where = f"{self._path}: input {name!r}"
            tensor = value.type.tensor_type
            if not value.type.HasField("tensor_type"):
                told = (value.type.WhichOneof("value") or "value of no").replace("_", " ")
                raise ModelError(
                    f"{where}: is of {told}; only arrays of numbers (tensors) are supported"
                )
            if tensor.elem_type not in NUMBERS:
                raise ModelError(
                    f"{where}: has elements of type {type_name(tensor.elem_type)}; only numbers are "
                    f"supported"
                )
            if not tensor.HasField("shape") and name not in shapes:
                raise ModelError(f"{where}: has no shape; give one as the override 'input.{name}'")
            shape = self._shape(shapes[name], where) if name in shapes else _declared(tensor.shape)
            if any(extent < 1 for extent in shape) or math.prod(shape) > LARGEST:
                raise ModelError(f"{where}: its shape {shape} does not have 1 to {LARGEST} elements")
            if len(shape) > MOST_AXES:
                raise ModelError(f"{where}: its shape has {len(shape)} axes, more than {MOST_AXES}")
            first = tensor.shape.dim[0] if name not in shapes and shape else None
            said = first is None or not _is_open(first)
            batch = "" if first is None or said else first.dim_param or "N"
            call = Call("Input", self._opset, {"shape": shape, "batch": batch})
            yield Layer(name, "onnx", (), (name,), call, Location(str(self._path)))

    def _shape(self, given: Any, where: str) -> Shape:
        parts = given.split(",") if isinstance(given, str) else given
        try:
            return tuple(int(part) for part in parts)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{where}: {given!r} is not a shape (valid: like 1,3,224,224)") from error

    def _hint(self, overrides: Mapping[str, Any]) -> str:
        """Return advice for the case that an input's open extents, which are 1, are too
        small for a layer."""
        for value in self._model.graph.input:
            dims = value.type.tensor_type.shape.dim
            if f"input.{value.name}" not in overrides and any(map(_is_open, dims[1:])):
                shape = ",".join(d.dim_param or "?" if _is_open(d) else str(d.dim_value) for d in dims)
                return (
                    f" (input {value.name!r} is {shape}, with its open extents set to 1: set them by "
                    f"the override input.{value.name})"
                )
        return ""

    def _layers(self, known: Mapping[str, onnx.TensorProto], hint: str = "") -> Iterator[Layer]:
        nodes = Nodes(self._model.graph, self._opset, self._path, known, hint)
        return nodes.layers()


def _is_open(dim: Any) -> bool:
    """Return whether the file leaves an extent open; older exporters write -1 for that."""
    return not dim.HasField("dim_value") or dim.dim_value == -1


def _declared(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(1 if _is_open(dim) else dim.dim_value for dim in shape.dim)
