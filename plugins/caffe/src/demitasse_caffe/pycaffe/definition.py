"""A net's file as scripts ask for it: by phase, level and stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demitasse import NetDefinition, Runtime
from demitasse_caffe.net import define, read_net, state_of
from demitasse_caffe.pycaffe.runtime import PHASES
from demitasse_caffe.schema import schema


def read_definition(
    runtime: Runtime, path: str | Path, phase: int, level: int, stages: Sequence[str]
) -> tuple[NetDefinition, bool]:
    """A net's layers, and whether the file wants the gradients of all blobs (force_backward). Raises
    ModelError with file and line."""
    path = Path(path)
    if not path.is_file():
        runtime.read(path)  # raises with the nearest name
    messages = schema(runtime.layer_types)
    net = read_net(path, messages)
    own = messages.message("NetState")
    own.level = level
    own.stage.extend(stages)
    state = state_of(net, PHASES[phase], messages, own)
    return define(net, state, messages), bool(net.message.force_backward)


def has_loss(definition: NetDefinition, runtime: Runtime) -> bool:
    """Whether some layer's top counts in the loss."""
    usual = {name: getattr(kind, "loss_weight", 0.0) for name, kind in runtime.layer_types.items()}
    return any(any(layer.loss_weights or (usual.get(layer.type, 0.0),)) for layer in definition.layers)
