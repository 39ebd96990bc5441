"""The plugins that a description names and their options: whether they are known, and where it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from demitasse import CompositionError, discover, shortened, unknown

if TYPE_CHECKING:
    from demitasse import Composition, Machine


class PluginNames(tuple[str, ...]):
    """The plugins that a description lists. ``place`` is the line of the list."""

    place: str


class PluginOptions(dict[str, Any]):
    """One plugin's options by name. ``places`` has the lines of a description that give them, by name,
    and under an empty name the line of the table."""

    def __init__(self, given: Mapping[str, Any], places: Mapping[str, str]) -> None:
        super().__init__(given)
        self.places = dict(places)


def option_place(options: Mapping[str, Any], plugin: str, key: str = "", origin: str = "") -> str:
    """Return where an option of a plugin is given, for messages: ``FILE:LINE: options.PLUGIN`` if a
    description gives it; if it is not known what does, with ``origin`` in front."""
    place = options.places.get(key) if isinstance(options, PluginOptions) else origin
    return f"{place}: options.{plugin}" if place else f"options.{plugin}"


def gathered_options(
    machine: Machine, composition: Composition, given: Mapping[str, Mapping[str, Any]]
) -> dict[str, PluginOptions]:
    """Return each composed plugin's options: the description's, overridden by those ``given``. Raises
    CompositionError if a plugin is not composed, an option does not exist, or a value is not one that
    the plugin's manifest lists."""
    _check_mapping(given)
    for options in given.values():
        _check_mapping(options)
    known = {manifest.name: manifest.options for manifest in composition.plugins}
    values = {manifest.name: manifest.values for manifest in composition.plugins}
    for name, options in (*machine.options.items(), *given.items()):
        place = option_place(options, name)
        if name not in known:
            where = place.removesuffix(f"options.{name}").removesuffix(": ") or None
            told = unknown("plugin in options", name, known, where)
            if any(name == manifest.name for manifest in discover()):
                remedy = f"add it to the plugins (--plugins +{name}, or the description's list)"
                before = f"{where}: " if where else ""
                told = f"{before}plugin {name!r} in options is installed, but not composed; {remedy}"
            raise CompositionError(told)
        for key in () if "*" in known[name] else sorted({*options} - {*known[name]}):
            raise CompositionError(unknown("option", key, known[name], option_place(options, name, key)))
        for key, valid in values[name].items():
            if key in options and options[key] not in valid:
                told = unknown(key, str(options[key]), valid, option_place(options, name, key))
                raise CompositionError(told)
    return {name: _joined(machine.options.get(name, {}), given.get(name, {})) for name in known}


def _check_mapping(given: Any) -> None:
    if not isinstance(given, Mapping):
        valid = "valid: {plugin: {option: value}}"
        raise CompositionError(f"options: {shortened(given, quoted=True)} is not a mapping ({valid})")


def _joined(described: Mapping[str, Any], given: Mapping[str, Any]) -> PluginOptions:
    places = described.places if isinstance(described, PluginOptions) else {}
    return PluginOptions({**described, **given}, {k: v for k, v in places.items() if k not in given})
