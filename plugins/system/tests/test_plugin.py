"""The plugin is found by its entry point, and implements what its manifest declares."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

from demitasse import Level, hookimpl
from demitasse_system import plugin


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="system")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_that_the_plugin_implements() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert manifest["name"] == "system"
    assert manifest["automatic"]
    assert set(manifest["roles"]) == hooks == {"probe", "programs", "diagnose"}


def test_probing_imports_no_numpy() -> None:
    code = (
        "import sys; from demitasse_system import plugin; list(plugin.probe()); "
        "list(plugin.diagnose()); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_hooks_tell_of_this_machine() -> None:
    levels = list(plugin.probe())
    assert isinstance(levels[0], Level)
    assert levels[0].count == 1
    assert levels[0].cores
    assert {finding.level for finding in plugin.diagnose()} <= {"ok", "note", "problem"}
