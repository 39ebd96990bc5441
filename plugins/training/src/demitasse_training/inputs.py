"""Arrays that a user passes as a net's inputs, checked against the net's declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse import Graph, ModelError, NetDefinition, ShapeError, host_array, unknown
from demitasse_training.finite import Finite


def given_input(
    definition: NetDefinition,
    graph: Graph,
    declared: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[Any],
    finite: Finite,
    name: str,
    value: Any,
) -> np.ndarray:
    """Return an input's value as an array of real numbers of the declared rank. If the input must be
    ``finite``, all numbers are in the range of the net's element type. Raises ModelError for an unknown
    input, and for a value that is not numeric, is NaN, or is not finite; ShapeError for another rank or
    an array without elements."""
    where = definition.location
    if name not in graph.inputs:
        raise ModelError(_no_input(definition, graph, name))
    try:
        array = host_array(value)
    except ValueError as error:
        raise ModelError(f"{where}: input {name!r} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ModelError(
            f"{where}: input {name!r} has elements of type {array.dtype} (valid: real numbers)"
        )
    if array.ndim != len(declared[name]):
        raise ShapeError(f"{where}: {against(name, array.shape, declared[name])}: the ranks must agree")
    if not array.size:
        raise ShapeError(f"{where}: {against(name, array.shape, declared[name])}: it is empty")
    if told := finite.problem(name, array):
        raise ModelError(f"{where}: input {name!r}: {told}")
    if array.dtype.kind != "f" or array.dtype.itemsize <= dtype.itemsize:
        return array
    if name not in finite.multiplied:
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        largest = np.finfo(dtype).max
        raise ModelError(
            f"{where}: input {name!r} has numbers of {array.dtype} beyond {largest:.3g}, the largest of "
            f"the net's {dtype}; scale them, or plan the net with precision='f64'"
        ) from None


def against(name: str, shape: tuple[int, ...], declared: tuple[int, ...]) -> str:
    """Return the words that compare an input's shape with the declared one, whose batch size is free."""
    inner = "".join(f", {extent}" for extent in declared[1:])
    return f"input {name!r} has shape {shape} here; declared (N{inner or ','})"


def _no_input(definition: NetDefinition, graph: Graph, name: str) -> str:
    feeding = {feed.layer for feed in graph.feeds}
    layers = (x for x in definition.layers if name in x.tops and x.name in feeding)
    layer = next(layers, None)
    if layer is None:
        return unknown("input", name, graph.inputs, definition.location)
    return (
        f"{layer.location}: blob {name!r} is not an input: layer {layer.name!r} ({layer.type}) reads it "
        f"from its data source; use a net with an Input layer (deploy) to pass arrays here, or "
        f"data={{{graph.phase!r}: {{...}}}} to give this one arrays as its samples"
    )
