"""The base class of layers written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Layer:
    """A layer of type Python: ``python_param { module: "..." layer: "..." param_str: "..." }``.

    ``bottom`` and ``top`` are lists of blobs with ``data``, ``diff``, ``shape`` and ``reshape``.
    ``blobs`` are the layer's parameters; ``setup`` creates them with ``self.blobs.add_blob(*shape)``.
    Such layers run only after ``allow_python_layers``, or on a runtime with the plugin python_layer.
    """

    type = "Python"
    param_str = param_str_ = ""
    phase = 0
    blobs: Any = ()

    def setup(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Set up the layer. Called once, before the first ``reshape``."""

    def reshape(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Set the shapes of the tops. Called before every forward pass."""
        raise NotImplementedError(f"{type(self).__name__} has no reshape")

    def forward(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Write the data of the tops."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(
        self, top: Sequence[Any], propagate_down: Sequence[bool], bottom: Sequence[Any]
    ) -> None:
        """Write the diffs of the bottoms that ``propagate_down`` asks for, and of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")
