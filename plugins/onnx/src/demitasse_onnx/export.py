"""Export of a net and its weights as an ONNX model, based on the operations that make up the net."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from onnx import numpy_helper

from demitasse import (
    DemitasseError,
    Graph,
    ModelError,
    Net,
    NetDefinition,
    Node,
    Runtime,
    Tensor,
    replacing,
    unknown,
)
from demitasse_onnx.batches import batch_axes
from demitasse_onnx.call import Call

LARGEST_FILE = 2**31 - 1
"""The maximum size of a protobuf message in bytes. Python's library writes longer ones,
which no other reads."""

OPSETS = (13, 22)
"""The oldest and the newest version of ONNX's operators that can be written."""


def export_onnx(
    runtime: Runtime,
    net_path: str | Path,
    out_path: str | Path,
    *,
    weights: str | Path | Sequence[str | Path] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    opset: int = 17,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Write the test phase of a net as an ONNX model. Either the whole file is written or nothing.

    ``net_path`` is a net whose inputs the caller fills (a deploy net), ``weights`` one path or several.
    ``input_shapes`` replace, by name, the inputs' shapes in the file. An ONNX model that accepts any
    number of samples keeps doing so, unless something in the net depends on that number. The exported
    model computes the same as the net, up to the rounding of its kernels. Raise ModelError, for example
    if an operation has no exact equivalent in ONNX.
    """
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ModelError(f"opset {opset} cannot be written (valid: {OPSETS[0]} to {OPSETS[1]})")
    net = runtime.net(net_path, weights=weights, phase="test", retain="all", overrides=overrides)
    try:
        if net.graph.feeds:
            layers = ", ".join(repr(feed.layer) for feed in net.graph.feeds)
            raise ModelError(
                f"{net_path}: the net reads its own samples (layer {layers}), which an ONNX model "
                f"cannot do; export its deploy net, which takes them as input"
            )
        if input_shapes:
            net.forward(**_blank(net.graph, input_shapes, net_path))
        opened = _opened(net.definition, input_shapes or {})
        model = _of_any_number(net, str(net_path), opset, opened) if opened else None
        if model is None:
            exporter = Exporter(net.graph, net.params, str(net_path), opset)
            model = exporter.model(net.definition.name)
    finally:
        net.close()
    path = Path(out_path)
    _write_whole(path, model)
    return path


def convert_to_onnx(
    runtime: Runtime,
    source: str | Path,
    target: str | Path,
    weights: str | Path | Sequence[str | Path] | None = None,
) -> dict[str, Any]:
    """Do what ``export_onnx`` does, for ``demitasse convert``. Return what was done as ``kind``,
    ``layers``, ``upgraded`` and ``notes``."""
    path = export_onnx(runtime, source, target, weights=weights)
    own = bool(weights) or Path(source).suffix == ".onnx"  # a model contains its weights
    notes = [] if own else ["no weights were given: the model has those that the net's fillers draw"]
    layers = len(runtime.read(path).net("test").layers)
    return {"kind": "net", "layers": layers, "upgraded": False, "notes": notes}


def _opened(definition: NetDefinition, given: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return, for each input with an open number of samples, the ONNX model's name for that number."""
    calls = {layer.tops[0]: layer.parameters for layer in definition.layers if layer.tops}
    return {
        name: call.attributes["batch"]
        for name, call in calls.items()
        if isinstance(call, Call) and call.attributes.get("batch") and call.operator == "Input"
        if name not in given
    }


def _of_any_number(
    net: Net, where: str, opset: int, opened: Mapping[str, str]
) -> onnx.ModelProto | None:
    """Return a model for any number of samples: the one written for two samples, if the one for three is
    equal. Return None if they differ; the net is then restored."""
    declared = {name: tensor.shape for name, tensor in net.graph.inputs.items()}
    made = []
    try:
        for count in (2, 3):
            shapes = {
                name: (count, *shape[1:]) if name in opened else shape
                for name, shape in declared.items()
            }
            net.forward(**_blank(net.graph, shapes, where))
            exporter = Exporter(net.graph, net.params, where, opset, opened)
            made.append(exporter.model(net.definition.name))
    except DemitasseError:
        made.clear()  # not for that many samples, or not at all, as the export for one reports
    if made and made[0] == made[1]:
        return made[0]
    net.forward(**_blank(net.graph, declared, where))
    return None


def _blank(graph: Graph, shapes: Mapping[str, Sequence[int]], path: object) -> dict[str, np.ndarray]:
    """Return zeros of the given shapes; a net that receives them plans itself for these shapes."""
    for name in shapes:
        if name not in graph.inputs:
            raise ModelError(unknown("input", name, graph.inputs, path))
    return {
        name: np.broadcast_to(np.float32(0), tuple(int(extent) for extent in shape))
        for name, shape in shapes.items()
    }


class Exporter:
    """Writes a graph's operations as nodes, in order. The functions of ``demitasse_onnx.words``
    call its methods."""

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, Sequence[np.ndarray]],
        where: str,
        opset: int,
        opened: Mapping[str, str] | None = None,
    ) -> None:
        self.opset = opset
        self._batches = batch_axes(graph)
        self._opened = opened or {}
        self._graph, self._where = graph, where
        self._nodes: list[onnx.NodeProto] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._names: dict[Tensor, str] = {}
        self._taken: set[str] = set()
        self._labels: set[str] = set()
        self._known: dict[Tensor, np.ndarray] = {
            tensor: np.broadcast_to(np.asarray(value, np.float32), tensor.shape)
            for tensor, value in graph.constants.items()
        }
        for parameter in graph.parameters:
            layer, index = parameter.owners[0]
            self._known[parameter.tensor] = np.asarray(params[layer][index], np.float32)
        # A constant output is a copy, under the output's name, of a value with another name.
        self._taken |= {key for key, tensor in graph.outputs.items() if tensor in self._known}
        # Inputs get the names that users know, then the last blob of each name.
        for name, tensor in (*graph.inputs.items(), *graph.blobs.items()):
            if tensor not in self._names and name not in self._taken:
                self._names[tensor] = name
                self._taken.add(name)

    def model(self, name: str) -> onnx.ModelProto:
        """Return the whole model. Raise ModelError with the layer and the operation."""
        from demitasse_onnx.words import SEVERAL, WORDS

        readers = {tensor for node in self._graph.nodes for tensor in node.inputs if tensor is not None}
        readers |= set(self._graph.outputs.values())
        for node in self._graph.nodes:
            word = node.operation.name
            where = f"{self._where}: layer {node.layer!r}: operation {word!r}"
            if word not in WORDS:
                raise ModelError(
                    f"{where} has no form in ONNX here (supported: {', '.join(sorted(WORDS))})"
                )
            for tensor in node.outputs[1:] if node.outputs[0] is not None else ():
                if tensor in readers and word not in SEVERAL:
                    raise ModelError(f"{where}: its second result, {tensor!r}, has no form in ONNX here")
            try:
                WORDS[word](self, node)
            except ValueError as error:
                raise ModelError(f"{where}: {error}") from error
        outputs = [self._output(key, tensor) for key, tensor in self._graph.outputs.items()]
        used = {each for node in self._nodes for each in node.input}
        graph = onnx.helper.make_graph(
            self._nodes,
            name or "net",
            [
                self._info(self.name(tensor), tensor, self._opened.get(name))
                for name, tensor in self._graph.inputs.items()
            ],
            outputs,
            [
                numpy_helper.from_array(np.asarray(array, order="C"), key)
                for key, array in self._arrays.items()
                if key in used
            ],
        )
        opset = onnx.helper.make_opsetid("", self.opset)
        return onnx.helper.make_model(
            graph,
            producer_name="demitasse",
            opset_imports=[opset],
            ir_version=onnx.helper.find_min_ir_version_for([opset]),
        )

    def _output(self, key: str, tensor: Tensor) -> onnx.ValueInfoProto:
        """Return an output under its own name; a copy is added if the tensor is an input or
        has another name."""
        if self.name(tensor) != key or tensor.kind != "activation":
            free = key not in self._taken or tensor in self._known
            name = key if free else self.fresh(f"{key}.output")
            self._nodes.append(onnx.helper.make_node("Identity", [self.name(tensor)], [name]))
            self._taken.add(name)
            key = name
        axis = self.batch_axis(tensor)
        return self._info(key, tensor, next(iter(self._opened.values()), None), axis)

    def _info(
        self, name: str, tensor: Tensor, samples: str | None, axis: int | None = 0
    ) -> onnx.ValueInfoProto:
        """Return a tensor's type and shape; ``samples`` is the name of an open extent along ``axis``."""
        shape: list[int | str] = [*tensor.shape]
        if samples is not None and axis is not None:
            shape[axis] = samples
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    # What the words call.

    def fresh(self, name: str) -> str:
        """Return a name that is not in use."""
        found, number = name, 1
        while found in self._taken:
            found, number = f"{name}.{number}", number + 1
        self._taken.add(found)
        return found

    def name(self, tensor: Tensor) -> str:
        """Return the name of a tensor's value; a constant or parameter becomes an initializer."""
        if tensor not in self._names:
            self._names[tensor] = self.fresh(tensor.name)
        name = self._names[tensor]
        if tensor in self._known and name not in self._arrays:
            self._arrays[name] = self._known[tensor]
        return name

    def batch_axis(self, tensor: Tensor) -> int | None:
        """Return the axis along which a batch's samples lie, or None if there is none
        or it is unknown."""
        return self._batches.get(tensor)

    def value(self, tensor: Tensor) -> np.ndarray | None:
        """Return the numbers of a parameter or constant, or None for what the net computes."""
        return self._known.get(tensor)

    def constant(self, hint: str, array: np.ndarray) -> str:
        """Return the name of a new constant."""
        name = self.fresh(hint)
        self._arrays[name] = array
        return name

    def number(self, node: Node, hint: str, value: float) -> str:
        """Return the name of a new constant with one number."""
        return self.constant(f"{node.layer}.{hint}", np.array(value, np.float32))

    def emit(
        self,
        node: Node,
        operator: str,
        inputs: Sequence[str],
        last: bool | Tensor = False,
        **attributes: Any,
    ) -> str:
        """Add an operator's call and return the name of its result. If ``last`` is true, the result is
        the node's first output; if it is a tensor, that output; otherwise it gets a new name."""
        output = last if isinstance(last, Tensor) else node.outputs[0]
        assert output is not None
        result = self.name(output) if last else self.fresh(f"{node.layer}.{operator.lower()}")
        # The last node of a layer gets the layer's name. Usually it has the weights, which are looked up
        # by that name.
        label, number = node.layer if last else f"{node.layer}:{operator}", 1
        while label in self._labels:
            label, number = f"{node.layer}:{operator}{number if number > 1 else ''}", number + 1
        self._labels.add(label)
        self._nodes.append(
            onnx.helper.make_node(operator, list(inputs), [result], name=label, **attributes)
        )
        return result


def _write_whole(path: Path, model: onnx.ModelProto) -> None:
    try:
        data = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{path}: the model is too large for one file: {error}") from error
    if len(data) > LARGEST_FILE:
        raise ModelError(
            f"{path}: the model is too large for one file: {len(data):,} bytes, at most "
            f"{LARGEST_FILE:,}; "
            f"ONNX keeps larger models' numbers in other files, which can be read here but not written"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
