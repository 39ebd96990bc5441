"""The merged vocabulary and layer types of all composed plugins; no two of these may share a name."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING

from demitasse import PluginError
from demitasse.operations import VOCABULARY, Operation, extend
from demitasse_contracts.words import check_word

if TYPE_CHECKING:
    from demitasse import Composition, LayerType


def gathered_words(composition: Composition) -> Mapping[str, Operation]:
    """Return the core's vocabulary with the words that plugins add. Raises PluginError if a word breaks
    its contract."""
    words, owners = VOCABULARY, dict[str, str]()
    for plugin, hook in composition.serving("operations"):
        added = hook()
        for word in added:
            if (other := owners.setdefault(word.name, plugin)) != plugin:
                both = f"plugins {other!r} and {plugin!r} both define operation {word.name!r}"
                raise PluginError(f"{both}; rename one, or leave one of the plugins out")
        words = extend(words, added, plugin)
        for word in added:
            check_word(word, words, plugin)
    return words


def gathered_layer_types(composition: Composition) -> dict[str, LayerType]:
    """Return the layer types of all plugins, by name. Raises PluginError if two plugins define the same
    type, if a type's name or parameters are not valid, and if a manifest lists other types than the
    plugin defines."""
    types, owners = dict[str, "LayerType"](), dict[str, str]()
    for plugin, hook in composition.serving("layer_types"):
        for kind in hook():
            where = f"plugin {plugin!r}: layer type {kind.name!r}"
            if not isinstance(kind.name, str) or not kind.name.isidentifier():
                raise PluginError(
                    f"{where}: name = {kind.name!r} (valid: letters and digits, as in Swish)"
                )
            given = getattr(kind, "parameters", None)
            if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
                valid = "valid: a table of defaults by name, {} for none"
                raise PluginError(f"{where}: parameters = {given!r:.99} ({valid})")
            if not isinstance(weight := getattr(kind, "loss_weight", 0.0), Real):
                raise PluginError(
                    f"{where}: loss_weight = {weight!r:.99} (valid: a number, 1.0 for a loss)"
                )
            if (other := owners.setdefault(kind.name, plugin)) != plugin:
                both = f"plugins {other!r} and {plugin!r} both define layer type {kind.name!r}"
                raise PluginError(f"{both}; leave one of them out")
            if kind.name in types:
                raise PluginError(f"{where} is defined twice; give each its own name")
            types[kind.name] = kind
    for manifest in composition.plugins:
        listed = {*manifest.roles.get("layer_types", {}).get("types", ())}
        given = {name for name, plugin in owners.items() if plugin == manifest.name}
        if listed and listed != given:
            told = ", ".join(sorted(listed - given)) or "none"
            more = ", ".join(sorted(given - listed)) or "none"
            raise PluginError(
                f"plugin {manifest.name!r}: its plugin.toml lists other layer types than it defines: "
                f"only listed: {told}, only defined: {more}; list those that it defines"
            )
    return types
