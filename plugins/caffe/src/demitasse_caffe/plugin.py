"""The hooks that the plugin serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from demitasse import LayerType, ModelReader, Weights, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Words that Caffe's layers need beyond the core's vocabulary."""
    from demitasse_caffe.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Caffe's layer types."""
    from demitasse_caffe.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def model_reader(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """A reader of a net, solver, weights or solver state file."""
    from demitasse_caffe.reader import open_model

    return open_model(Path(path), layer_types)


@hookimpl
def model_writer(path: Path, weights: Weights) -> None:
    """Write the parameters as a caffemodel; it has no place for solver state."""
    from demitasse_caffe.weights import write_caffemodel

    write_caffemodel(Path(path), weights)
