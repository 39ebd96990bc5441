"""The plugin is found by its entry point, and implements what its manifest says."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

from demitasse import hookimpl
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


def test_importing_the_plugin_does_not_import_numpy() -> None:
    code = "import sys, demitasse_training.plugin; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
