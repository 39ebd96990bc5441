"""Conversion of nets and solvers: from older formats to the current one, and between text and binary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import EncodeError

from demitasse import Location, ModelError, Runtime
from demitasse_caffe.binary import NO_OUTLINE, binary_kind, has_weights, parse_binary
from demitasse_caffe.net import net_file
from demitasse_caffe.outline import Outline
from demitasse_caffe.reader import BINARY, WEIGHTS
from demitasse_caffe.schema import Schema, is_repeated, schema
from demitasse_caffe.text import not_a_model, parse, read_text, which
from demitasse_caffe.upgrade import upgrade_solver
from demitasse_caffe.whole_file import write_whole

TEXT = (".prototxt", ".pbtxt")
_NETS = ("net_param", "train_net_param", "test_net_param")


@dataclass
class _Source:
    """A file as a message in the current format, and what was noticed while reading it."""

    kind: str
    message: Any
    notes: list[str] = field(default_factory=list)


def convert_model(runtime: Runtime, source: str | Path, target: str | Path) -> dict[str, Any]:
    """Write the net or solver of ``source`` to ``target`` in the current format: as text for the
    suffixes .prototxt and .pbtxt, as a binary message for .binarynet, .binaryproto and .pb.

    Return ``kind`` (net or solver), ``layers``, ``upgraded`` (whether it was in an older format) and
    ``notes``: sentences about what the new file lacks. Raise ModelError.
    """
    source, target = Path(source), Path(target)
    if target.suffix not in (*TEXT, *BINARY):
        raise ModelError(
            f"{target}: this is not a suffix of nets or solvers (text: {', '.join(TEXT)}; binary: "
            f"{', '.join(BINARY)})"
        )
    if source.name.endswith(WEIGHTS) and source.suffix != ".caffemodel":
        raise ModelError(f"{source}: holds weights; the net is in a .prototxt")
    if source.name.endswith(_others(runtime)):
        raise ModelError(
            f"{source}: is not one of Caffe's files, and only Caffe's nets and solvers are written to "
            f"{target.suffix}; weights of any format are written to a .caffemodel"
        )
    messages = schema(runtime.layer_types)
    read = _read_binary if _is_binary(source) else _read_text
    found = read(source, messages)
    upgraded = _upgrade(found, source, messages)
    _write(found, target)
    nets = [found.message] if found.kind == "NetParameter" else list(_nets_of(found.message))
    return {
        "kind": "net" if found.kind == "NetParameter" else "solver",
        "layers": sum(len(net.layer) for net in nets),
        "upgraded": upgraded,
        "notes": found.notes,
    }


def _others(runtime: Runtime) -> tuple[str, ...]:
    """Return the suffixes of model files that other plugins read."""
    plugins = [plugin for plugin in runtime.composition.plugins if plugin.name != "caffe"]
    roles = [plugin.roles.get("model_reader", {}) for plugin in plugins]
    return tuple(suffix for role in roles for suffix in role.get("suffixes", ()))


def _is_binary(path: Path) -> bool:
    return path.name.endswith((*BINARY, ".caffemodel"))


def _read_text(path: Path, messages: Schema) -> _Source:
    text = read_text(path)
    outline = Outline(text)
    kind = which(outline, messages)
    if kind is None:
        raise ModelError(not_a_model(path, outline, messages))
    # Fields that only a fork has are rejected here instead of left out: they would be lost.
    message = parse(path, text, outline, kind, messages, strict=True)
    notes = [*(["comments are not kept"] if "#" in text else []), *outline.notes]
    return _Source(kind, message, notes)


def _read_binary(path: Path, messages: Schema) -> _Source:
    kind = binary_kind(path)
    if kind not in ("NetParameter", "SolverParameter"):
        raise ModelError(f"{path}: is neither a net nor a solver")
    message, outline = parse_binary(path, kind, messages)
    found = _Source(kind, message, [*outline.notes])
    if kind == "NetParameter" and has_weights(path):
        found.notes.append("the weights are left in the old file")
        if not any(layer.type for layer in message.layer) and not message.layers:
            raise ModelError(f"{path}: holds weights only; its layers have no types")
    return found


def _upgrade(found: _Source, path: Path, messages: Schema) -> bool:
    """Bring the message into the current format; return whether that changed it."""
    before = found.message.SerializeToString(deterministic=True)
    if found.kind == "NetParameter":
        found.message = net_file(path, found.message, NO_OUTLINE, messages).message
    else:
        upgrade_solver(found.message, Location(str(path)))
        for net in _nets_of(found.message):
            net.CopyFrom(net_file(path, net, NO_OUTLINE, messages).message)
    return bool(found.message.SerializeToString(deterministic=True) != before)


def _write(found: _Source, target: Path) -> None:
    try:
        if target.suffix in TEXT:
            data = text_format.MessageToString(found.message, as_utf8=True).encode()
        else:
            data = found.message.SerializeToString(deterministic=True)
    except (EncodeError, ValueError, UnicodeError) as error:
        raise ModelError(f"{target}: cannot be written: {error}") from error
    write_whole(target, data)


def _nets_of(solver: Any) -> Iterator[Any]:
    for name in _NETS:
        field = solver.DESCRIPTOR.fields_by_name[name]
        if is_repeated(field):
            yield from getattr(solver, name)
        elif solver.HasField(name):
            yield getattr(solver, name)
