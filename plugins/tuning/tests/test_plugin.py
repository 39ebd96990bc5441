"""The plugin is found, and its manifest is correct."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from demitasse import hookimpl
from demitasse_tuning import plugin


def test_the_entry_point_loads_the_plugin():
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="tuning")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_is_automatic():
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    hooks = {
        name for name, value in vars(plugin).items() if hasattr(value, f"{hookimpl.project_name}_impl")
    }
    assert set(manifest["roles"]) == hooks == {"tuner", "diagnose"}
    assert manifest["automatic"] is True
    assert manifest["roles"]["tuner"]["spaces"] == ["host"]
