"""The plugin's interface: entry point, manifest, hooks, cheap import."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import demitasse
from demitasse import hookspecs
from demitasse_datasets.kinds import KINDS


def test_the_entry_point_loads_and_implements_the_roles_of_the_manifest():
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="datasets")
    module = point.load()
    (manifest,) = [found for found in demitasse.discover() if found.name == "datasets"]
    assert manifest.problem == ""
    hooks = {name for name in vars(hookspecs) if hasattr(getattr(module, name, None), "demitasse_impl")}
    assert hooks == set(manifest.roles) == {"commands", "data_source", "programs"}
    assert set(manifest.roles["data_source"]["kinds"]) == set(KINDS)


def test_the_plugin_module_is_cheap_to_import():
    program = (
        "import sys, demitasse_datasets.plugin\n"
        "print([m for m in ('numpy', 'sklearn', 'lzma') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
