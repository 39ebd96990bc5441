"""Readers for Caffe's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demitasse import LayerType, ModelError, NetDefinition, Solver, Weights, is_file, nearest_path
from demitasse_caffe.binary import binary_kind, has_weights, parse_binary
from demitasse_caffe.hdf5_file import is_hdf5
from demitasse_caffe.net import PHASES, NetFile, check_phase, define, net_file, state_of
from demitasse_caffe.outline import Outline
from demitasse_caffe.overrides import Overrides
from demitasse_caffe.schema import Schema, schema
from demitasse_caffe.solver import SolverFile
from demitasse_caffe.text import not_a_model, parse, read_text, which

WEIGHTS = (".caffemodel", ".solverstate", ".caffemodel.h5", ".solverstate.h5")
TEXT = (".prototxt", ".pbtxt")
BINARY = (".binaryproto", ".binarynet", ".pb")


class NetReader:
    """A net file: provides the layers of a phase."""

    def __init__(self, path: Path, net: Any, messages: Any) -> None:
        self._path, self._net, self._schema = path, net, messages

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Return the layers of a phase."""
        check_phase(phase)
        net = Overrides(overrides, self._path, solver=False).apply_to_net(self._net, phase)
        asked = self._schema.message("NetState")
        asked.phase = PHASES[phase]  # overrides the file's own state, as in Caffe
        return define(net, state_of(net, phase, self._schema, asked), self._schema)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Raise ModelError: a net file has no solver."""
        raise ModelError(
            f"{self._path}: is a net; a solver is needed here (a file with net, base_lr, lr_policy)"
        )

    def weights(self) -> Weights:
        """Raise ModelError: a net file has no weights."""
        raise ModelError(f"{self._path}: is a net; weights are in a .caffemodel")


class SolverReader:
    """A solver file: provides the solver and the nets that it names."""

    def __init__(self, path: Path, solver: SolverFile) -> None:
        self._path, self._solver = path, solver

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Return the layers of the solver's net in a phase."""
        check_phase(phase)
        return self._solver.net(phase, overrides)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Return the solver with its nets."""
        return self._solver.solver(overrides)

    def weights(self) -> Weights:
        """Raise ModelError: a solver file has no weights."""
        raise ModelError(f"{self._path}: is a solver; weights are in a .caffemodel")


class WeightsReader:
    """A caffemodel or solver state: provides weights, and the net if a caffemodel contains one."""

    def __init__(self, path: Path, layer_types: Mapping[str, LayerType]) -> None:
        self._path, self._layer_types = path, layer_types

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Return the layers of the net that Caffe stored with its weights."""
        messages = schema(self._layer_types)
        return NetReader(self._path, self.stored_net(messages), messages).net(phase, overrides)

    def stored_net(self, messages: Schema) -> NetFile:
        """Return the net in the current format. Raise ModelError if the file has none."""
        kind = None if is_hdf5(self._path) or _is_state(self._path) else binary_kind(self._path)
        if kind == "NetParameter":
            net = _binary_net(self._path, messages)
            if any(layer.type for layer in net.message.layer):
                return net
        raise ModelError(f"{self._path}: holds weights; the net is in a .prototxt")

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Raise ModelError: a weights file has no solver."""
        raise ModelError(f"{self._path}: holds weights; the solver is in a .prototxt")

    def weights(self) -> Weights:
        """Return the parameters, together with what a solver state adds to them."""
        from demitasse_caffe.hdf5_weights import read_hdf5_weights
        from demitasse_caffe.solverstate import read_solverstate
        from demitasse_caffe.weights import read_caffemodel

        if _is_state(self._path):
            return read_solverstate(self._path)
        return read_hdf5_weights(self._path) if is_hdf5(self._path) else read_caffemodel(self._path)


Reader = NetReader | SolverReader | WeightsReader


def open_model(path: Path, layer_types: Mapping[str, LayerType]) -> Reader | None:
    """Return a reader for the file, chosen by its suffix and content, or None if the file is another
    plugin's. Raise ModelError with file and line."""
    if not is_file(path):
        raise ModelError(f"no such file: {path}{nearest_path(path)}")
    if path.name.endswith(WEIGHTS):
        return WeightsReader(path, layer_types)
    if path.suffix not in (*TEXT, *BINARY) and is_hdf5(path):
        return WeightsReader(path, layer_types) if _is_weights_in_hdf5(path) else None
    messages = schema(layer_types)
    if path.suffix not in (*TEXT, *BINARY):
        return _open_unnamed(path, messages, layer_types)
    if path.suffix in BINARY:
        return _open_binary(path, messages, layer_types)
    text = read_text(path)
    outline = Outline(text)
    kind = which(outline, messages)
    if kind is None:
        if path.suffix == ".pbtxt":
            return None
        raise ModelError(not_a_model(path, outline, messages))
    return _open_text(path, text, outline, kind, messages)


def _open_text(path: Path, text: str, outline: Outline, kind: str, messages: Schema) -> Reader:
    message = parse(path, text, outline, kind, messages)
    if kind == "NetParameter":
        return NetReader(path, net_file(path, message, outline, messages), messages)
    return SolverReader(path, SolverFile(path, message, outline, messages))


def _open_unnamed(path: Path, messages: Schema, layer_types: Mapping[str, LayerType]) -> Reader | None:
    """Open a file whose suffix says nothing; Caffe itself does not look at names. Text with the fields
    of a net or a solver is read as such, and a file that holds weights as weights. Return None for
    anything else."""
    with path.open("rb") as file:
        start = file.read(4096)
    if b"\0" not in start:
        try:
            text = read_text(path)
        except ModelError:
            return None
        outline = Outline(text)
        kind = which(outline, messages)
        return None if kind is None else _open_text(path, text, outline, kind, messages)
    return _open_binary(path, messages, layer_types) if binary_kind(path) == "NetParameter" else None


def _open_binary(path: Path, messages: Schema, layer_types: Mapping[str, LayerType]) -> Reader | None:
    kind = binary_kind(path)
    if kind == "NetParameter":
        if has_weights(path):
            return WeightsReader(path, layer_types)
        return NetReader(path, _binary_net(path, messages), messages)
    if kind == "SolverParameter":
        return SolverReader(path, SolverFile(path, *parse_binary(path, kind, messages), messages))
    if path.suffix == ".pb":
        return None
    if kind == "BlobProto":
        from demitasse_caffe.weights import read_blob

        raise ModelError(
            f"{path}: holds one array of shape {read_blob(path).shape}, such as a mean; a layer's "
            f"transform_param names it"
        )
    raise ModelError(f"{path}: is damaged, or neither a binary net nor a binary solver")


def _binary_net(path: Path, messages: Schema) -> NetFile:
    return net_file(path, *parse_binary(path, "NetParameter", messages), messages)


def _is_state(path: Path) -> bool:
    return path.name.endswith((".solverstate", ".solverstate.h5")) or (
        path.suffix == ".h5" and not path.name.endswith(WEIGHTS) and _has_hdf5_group(path, "history")
    )


def _is_weights_in_hdf5(path: Path) -> bool:
    return _has_hdf5_group(path, "data") or _has_hdf5_group(path, "history")


def _has_hdf5_group(path: Path, name: str) -> bool:
    from demitasse_caffe.hdf5_file import open_hdf5

    if not is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return file.group(name) is not None
