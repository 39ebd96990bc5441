"""The plugin is found by its entry point, and implements what its manifest declares."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from demitasse import CompositionError, Group, hookimpl
from demitasse_reference import plugin


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="reference")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_that_the_plugin_implements() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert manifest["name"] == "reference"
    assert manifest["automatic"]
    assert set(manifest["roles"]) == hooks == {"kernels", "allocator", "gradient_sync"}


def test_importing_the_plugin_does_not_import_numpy() -> None:
    code = "import sys, demitasse_reference.plugin; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_processes_are_refused_with_the_plugin_to_use_instead() -> None:
    group = Group(("node",), 0, None, "float32", {})
    with pytest.raises(CompositionError, match=r"'node'.*other processes.*synchronises processes"):
        plugin.gradient_sync(group)
