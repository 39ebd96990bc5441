"""Caffe's files, opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demitasse import LayerType, ModelError, ModelReader, NetDefinition, Solver, Weights
from demitasse_caffe.net import check_phase, define, net_file, state_of
from demitasse_caffe.overrides import Overrides
from demitasse_caffe.paths import hint
from demitasse_caffe.schema import schema
from demitasse_caffe.solver import SolverFile
from demitasse_caffe.text import Outline, not_a_model, parse, read_text, which


class NetReader:
    """A net file: serves the layers of a phase."""

    def __init__(self, path: Path, net: Any, messages: Any) -> None:
        self._path, self._net, self._schema = path, net, messages

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """The layers of a phase."""
        check_phase(phase)
        net = Overrides(overrides, self._path, solver=False).apply_to_net(self._net, phase)
        return define(net, state_of(net, phase, self._schema), self._schema)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Not in a net file."""
        raise ModelError(
            f"{self._path}: is a net; a solver is needed here (a file with net, base_lr, lr_policy)"
        )

    def weights(self) -> Weights:
        """Not in a net file."""
        raise ModelError(f"{self._path}: is a net; weights are in a .caffemodel")


class SolverReader:
    """A solver file: serves the solver, and the nets that it names."""

    def __init__(self, path: Path, solver: SolverFile) -> None:
        self._path, self._solver = path, solver

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """The layers of the solver's net in a phase."""
        check_phase(phase)
        return self._solver.net(phase, overrides)

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """The solver with its nets."""
        return self._solver.solver(overrides)

    def weights(self) -> Weights:
        """Not in a solver file."""
        raise ModelError(f"{self._path}: is a solver; weights are in a .caffemodel")


class WeightsReader:
    """A caffemodel or solver state: serves weights."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Not in a weights file."""
        raise ModelError(f"{self._path}: holds weights; the net is in a .prototxt")

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Not in a weights file."""
        raise ModelError(f"{self._path}: holds weights; the solver is in a .prototxt")

    def weights(self) -> Weights:
        """The parameters, and what a solver state adds to them."""
        from demitasse_caffe.weights import read_caffemodel, read_solverstate

        if self._path.suffix == ".solverstate":
            return read_solverstate(self._path)
        return read_caffemodel(self._path)


def open_model(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """A reader for the file, by its suffix and content. Raises ModelError with file and line."""
    if not path.is_file():
        raise ModelError(f"no such file: {path}{hint(path)}")
    if path.suffix in (".caffemodel", ".solverstate"):
        return WeightsReader(path)
    messages = schema(layer_types)
    text = read_text(path)
    outline = Outline(text)
    kind = which(outline, messages)
    if kind is None:
        if path.suffix == ".pbtxt":
            return None
        raise ModelError(not_a_model(path, outline, messages))
    message = parse(path, text, outline, kind, messages)
    if kind == "NetParameter":
        return NetReader(path, net_file(path, message, outline, messages), messages)
    return SolverReader(path, SolverFile(path, message, outline, messages))
