"""Plugins are found by their manifests, without an import; errors name wrong ones."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from toy_packages import KERNELS, MACHINE, Install, found, manifest_text

import demitasse
from demitasse import PluginError, compose


def test_discovery_reads_manifests_without_importing_plugins() -> None:
    code = """
        import sys
        from demitasse import discover
        names = [manifest.name for manifest in discover()]
        assert {"null", "reference", "training"} <= set(names), names
        assert names == sorted(names)
        packages = {name.partition(".")[0] for name in sys.modules if name.startswith("demitasse_")}
        print(packages - {"demitasse_contracts", "demitasse_host"})  # the core's own
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
        (
            {"more": "[roles.model_writer]\nlargest = {'.x' = '2 GiB'}"},
            r"role model_writer: largest: \.x = '2 GiB' \(valid: a whole number of bytes\)",
        ),
        (
            {"more": "[roles.model_writer]\nstates = {'.x' = 'history'}"},
            r"role model_writer: states: \.x = 'history' \(valid: a list of strings\)",
        ),
        ({"role": "kernel"}, r"plugin\.toml.*unknown role 'kernel'; did you mean 'kernels'"),
        ({"api": ">=7"}, rf"demitasse '>=7', but this is {demitasse.__version__}; install versions"),
        ({"api": ""}, r"does not say which versions of demitasse it is for \(add api = "),
        ({"api": "about 0.1"}, "it is for demitasse 'about 0.1', which is not a version range"),
        (
            {"manifest": manifest_text("sliderule")},
            "the name is 'sliderule', but the entry point's is 'abacus'",
        ),
        ({"manifest": 'name = "abacus'}, r"manifest .*plugin\.toml cannot be read"),
    ],
    ids=[
        "key",
        "fact",
        "another role's fact",
        "no number",
        "no list of states",
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
    assert "plugin.toml does not exist; add it to the package (with setuptools, " in told
    assert told.count("plugin.toml does not exist") == 1
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
        f"its entry point {point!r} does not name a module (valid: a module's name, like {meant!r}); "
        f"fix pyproject.toml and reinstall"
    )
    with pytest.raises(PluginError, match=r"'abacus' \(.*does not name a module"):
        compose(MACHINE, ["abacus"])


def test_a_package_that_is_gone_is_named(install: Install) -> None:
    folder = install("abacus")
    for file in sorted(folder.iterdir()):
        file.unlink()
    folder.rmdir()
    with pytest.raises(PluginError, match=r"'abacus'.*toys_abacus\.plugin is missing; reinstall toys-"):
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
        ("allocator", KERNELS, "add a table [roles.kernels] to plugin.toml"),
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
    told = "demitasse 'about 0.1', which is not a version range (valid: like '>=0.1,<0.2'), but this is"
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
