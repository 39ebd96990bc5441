"""The base of layers that are written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Layer:
    """A layer of type Python: ``python_param { module: "..." layer: "..." param_str: "..." }``.

    ``bottom`` and ``top`` are lists of blobs (``data``, ``diff``, ``shape``, ``reshape``), ``blobs`` the
    layer's parameters (``self.blobs.add_blob(*shape)`` in ``setup``). Such layers run only where
    ``allow_python_layers`` (or a runtime with the plugin python_layer) lets them.
    """

    type = "Python"
    param_str = param_str_ = ""
    phase = 0
    blobs: Any = ()

    def setup(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Called once, before the first ``reshape``."""

    def reshape(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Give the tops their shapes; called before every forward."""
        raise NotImplementedError(f"{type(self).__name__} has no reshape")

    def forward(self, bottom: Sequence[Any], top: Sequence[Any]) -> None:
        """Write the tops' data."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(
        self, top: Sequence[Any], propagate_down: Sequence[bool], bottom: Sequence[Any]
    ) -> None:
        """Write the diffs of the bottoms that ``propagate_down`` asks for, and of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")
