"""The layer type Python."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, RandomStream, Tensor
from demitasse_python_layer.blob import LayerBlob
from demitasse_python_layer.user_layer import UserLayer


class PythonLayer:
    """A layer of the form ``python_param { module: "..." layer: "..." param_str: "..." }``.

    A layer that is planned again (for another batch size, for example) keeps its object.
    """

    name = "Python"
    parameters: Mapping[str, Any] = MappingProxyType({})
    """Empty: the type reads Caffe's own message."""
    raises = (Exception,)
    """What ``build`` may raise without being this plugin's fault: a user's layer can raise anything."""

    def __init__(self) -> None:
        self._made: dict[int, UserLayer] = {}

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit a call of the user's object, whose ``reshape`` sets the shapes of the tops. Raise
        ValueError if the module or class does not exist."""
        user = self._user(layer, graph)
        user.plan([bottom.shape for bottom in bottoms])
        message = layer.parameters
        learned = []
        for number, blob in enumerate(user.parameters):
            given = message.param[number] if number < len(message.param) else None
            learned.append(
                graph.parameter(
                    blob.shape,
                    _first_values(blob),
                    rate=float(given.lr_mult) if given is not None else 1.0,
                    decay=float(given.decay_mult) if given is not None else 1.0,
                    shared=(given.name or None) if given is not None else None,
                )
            )
        made = graph.apply("python_forward", graph.scalar("iteration"), *bottoms, *learned, layer=user)
        return made if isinstance(made, tuple) else (made,)

    def _user(self, layer: Layer, graph: GraphBuilder) -> UserLayer:
        """Return the object of a layer, which is created when the layer is first built."""
        key = id(layer)
        if key not in self._made:
            about = layer.parameters.python_param
            if not about.module or not about.layer:
                raise ValueError("python_param needs a module and a layer (the name of a class)")
            self._made[key] = UserLayer(
                about.module,
                about.layer,
                about.param_str,
                int(graph.phase == "test"),
                layer.tops,
                graph.dtype,
                f"{layer.location}: layer {layer.name!r} (Python)",
                layer.location.file if layer.location is not None else "",
                {
                    number: layer.bottoms.index(top)
                    for number, top in enumerate(layer.tops)
                    if top in layer.bottoms
                },
            )
            weakref.finalize(layer, self._made.pop, key, None)
        return self._made[key]


def _first_values(blob: LayerBlob) -> Any:
    values = blob.data.copy()

    def fill(shape: tuple[int, ...], random: RandomStream) -> np.ndarray:
        return values

    return fill
