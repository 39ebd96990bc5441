"""Reading a net's file the way scripts ask for it: by phase, level and stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demitasse import ModelError, NetDefinition, Runtime
from demitasse_caffe.net import define, read_net, state_of
from demitasse_caffe.pycaffe.errors import also
from demitasse_caffe.pycaffe.runtime import PHASES
from demitasse_caffe.schema import schema


def read_definition(
    runtime: Runtime, path: str | Path, phase: int, level: int, stages: Sequence[str]
) -> tuple[NetDefinition, bool]:
    """Return a net's layers, and whether the file asks for gradients that no learned parameter needs: of
    all blobs by force_backward, or of some by propagate_down. Raise ModelError with file and line; if
    the file does not exist, the error is also a RuntimeError."""
    path = Path(path)
    if not path.is_file():
        try:
            runtime.read(path)  # raises an error that suggests the nearest existing name
        except ModelError as error:
            also(error, RuntimeError)
            raise
    messages = schema(runtime.layer_types)
    net = read_net(path, messages)
    own = messages.message("NetState")
    own.phase, own.level = phase, level  # these override the state in the file
    own.stage.extend(stages)
    state = state_of(net, PHASES[phase], messages, own)
    definition = define(net, state, messages)
    return definition, bool(net.message.force_backward) or reaches_samples(definition)


def reaches_samples(definition: NetDefinition) -> bool:
    """Return whether a layer's propagate_down asks for the gradient of an input or of samples."""
    given = {top for layer in definition.layers if not layer.bottoms for top in layer.tops}
    return any(
        wanted and bottom in given
        for layer in definition.layers
        for bottom, wanted in zip(
            layer.bottoms, getattr(layer.parameters, "propagate_down", ()), strict=False
        )
    )


def has_loss(definition: NetDefinition, runtime: Runtime) -> bool:
    """Return whether a layer's top contributes to the loss."""
    usual = {name: getattr(kind, "loss_weight", 0.0) for name, kind in runtime.layer_types.items()}
    return any(any(layer.loss_weights or (usual.get(layer.type, 0.0),)) for layer in definition.layers)
