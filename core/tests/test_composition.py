"""Composition: plugins are found by their manifests, chosen with a reason, and checked at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import demitasse
from demitasse import (
    CompositionError,
    Level,
    Machine,
    Manifest,
    PluginError,
    SyncSpec,
    compose,
    discover,
)

MACHINE = Machine("desk", (Level("machine"),), fingerprint="any")
KERNELS = """
from demitasse import hookimpl

@hookimpl
def kernels(request):
    return ()
"""

Install = Callable[..., Path]


def manifest_text(name: str, **values: Any) -> str:
    """A manifest in TOML; ``priority`` is that of its kernels, ``more`` is put after the keys."""
    lists = "".join(f"{key} = {list(values.get(key, ()))}\n" for key in ("requires", "conflicts"))
    return (
        f'name = "{name}"\napi = "{values.get("api", ">=0.1,<0.2")}"\n'
        f"automatic = {str(values.get('automatic', False)).lower()}\n{lists}{values.get('more', '')}\n"
        f"[roles.{values.get('role', 'kernels')}]\npriority = {values.get('priority', 5)}\n"
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, ...)`` puts a distribution with one plugin where Python looks for them."""
    before = set(sys.modules)

    def put(
        name: str,
        code: str = KERNELS,
        manifest: str | None = None,
        distribution: str | None = None,
        package: str | None = None,
        **values: Any,
    ) -> Path:
        package = package or f"toys_{name.replace('-', '_')}"
        distribution = distribution or f"toys-{name}"
        site = tmp_path / f"site-{distribution}"
        folder, facts = site / package, site / f"{package}-1.2.dist-info"
        folder.mkdir(parents=True)
        facts.mkdir()
        text = manifest_text(name, **values) if manifest is None else manifest
        (folder / "__init__.py").write_text("")
        (folder / "plugin.py").write_text(textwrap.dedent(code))
        (folder / "plugin.toml").write_text(text)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (facts / "entry_points.txt").write_text(f"[demitasse.plugins]\n{name} = {package}.plugin\n")
        monkeypatch.syspath_prepend(str(site))
        return folder

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("toys_"):
            del sys.modules[name]


def found(name: str) -> Manifest:
    (manifest,) = [manifest for manifest in discover() if manifest.name == name]
    return manifest


def reasons(machine: Machine = MACHINE, plugins: Any = None) -> dict[str, str]:
    """Why each plugin is in, in order of preference."""
    with compose(machine, plugins) as runtime:
        composition = runtime.explain()
    why = {choice.plugin: choice.reason for choice in composition.choices}
    return {manifest.name: why[manifest.name] for manifest in composition.plugins}


# Discovery.


def test_discovery_reads_manifests_without_importing_plugins() -> None:
    code = """
        import sys
        from demitasse import discover
        names = [manifest.name for manifest in discover()]
        assert {"null", "reference", "training"} <= set(names), names
        assert names == sorted(names)
        packages = {name.partition(".")[0] for name in sys.modules if name.startswith("demitasse_")}
        print(packages - {"demitasse_host"})  # the core's own
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (shown.stdout.strip(), shown.stderr) == ("set()", "")


def test_composing_imports_only_what_was_chosen() -> None:
    code = """
        import sys
        from demitasse import Level, Machine, compose
        compose(Machine("desk", (Level("machine"),), fingerprint="any"), ["null"])
        print(sorted({n.partition(".")[0] for n in sys.modules if n.startswith("demitasse_")}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (shown.stdout.strip(), shown.stderr) == (
        "['demitasse_contracts', 'demitasse_host', 'demitasse_null']",
        "",
    )


def test_a_manifest_tells_its_distribution_roles_and_priority(install: Install) -> None:
    install("abacus", priority=7, more='summary = "Counts on fingers"')
    manifest = found("abacus")
    assert (manifest.distribution, manifest.version) == ("toys-abacus", "1.2")
    assert (manifest.summary, manifest.automatic) == ("Counts on fingers", False)
    assert (dict(manifest.roles), manifest.priority) == ({"kernels": {"priority": 7}}, 7)
    assert manifest.problem == ""
    assert "toys_abacus" not in sys.modules


# Plugins that cannot be used.


def test_a_missing_plugin_is_named_with_the_nearest_and_how_to_install_it() -> None:
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, ["refrence"])
    message = str(caught.value)
    assert "unknown plugin 'refrence'" in message
    assert "did you mean 'reference'?" in message
    assert "pip install demitasse-refrence" in message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import abakus_that_is_not_there", "ModuleNotFoundError: No module named 'abakus_that"),
        ("1 / 0", "ZeroDivisionError: division by zero (toys_abacus/plugin.py:1); reinstall"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_with_the_reason(
    install: Install, code: str, reason: str
) -> None:
    install("abacus", code)
    with pytest.raises(PluginError, match=r"'abacus' \(toys-abacus 1.2\) cannot be imported") as caught:
        compose(MACHINE, ["abacus"])
    assert reason in str(caught.value)
    assert "reinstall it or leave it out" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"more": "automtic = true"}, r"plugin\.toml.*unknown key 'automtic'; did you mean 'automatic'"),
        (
            {"more": "[roles.allocator]\nspace = ['host']"},
            r"plugin\.toml: role allocator: unknown fact 'space'; did you mean 'spaces'",
        ),
        (
            {"more": "[roles.allocator]\nsuffixes = ['.x']"},
            r"role allocator: unknown fact 'suffixes' \(valid: kinds, priority, spaces\)",
        ),
        ({"role": "kernel"}, r"plugin\.toml.*unknown role 'kernel'; did you mean 'kernels'"),
        ({"api": ">=7"}, rf"demitasse '>=7', this is {demitasse.__version__}; install versions"),
        ({"api": ""}, r"does not say for which versions of demitasse it is \(api = "),
        ({"api": "about 0.1"}, "it is for demitasse 'about 0.1', which is no range of versions"),
        (
            {"manifest": manifest_text("sliderule")},
            "the name is 'sliderule', the entry point's 'abacus'",
        ),
        ({"manifest": 'name = "abacus'}, r"manifest .*plugin\.toml cannot be read"),
    ],
    ids=[
        "key",
        "fact",
        "another role's fact",
        "role",
        "range",
        "no range",
        "no such range",
        "name",
        "no TOML",
    ],
)
def test_what_is_wrong_with_a_manifest_is_told_when_the_plugin_is_named(
    install: Install, values: dict[str, Any], problem: str
) -> None:
    install("abacus", **values)
    with pytest.raises(PluginError, match=f"plugin 'abacus' .*cannot be used: .*{problem}"):
        compose(MACHINE, ["abacus"])
    with compose(MACHINE, ["null"]):
        assert "toys_abacus" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        manifest_text("abacus").replace('">=0.1,<0.2"', "1"),
        manifest_text("abacus").replace("requires = []", "requires = 3"),
        'name = "abacus"\napi = ">=0.1"\nroles = 3\n',
        'name = "abacus"\napi = ">=0.1"\nroles = ["kernels"]\n',
        'name = "abacus"\napi = ">=0.1"\nroles = { kernels = 3 }\n',
        manifest_text("abacus").replace("priority = 5", 'priority = "high"'),
        manifest_text("abacus").replace("priority = 5", "spaces = 3"),
        manifest_text("abacus").replace("priority = 5", "spaces = [3]"),
        manifest_text("abacus").replace("requires = []", "requires = [3]"),
        manifest_text("abacus").replace("priority = 5", "priority = true"),
        manifest_text("abacus").replace("priority = 5", 'commands = "count"'),
    ],
    ids=[
        *("api", "requires", "roles", "list of roles", "role", "priority", "spaces", "list of spaces"),
        *("list of requires", "no number", "commands"),
    ],
)
def test_a_value_of_the_wrong_type_is_the_problem_of_its_plugin_alone(
    install: Install, text: str
) -> None:
    install("abacus", manifest=text)
    with compose(MACHINE, ["+null"]) as runtime:
        assert "abacus" not in runtime.explain().versions
    with pytest.raises(PluginError, match="'abacus'"):
        compose(MACHINE, ["abacus"])


def test_a_wheel_that_left_its_manifest_out_is_told_how_to_have_it_packaged(install: Install) -> None:
    (install("abacus") / "plugin.toml").unlink()
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, ["abacus"])
    told = str(caught.value)
    assert "plugin.toml is not there; have it packaged (with setuptools, " in told
    assert told.count("plugin.toml is not there") == 1
    assert 'package-data] toys_abacus = ["plugin.toml"])' in told


@pytest.mark.parametrize(
    ("point", "meant"),
    [
        ("toys-abacus.plugin", "toys_abacus.plugin"),
        ("toys_abacus.plugin:", "toys_abacus.plugin"),
        ('"toys_abacus.plugin"', "toys_abacus.plugin"),
        (".plugin", "package.plugin"),
        ("", "package.plugin"),
        ("toys_abacus..plugin", "package.plugin"),
    ],
)
def test_an_entry_point_that_is_no_module_is_its_plugins_fault_alone(
    install: Install, point: str, meant: str
) -> None:
    folder = install("abacus")
    install("quill")
    (facts,) = folder.parent.glob("*.dist-info")
    (facts / "entry_points.txt").write_text(f"[demitasse.plugins]\nabacus = {point}\n")
    assert found("quill").problem == ""
    assert found("abacus").problem == (
        f"its entry point {point!r} names no module (valid: a module's name, as {meant!r}); mend "
        f"pyproject.toml and reinstall"
    )
    with pytest.raises(PluginError, match=r"'abacus' \(.*names no module"):
        compose(MACHINE, ["abacus"])


def test_a_package_that_is_gone_is_named(install: Install) -> None:
    folder = install("abacus")
    for file in sorted(folder.iterdir()):
        file.unlink()
    folder.rmdir()
    with pytest.raises(
        PluginError, match=r"'abacus'.*toys_abacus\.plugin is not there; reinstall toys-"
    ):
        compose(MACHINE, ["abacus"])


def test_a_manifest_and_a_module_that_disagree_are_refused(install: Install) -> None:
    install("abacus", role="allocator")
    with pytest.raises(PluginError, match=r"'abacus'.*declares.*'allocator'.*implements.*'kernels'"):
        compose(MACHINE, ["abacus"])


@pytest.mark.parametrize(
    ("role", "code", "remedy"),
    [
        (
            "kernels",
            KERNELS.replace("def kernels", "def kernel"),
            "unknown hook 'kernel'; did you mean 'kernels'?",
        ),
        (
            "kernels",
            KERNELS.replace("@hookimpl", ""),
            "mark a function kernels of the module with hookimpl",
        ),
        ("allocator", KERNELS, "give plugin.toml a table [roles.kernels]"),
    ],
    ids=["misspelt", "not marked", "not declared"],
)
def test_what_disagrees_is_told_with_its_remedy(
    install: Install, role: str, code: str, remedy: str
) -> None:
    install("abacus", code, role=role)
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, ["abacus"])
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_required_plugin_that_is_misspelt_is_told_with_the_nearest(install: Install) -> None:
    install("abacus", requires=["referense"])
    with pytest.raises(
        PluginError, match=r"'abacus' requires 'referense': unknown plugin 'referense'; did "
    ):
        compose(MACHINE, ["abacus", "reference"])


def test_a_text_that_is_no_range_is_told_with_one_that_is(install: Install) -> None:
    install("abacus", api="about 0.1")
    told = "demitasse 'about 0.1', which is no range of versions (valid: as '>=0.1,<0.2'), this is"
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, ["abacus"])
    assert told in str(caught.value)


def test_a_hook_with_an_argument_that_it_is_not_given_is_refused(install: Install) -> None:
    install("abacus", KERNELS.replace("request", "operation"))
    with pytest.raises(PluginError, match=r"'abacus' breaks a hook's contract(.|\n)*operation"):
        compose(MACHINE, ["abacus"])


def test_two_distributions_of_one_plugin_are_both_named(install: Install) -> None:
    install("abacus")
    install("abacus", distribution="other-abacus", package="toys_other")
    for plugins in (["abacus"], ["null"], None):
        with pytest.raises(PluginError, match=r"'abacus'.*both provide it; remove one") as caught:
            compose(MACHINE, plugins)
        assert {"toys-abacus", "other-abacus"} < {*str(caught.value).replace(":", "").split()}


def test_an_object_takes_the_place_of_what_is_installed_but_not_of_another_object(
    toy: ModuleType,
) -> None:
    given = [toy.plugin("null", kernels=lambda request: ()) for _ in range(2)]
    with compose(MACHINE, given[:1]) as runtime:
        assert [manifest.distribution for manifest in runtime.explain().plugins] == ["an object given"]
    with pytest.raises(PluginError, match="'null': an object given and an object given both provide it"):
        compose(MACHINE, given)


def test_an_option_for_a_plugin_that_is_not_there_is_refused() -> None:
    with pytest.raises(CompositionError, match="unknown plugin in options 'nul'; did you mean 'null'"):
        compose(MACHINE, ["null"], {"nul": {}})


@pytest.mark.parametrize("given", [["null"], 3, {"null": 3}, {"null": ["rate"]}])
def test_options_that_are_no_mappings_are_refused(given: Any) -> None:
    with pytest.raises(CompositionError, match=r"options: .* is no mapping \(valid: \{plugin: \{option"):
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
        ({"beads": "round"}, r"values: beads = 'round' \(valid: a list of texts\)"),
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
    with pytest.raises(PluginError, match=r"asked to leave out: unknown plugin 'chlak'.*'chalk'"):
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
    with pytest.raises(PluginError, match=r"is no plugin .valid: a name, or an object with a manifest"):
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
            lacking = f"memory {space!r} is not there: plugin 'every', which serves such, has none"
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
