"""The plugin's interface, and the requests for which it offers kernels."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from demitasse import Place, Request, TensorSpec, hookimpl
from demitasse.operations import VOCABULARY
from demitasse_optical_flow import plugin


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="optical_flow")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_the_types() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert set(manifest["roles"]) == hooks
    assert manifest["automatic"]
    assert sorted(manifest["roles"]["layer_types"]["types"]) == sorted(
        kind.name for kind in plugin.layer_types()
    )


def test_each_of_its_words_has_a_kernel_and_no_other() -> None:
    spec = TensorSpec((1,), "float32")
    for word in plugin.operations():
        about = dict(word.attributes)
        (candidate,) = plugin.kernels(Request(word, (spec,), (spec,), about, Place("machine")))
        assert candidate.kernel
    relu = Request(VOCABULARY["relu"], (spec,), (spec,), {}, Place("machine"))
    assert list(plugin.kernels(relu)) == []
