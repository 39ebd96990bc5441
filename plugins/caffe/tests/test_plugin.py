"""The plugin is found by its entry point and does what its manifest says."""

import importlib.metadata
import inspect
import subprocess
import sys
import tomllib
from importlib.resources import files

from demitasse_caffe import plugin


def hooks() -> set[str]:
    return {
        name
        for name, function in inspect.getmembers(plugin, inspect.isfunction)
        if hasattr(function, "demitasse_impl")
    }


def test_the_entry_point_loads_the_plugin() -> None:
    (entry,) = importlib.metadata.entry_points(group="demitasse.plugins", name="caffe")
    assert entry.load() is plugin


def test_the_manifest_declares_the_hooks_that_are_there() -> None:
    manifest = tomllib.loads(files("demitasse_caffe").joinpath("plugin.toml").read_text())
    assert manifest["name"] == "caffe"
    assert set(manifest["roles"]) == hooks()
    assert hooks() >= {"layer_types", "model_reader", "model_writer", "operations", "programs"}


def test_importing_the_plugin_imports_neither_numpy_nor_protobuf() -> None:
    program = (
        "import sys, demitasse_caffe.plugin; "
        "print([n for n in ('numpy', 'google.protobuf') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_layer_types_have_distinct_names_and_declare_no_parameters_of_their_own() -> None:
    types = list(plugin.layer_types())
    assert len({kind.name for kind in types}) == len(types)
    assert all(not kind.parameters for kind in types)
