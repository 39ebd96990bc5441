"""Composition: plugins are chosen for a reason; their options and requirements are checked at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from toy_packages import KERNELS, MACHINE, Install

import demitasse
from demitasse import (
    CompositionError,
    Level,
    Machine,
    PluginError,
    SyncSpec,
    compose,
    discover,
    hookimpl,
)


def reasons(machine: Machine = MACHINE, plugins: Any = None) -> dict[str, str]:
    """Return why each plugin is used, in order of preference."""
    with compose(machine, plugins) as runtime:
        composition = runtime.explain()
    why = {choice.plugin: choice.reason for choice in composition.choices}
    return {manifest.name: why[manifest.name] for manifest in composition.plugins}


# Options.


def test_an_option_for_a_plugin_that_is_not_there_is_refused() -> None:
    with pytest.raises(CompositionError, match="unknown plugin in options 'nul'; did you mean 'null'"):
        compose(MACHINE, ["null"], {"nul": {}})


@pytest.mark.parametrize("given", [["null"], 3, {"null": 3}, {"null": ["rate"]}])
def test_options_that_are_no_mappings_are_refused(given: Any) -> None:
    with pytest.raises(
        CompositionError, match=r"options: .* is not a mapping \(valid: \{plugin: \{option"
    ):
        compose(MACHINE, ["null"], given)


def test_an_option_for_a_plugin_that_is_not_composed_says_how_to_compose_it() -> None:
    words = r"plugin 'reference' in options is installed, but not composed; .*--plugins \+reference"
    with pytest.raises(CompositionError, match=words):
        compose(MACHINE, ["null"], {"reference": {}})
    with pytest.raises(CompositionError, match=words):
        compose(replace(MACHINE, options={"reference": {}}), ["null"])


def test_an_option_that_a_plugin_does_not_take_is_refused(toy: ModuleType) -> None:
    given = toy.plugin("abacus", kernels=lambda request: (), manifest={"options": ["beads", "rods"]})
    words = "options.abacus: unknown option 'bead'; did you mean 'beads'"
    with pytest.raises(CompositionError, match=words):
        compose(MACHINE, [given], {"abacus": {"bead": 3}})
    machine = replace(MACHINE, options={"abacus": {"bead": 3}})
    with pytest.raises(CompositionError, match=words):
        compose(machine, [given])
    with compose(MACHINE, [given], {"abacus": {"rods": 3}}) as runtime:
        assert runtime.options == {"abacus": {"rods": 3}}


def test_a_value_that_an_option_does_not_have_is_refused(toy: ModuleType) -> None:
    about: dict[str, Any] = {"options": ["beads", "rods"], "values": {"beads": ["round", "flat"]}}
    given = toy.plugin("abacus", kernels=lambda request: (), manifest=about)
    words = r"^options.abacus: unknown beads 'flt'; did you mean 'flat'\? \(valid: flat, round\)$"
    for wrong in ("flt", None, ["flat"]):
        with pytest.raises(CompositionError, match=words if wrong == "flt" else "unknown beads"):
            compose(MACHINE, [given, "null"], {"abacus": {"beads": wrong}})
    with compose(MACHINE, [given, "null"], {"abacus": {"beads": "flat", "rods": 3}}) as runtime:
        assert runtime.options["abacus"] == {"beads": "flat", "rods": 3}
    for values, told in (
        ({"bead": ["round"]}, "values: unknown option 'bead'; did you mean 'beads'"),
        ({"beads": "round"}, r"values: beads = 'round' \(valid: a list of strings\)"),
    ):
        broken = toy.plugin("abacus", kernels=lambda request: (), manifest=about | {"values": values})
        with pytest.raises(PluginError, match=told):
            compose(MACHINE, [broken, "null"])


def test_a_plugin_that_names_no_options_is_given_any(toy: ModuleType) -> None:
    given = toy.plugin("abacus", kernels=lambda request: ())
    with compose(MACHINE, [given], {"abacus": {"beads": 3}}) as runtime:
        assert runtime.options == {"abacus": {"beads": 3}}


# Plugins that need or exclude each other.


def test_a_plugin_that_requires_another_names_it(install: Install) -> None:
    install("abacus", requires=["beads"])
    install("beads")
    wanted = r"'abacus' requires 'beads': add the plugin \+beads"
    with pytest.raises(CompositionError, match=wanted):
        compose(MACHINE, ["abacus"])
    assert [*reasons(plugins=["abacus", "beads"])] == ["abacus", "beads"]


def test_plugins_that_conflict_are_both_named(install: Install) -> None:
    install("abacus", conflicts=["beads"])
    install("beads")
    with pytest.raises(CompositionError, match="'abacus' and 'beads' conflict; leave one out"):
        compose(MACHINE, ["beads", "abacus"])
    assert [*reasons(plugins=["abacus"])] == ["abacus"]


# Which plugins, and why.


def test_a_list_of_names_is_exact_and_in_order_of_preference(install: Install) -> None:
    install("abacus", priority=1)
    install("beads", priority=9)
    assert reasons(plugins=["abacus", "beads"]) == {"abacus": "asked for", "beads": "asked for"}
    assert [*reasons(plugins=["beads", "abacus"])] == ["beads", "abacus"]


def test_without_a_list_all_automatic_plugins_serve_by_priority(install: Install) -> None:
    install("abacus", automatic=True, priority=998)
    install("beads", automatic=True, priority=999)
    install("chalk", priority=1000)
    why = reasons()
    assert [*why][:2] == ["beads", "abacus"]
    assert why["beads"] == "automatic, priority 999"
    assert "chalk" not in why


def test_plus_adds_in_front_and_minus_leaves_out(install: Install) -> None:
    install("abacus", automatic=True, priority=999)
    install("beads")
    install("chalk", automatic=True)
    why = reasons(plugins=["+beads", "-chalk"])
    assert [*why][:2] == ["beads", "abacus"]
    assert why["beads"] == "asked for"
    assert "chalk" not in why
    with pytest.raises(PluginError, match=r"plugins: unknown plugin '-chlak'.*'-chalk'"):
        compose(MACHINE, ["-chlak"])


def test_the_machine_names_its_plugins(install: Install) -> None:
    install("abacus", automatic=True)
    install("beads")
    machine = Machine("desk", (Level("machine"),), plugins=("beads",), fingerprint="any")
    assert reasons(machine) == {"beads": "named by machine 'desk'"}
    assert [*reasons(machine, ["+abacus"])] == ["abacus", "beads"]
    assert [*reasons(machine, ["abacus"])] == ["abacus"], "a list of the user's own goes first"


def test_a_level_brings_the_plugins_that_it_names(install: Install) -> None:
    install("abacus")
    install("beads", KERNELS.replace("kernels(request)", "gradient_sync(group)"), role="gradient_sync")
    levels = (
        Level("desk", 2, workers="threads", sync=SyncSpec("beads")),
        Level("hand", kernels="abacus"),
    )
    why = reasons(Machine("office", levels, fingerprint="any"), ["null"])
    assert why == {
        "null": "asked for",
        "beads": "named by level 'desk' of machine 'office'",
        "abacus": "named by level 'hand' of machine 'office'",
    }


def test_a_level_that_names_a_plugin_which_is_not_there_is_told_apart() -> None:
    machine = Machine("office", (Level("hand", kernels="abacus"),), fingerprint="any")
    with pytest.raises(PluginError, match="named by level 'hand' of machine 'office': unknown plugin"):
        compose(machine, ["null"])


@pytest.mark.parametrize(
    ("plugins", "key", "line", "named"),
    [
        (["abacsu"], "count = 1", 3, "named by machine 'office'"),
        (["null"], 'kernels = "abacsu"', 6, "named by level 'desk' of machine 'office'"),
        (
            ["null"],
            'count = 2\nsync = { plugin = "abacsu" }',
            8,
            "named by level 'desk' of machine 'off",
        ),
    ],
)
def test_a_description_that_names_no_plugin_is_told_by_its_line(
    plugins: list[str], key: str, line: int, named: str, tmp_path: Path
) -> None:
    """Reasons have the machine's name, which is short; errors have the line that must be corrected."""
    path = tmp_path / "office.toml"
    path.write_text(
        f'schema = 1\nname = "office"\nplugins = {plugins}\n\n[[level]]\nname = "desk"\n{key}'
    )
    with pytest.raises(PluginError) as caught:
        compose(path)
    assert str(caught.value).startswith(f"{path}:{line}: {named}")
    assert "unknown plugin 'abacsu'" in str(caught.value)


def test_every_installed_plugin_that_is_not_used_has_a_reason(install: Install) -> None:
    install("abacus")
    install("beads", automatic=True, api=">=7")
    install("chalk", automatic=True)
    with compose(MACHINE, ["-chalk"]) as runtime:
        composition = runtime.explain()
    rejected = dict(composition.rejected)
    assert rejected["abacus"] == "only used when named"
    assert "demitasse '>=7'" in rejected["beads"]
    assert rejected["chalk"] == "left out as asked"
    assert not set(rejected) & set(composition.versions)
    known = {manifest.name for manifest in discover()}
    assert set(rejected) | set(composition.versions) == known


def test_a_composition_prints_and_reports_each_choice(install: Install) -> None:
    install("abacus", more="", priority=3)
    with compose(MACHINE, ["abacus", "null"]) as runtime:
        composition = runtime.explain()
    lines = str(composition).splitlines()
    assert lines[0] == "machine desk"
    assert any(line.split()[0] == "kernels" and "abacus" in line for line in lines[1:])
    report = composition.to_dict()
    assert report["machine"] == "desk"
    assert report["plugins"] == {"abacus": "1.2", "null": demitasse.__version__}
    first = report["choices"][0]
    assert {*first} == {"role", "subject", "plugin", "reason"}


# Plugin objects.


def test_an_object_takes_the_place_of_what_is_installed_but_not_of_another_object(
    toy: ModuleType,
) -> None:
    given = [toy.plugin("null", kernels=lambda request: ()) for _ in range(2)]
    with compose(MACHINE, given[:1]) as runtime:
        assert [manifest.distribution for manifest in runtime.explain().plugins] == ["an object given"]
    with pytest.raises(PluginError, match="'null': an object given and an object given both provide it"):
        compose(MACHINE, given)


def test_an_object_with_a_manifest_stands_for_itself(toy: ModuleType) -> None:
    given = toy.plugin("abacus", kernels=lambda request: ())
    with compose(MACHINE, [given, "null"]) as runtime:
        composition = runtime.explain()
    assert [*composition.versions] == ["abacus", "null"]
    assert composition.modules["abacus"].kernels(request=None) == ()
    assert [name for name, _ in composition.serving("kernels")] == ["abacus", "null"]


@pytest.mark.parametrize("hook", ["kernels", "operations", "layer_types", "programs", "commands"])
def test_nothing_is_as_good_as_an_empty_list(toy: ModuleType, hook: str) -> None:
    given = toy.plugin("abacus", **{hook: lambda: None})
    with compose(MACHINE, [given, "null"]) as runtime:
        assert not [*getattr(runtime.explain().modules["abacus"], hook)()]


def test_a_module_is_read_once_and_again_if_its_functions_change(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook() -> object:
        with compose(MACHINE, ["abacus"]) as runtime:
            return runtime.explain().modules["abacus"].kernels

    install("abacus")
    first = hook()
    assert hook() is first
    module = importlib.import_module("toys_abacus.plugin")
    monkeypatch.setattr(module, "kernels", hookimpl(lambda: ()))
    assert hook() is not first


def test_an_object_is_checked_like_an_installed_plugin(toy: ModuleType) -> None:
    given = toy.plugin("abacus", kernels=lambda request: (), manifest={"priority": 5})
    with pytest.raises(PluginError, match=r"'abacus'.*unknown key 'priority'"):
        compose(MACHINE, [given])
    given = toy.plugin("abacus", kernels=lambda operation: ())
    with pytest.raises(PluginError, match="'abacus' breaks a hook's contract"):
        compose(MACHINE, [given])


@pytest.mark.parametrize(
    "given",
    [object(), SimpleNamespace(manifest=3), SimpleNamespace(manifest={"api": ">=0.1"})],
    ids=["no manifest", "a manifest that is no mapping", "a manifest without a name"],
)
def test_an_object_that_is_no_plugin_is_refused(given: object) -> None:
    with pytest.raises(
        PluginError, match=r"is not a plugin .valid: a name, or an object whose manifest"
    ):
        compose(MACHINE, [given, "null"])


def test_blanks_and_nothing_between_commas_are_no_names(install: Install) -> None:
    install("abacus")
    with compose(MACHINE, " abacus, null,") as runtime:
        assert [*runtime.explain().versions] == ["abacus", "null"]


def test_hooks_are_served_by_what_the_manifest_says_of_them(toy: ModuleType) -> None:
    host = toy.plugin("host", roles={"kernels": {"spaces": ["host"]}}, kernels=lambda request: ())
    desk = toy.plugin("desk", roles={"kernels": {"spaces": ["desk"]}}, kernels=lambda request: ())
    anywhere = toy.plugin("anywhere", kernels=lambda request: ())
    with compose(MACHINE, [host, desk, anywhere]) as runtime:
        served = runtime.explain().serving("kernels", space="desk")
        assert [name for name, _ in served] == ["desk", "anywhere"]


def test_a_space_of_any_number_is_served_by_a_star(toy: ModuleType) -> None:
    asked: list[tuple[str, str]] = []

    def allocator(name: str) -> Callable[[str], None]:
        return lambda space: asked.append((name, space))

    every = toy.plugin("every", roles={"allocator": {"spaces": ["npu:*"]}}, allocator=allocator("every"))
    first = toy.plugin("first", roles={"allocator": {"spaces": ["npu:0"]}}, allocator=allocator("first"))
    with compose(MACHINE, [every, first]) as runtime:
        for space in ("npu:0", "npu:12", "npu"):
            with pytest.raises(demitasse.PlanError) as error:
                runtime.allocator(space)
            lacking = (
                f"memory {space!r} does not exist: plugin 'every', which serves this space, has none"
            )
            nobody = f"no composed plugin allocates memory in space {space!r}"
            assert str(error.value).startswith(lacking if ":" in space else nobody)
    assert asked == [("every", "npu:0"), ("first", "npu:0"), ("every", "npu:12")]


def test_two_plugins_that_define_one_layer_type_are_both_named(toy: ModuleType) -> None:
    others = toy.plugin("others", layer_types=lambda: toy.KINDS[:1])
    with pytest.raises(PluginError, match="'toy' and 'others' both define layer type 'Samples'"):
        compose(MACHINE, [toy.toy(), others])


def test_a_lack_of_memory_is_no_reason_to_reinstall_a_plugin(install: Install) -> None:
    install("abacus", "raise MemoryError")
    with pytest.raises(MemoryError, match="importing plugin 'abacus'"):
        compose(MACHINE, ["abacus"])
