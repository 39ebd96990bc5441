"""The live arrays behind a net's blobs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe.blob import ParameterBlob
from demitasse_caffe.pycaffe.turns import in_turn


class Values:
    """The arrays that the blobs of a net with ``layers`` layers ask for. The object refers to neither
    the net nor its blobs, so that memory is freed with the last of them. ``unused`` holds the zero
    gradients of blobs and parameters for which the net computes none."""

    def __init__(self, engine: Any, layers: int) -> None:
        self._engine, self._layers = engine, layers
        self.turn = threading.RLock()
        self._pending: dict[str, np.ndarray] = {}
        self._left: dict[str, np.ndarray] = {}
        self.unused: dict[Any, np.ndarray] = {}

    @in_turn
    def blob_data(self, name: str) -> np.ndarray:
        """Return the live values of a blob. An input whose new shape does not fit the net yet has an
        array of its own."""
        if self._pending:
            try:
                self.settle()
            except ModelError:
                # The script may reshape other inputs next, or run only layers that can take the shape.
                # If it still does not fit then, reshape() or forward() raises the error.
                if name in self._pending:
                    return self._pending[name]
        if name in self._left:
            return self._left[name]
        values: np.ndarray = self._engine.walk.data(name)
        return values

    @in_turn
    def blob_diff(self, name: str) -> np.ndarray:
        """Return the live gradient of a blob; a separate array of zeros if the net computes none."""
        self.differentiate()
        found: np.ndarray | None = None if name in self._left else self._engine.walk.diff(name)
        return (
            self._zeros(self._first_name(name), self.blob_data(name).shape) if found is None else found
        )

    @in_turn
    def reshape_blob(self, name: str, shape: tuple[int, ...]) -> None:
        """Record the new shape of an input."""
        inputs = self._engine.graph.inputs
        if name in inputs:
            self._pending.pop(name, None)
            if inputs[name].shape != shape:
                self._pending[name] = np.zeros(shape, np.float32)
        elif shape != (mine := self.blob_data(name).shape):
            raise ShapeError(
                f"blob {name!r} is not an input: its shape {mine} follows from those of the inputs "
                f"({', '.join(inputs) or 'none'}); asked for {shape}"
            )

    def parameter(self, layer: str, number: int) -> ParameterBlob:
        """Return the blob of a layer's parameter."""

        def data() -> np.ndarray:
            array: np.ndarray = self._engine.walk.params[layer][number]
            return array

        def diff() -> np.ndarray:
            self.differentiate()
            found = self._engine.walk.gradients.get((layer, number))
            return self._zeros((layer, number), data().shape) if found is None else found

        return ParameterBlob(f"parameter {number} of layer {layer!r}", data, diff)

    @in_turn
    def differentiate(self) -> None:
        """Plan gradients as well, for a net that has so far only run forward. Arrays of its blobs that a
        script already holds no longer belong to the net; the values are carried over."""
        if self._engine.backward:
            return
        before = {name: self.blob_data(name).copy() for name in self._engine.graph.blobs}
        self._engine.plan_again("every blob")
        walk = self._engine.walk
        walk.forward(again=True)
        for name, values in before.items():
            walk.data(name)[...] = values

    @in_turn
    def settle(self, last: int | None = None) -> None:
        """Plan for the new shapes of the inputs. If a layer after ``last`` cannot take them, the net
        ends before that layer, and the blobs after it keep their values."""
        count, planned = self._layers, len(self._engine.walk.layers)
        needed = count if last is None else last + 1
        if not self._pending and needed <= planned:
            return
        shapes = {name: array.shape for name, array in self._pending.items()}
        try:
            self._engine.reshape(shapes)
        except ModelError:
            if needed == count:
                raise
            blobs = self._engine.graph.blobs
            self._left |= {name: self._engine.walk.data(name).copy() for name in blobs}
            self._engine.reshape(shapes, needed)
        made = self._engine.graph.blobs
        self._left = {name: array for name, array in self._left.items() if name not in made}
        for name, array in self._pending.items():
            self._engine.walk.data(name)[...] = array
        self._pending = {}

    def _first_name(self, name: str) -> str:
        """Return the first name of a blob's tensor: a layer that passes its values on gives its top the
        same tensor as its bottom."""
        blobs = self._engine.graph.blobs
        mine = blobs.get(name)
        return name if mine is None else next(other for other, each in blobs.items() if each is mine)

    def _zeros(self, key: Any, shape: tuple[int, ...]) -> np.ndarray:
        kept = self.unused.get(key)
        if kept is None or kept.shape != shape:
            self.unused[key] = kept = np.zeros(shape, np.float32)
        return kept
