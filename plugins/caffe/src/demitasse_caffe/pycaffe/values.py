"""The live arrays that a net's blobs are of."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe.blob import ParameterBlob
from demitasse_caffe.pycaffe.turns import in_turn


class Values:
    """What the blobs of a net with so many ``layers`` ask for. It knows neither net nor blobs, so that
    memory goes with the last of them. ``unused`` are gradients of what the net computes none of."""

    def __init__(self, engine: Any, layers: int) -> None:
        self._engine, self._layers = engine, layers
        self.turn = threading.RLock()
        self._pending: dict[str, np.ndarray] = {}
        self._left: dict[str, np.ndarray] = {}
        self.unused: dict[Any, np.ndarray] = {}

    @in_turn
    def blob_data(self, name: str) -> np.ndarray:
        """The live values of a blob; those of an input whose new shape does not fit yet by itself."""
        if self._pending:
            try:
                self.settle()
            except ModelError:
                # Other inputs may follow, or only layers that can take it will be run; what does not fit
                # then is said at reshape() or forward().
                if name in self._pending:
                    return self._pending[name]
        if name in self._left:
            return self._left[name]
        values: np.ndarray = self._engine.walk.data(name)
        return values

    @in_turn
    def blob_diff(self, name: str) -> np.ndarray:
        """The live gradient of a blob; zeros of its own where the net computes none."""
        self.differentiate()
        found: np.ndarray | None = None if name in self._left else self._engine.walk.diff(name)
        return (
            self._zeros(self._first_name(name), self.blob_data(name).shape) if found is None else found
        )

    @in_turn
    def reshape_blob(self, name: str, shape: tuple[int, ...]) -> None:
        """Note an input's new shape."""
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
        """The blob of a layer's parameter."""

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
        """Plan gradients too, for a net that has only run forward until now. Arrays of its blobs that a
        script holds are its own no longer; the values are the same."""
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
        """Plan for the shapes that inputs were given. Where a layer behind ``last`` cannot take them the
        net ends before it, and the blobs behind keep what they are."""
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
        """The first blob of the same memory, as a layer's bottom is that passes its values on."""
        blobs = self._engine.graph.blobs
        mine = blobs.get(name)
        return name if mine is None else next(other for other, each in blobs.items() if each is mine)

    def _zeros(self, key: Any, shape: tuple[int, ...]) -> np.ndarray:
        kept = self.unused.get(key)
        if kept is None or kept.shape != shape:
            self.unused[key] = kept = np.zeros(shape, np.float32)
        return kept
