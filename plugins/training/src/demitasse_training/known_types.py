"""A check that the types of a net's layers are known; its error says what to do."""

from __future__ import annotations

from collections.abc import Collection

from demitasse import Layer, ModelError, NetDefinition, discover, shortened, uninstalled, unknown

_LISTED = "the READMEs of plugins with layer types list"


MOST_TOLD = 4000
"""How many characters of a layer an error shows: a string in a file may be as long as the file."""


def check_types(net: NetDefinition, known: Collection[str]) -> None:
    """Raise ModelError for a layer of an unknown type, before any layer is built: missing samples would
    be the lesser problem. A type that no installed plugin provides is named first, because adding a
    plugin for the others would not be enough."""
    first: dict[str, Layer] = {}
    for layer in net.layers:
        if layer.type not in known:
            first.setdefault(layer.type, layer)
    if not first:
        return
    manifests = discover()
    installed = {
        name: manifest
        for manifest in manifests
        for name in manifest.roles.get("layer_types", {}).get("types", ())
    }
    kind, layer = min(first.items(), key=lambda item: item[0] in installed)
    others = [f"{name!r} (line {each.location.line})" for name, each in first.items() if name != kind]
    also = f"; also unknown: {', '.join(others)}" if others else ""
    help_with = "; a plugin adds a type with the layer_types hook (docs/plugins.md)"
    if kind in installed:
        told, manifest = f"unknown layer type {kind!r}", installed[kind]
        help_with = f"; the installed plugin {manifest.name!r} has it, but " + (
            f"cannot be used: {manifest.problem}"
            if manifest.problem
            else f"is not composed: add it to the plugins (+{manifest.name}): {manifest.summary}"
        )
    elif kind in net.foreign:
        told = (
            f"unknown layer type {kind!r}: it belongs to {net.foreign[kind]} and is not one of the "
            f"{len(known)} types that are composed, which {_LISTED}"
        )
    else:
        told = unknown("layer type", kind, known, rest=f"which {_LISTED}")
        help_with = uninstalled("layer_types", kind) or help_with
    broken = [f"{m.name} ({m.problem})" for m in manifests if m.problem and not m.roles]
    if broken and kind not in installed:
        help_with += f"; installed plugins that may have it, but cannot be used: {', '.join(broken)}"
    who = f"layer {shortened(layer.name, quoted=True)} ({shortened(kind)})"
    rest = shortened(f"{told}{help_with}{also}", MOST_TOLD)
    raise ModelError(f"{layer.location}: {who}: {rest}")
