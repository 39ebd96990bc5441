"""Where no installed plugin serves what is asked for, it is said which package would."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from demitasse import (
    CompositionError,
    DataError,
    DataSpec,
    DescriptionError,
    Level,
    Machine,
    Manifest,
    ModelError,
    PluginError,
    compose,
    discover,
    find_machine,
    uninstalled,
)
from demitasse_cli.command_line import CommandLine
from demitasse_contracts import manifests
from demitasse_descriptions import known
from demitasse_descriptions.uninstalled import served

ROOT = Path(__file__).parents[1]
FACTS = {
    "allocator": "spaces",
    "collectives": "",
    "commands": "commands",
    "data_source": "kinds",
    "layer_types": "types",
    "model_reader": "suffixes",
    "model_writer": "suffixes",
    "programs": "programs",
    "reproductions": "papers",
}
"""The roles that are told of, and the fact by which each is chosen."""

DESK = Machine("desk", (Level("machine"),), fingerprint="any")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``without(name, ...)``: plugins of these names are as good as not installed."""
    points = manifests.installed

    def leave_out(*names: str) -> None:
        for module in (manifests, known):
            monkeypatch.setattr(
                module, "installed", lambda group: [p for p in points(group) if p.name not in names]
            )
        assert not {manifest.name for manifest in discover()} & {*names}

    return leave_out


def told(manifest: dict[str, Any]) -> dict[str, list[str]]:
    """What is told of a plugin, by its manifest: of those that are only used when named not what others
    serve better, and no memory or layer types that the manifest does not name."""
    found: dict[str, list[str]] = {}
    for role, fact in FACTS.items():
        facts = manifest["roles"].get(role)
        if facts is None or (role in ("allocator", "programs") and not manifest["automatic"]):
            continue
        names = [*facts.get(fact, ())]
        if names or role not in ("allocator", "layer_types"):
            found[role] = names
        if role == "programs" and "converts" in facts:
            found["converts"] = [*facts["converts"]]
    return found


def test_what_is_told_of_plugins_that_are_not_installed_is_what_their_manifests_say() -> None:
    given = [tomllib.loads(path.read_text()) for path in ROOT.glob("plugins/*/src/*/plugin.toml")]
    wanted = {each["name"]: told(each) for each in given}
    del wanted["null"]  # computes nothing: nobody should be told to install it
    assert served() == {name: roles for name, roles in wanted.items() if roles}


def test_a_program_that_was_packed_without_data_has_a_hint_less(
    without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("caffe")
    monkeypatch.setattr("demitasse_descriptions.uninstalled.FILE", "not_packed.toml")
    served.cache_clear()
    try:
        assert uninstalled("model_reader") == ""
    finally:
        served.cache_clear()


def test_nothing_is_told_where_all_are_installed() -> None:
    assert [uninstalled(role) for role in FACTS if uninstalled(role)] == []


def test_each_lack_is_told_with_the_package_that_mends_it(without: Any, tmp_path: Path) -> None:
    without("caffe", "training", "datasets", "snapshots", "simulator", "machines", "striped_io")
    solver = tmp_path / "solver.prototxt"
    solver.write_text("base_lr: 0.1\n")
    with compose(DESK) as runtime:
        with pytest.raises(CompositionError, match=r"\(pip install demitasse-training\)$"):
            runtime.trainer(solver)
        with pytest.raises(
            ModelError, match=r"; demitasse-caffe is not .*\(pip install demitasse-caffe\)$"
        ):
            runtime.read(solver)
        with pytest.raises(ModelError, match=r"\(pip install demitasse-snapshots\)$"):
            runtime.write(tmp_path / "a.demitasse", None)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"\(pip install demitasse-datasets\)$"):
            runtime.open_source(DataSpec("digits:train"))
        with pytest.raises(DataError, match=r"\(pip install demitasse-datasets demitasse-striped_io\)"):
            runtime.open_source(DataSpec(str(tmp_path)))
    with pytest.raises(DescriptionError, match=r"\(pip install demitasse-machines\)$"):
        find_machine("taihulight")
    told = CliRunner().invoke(CommandLine(), ["simulate"]).output
    assert "(pip install demitasse-simulator)" in told


def test_a_described_machine_is_used_without_those_of_its_plugins_that_a_run_can_do_without() -> None:
    machine = Machine("desk", DESK.levels, plugins=("lamp", "reference", "torch"), fingerprint="any")
    with pytest.raises(PluginError) as told:
        compose(machine)
    assert str(told.value).endswith(
        "(pip install demitasse-lamp); also not found: 'torch'; to run without them: "
        "--plugins -lamp,-torch"
    )
    with compose(machine, "-lamp,-torch") as runtime:
        assert [*runtime.composition.versions] == ["reference"]
    with pytest.raises(PluginError, match="plugins: unknown plugin '-lamb'"):
        compose(machine, "-lamb")


def test_a_plugin_that_another_requires_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lamp = Manifest("lamp", api=">=0.1", requires=("mains",), roles={"observe": {}})
    monkeypatch.setattr("demitasse.discover", lambda: (lamp,))
    with pytest.raises(PluginError, match=r"requires 'mains': .*\(pip install demitasse-mains\)$"):
        compose(DESK, "lamp")
