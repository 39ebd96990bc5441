"""The plugin is found by its entry point, and implements what its manifest declares."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_type_hints

import demitasse
from demitasse import NetOptions, Solver, TrainerOptions, hookimpl
from demitasse_training import plugin


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="training")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_the_programs() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert manifest["name"] == "training"
    assert manifest["automatic"]
    assert set(manifest["roles"]) == hooks == {"operations", "programs"}
    assert set(manifest["roles"]["programs"]["programs"]) == set(plugin.programs())


def keywords(program: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(plugin.programs()[program]).parameters
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def test_the_keywords_that_editors_know_are_those_of_the_trainer() -> None:
    assert set(TrainerOptions.__annotations__) == set(keywords("trainer"))


def test_the_keywords_that_editors_know_of_a_net_are_its_own() -> None:
    """The others are those that a trainer passes to its own nets: memory, and where to read samples."""
    others = {"lent", "open_source"}
    assert set(NetOptions.__annotations__) == set(keywords("net")) - others


def test_what_a_runtime_gives_can_be_asked_for_at_run_time() -> None:
    hints = get_type_hints(demitasse.Runtime.trainer)
    assert (hints["solver"], hints["return"]) == (str | Path | Solver, demitasse.Trainer)
    assert get_type_hints(demitasse.Runtime.net)["return"] is demitasse.Net


def test_importing_the_plugin_does_not_import_numpy() -> None:
    code = "import sys, demitasse_training.plugin; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
