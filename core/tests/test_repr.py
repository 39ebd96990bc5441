"""The text that public objects show in a notebook or an error."""

from __future__ import annotations

from types import ModuleType

import numpy as np

import demitasse
from demitasse import Weights, compose


def test_a_runtime_and_its_composition_are_told_in_a_line(toy: ModuleType) -> None:
    with compose(toy.machine(1), ["reference", "training"]) as runtime:
        told = repr(runtime)
        assert told.startswith("<Runtime on ") and all(n in told for n in runtime.composition.versions)
        assert len(repr(runtime.composition)) < 500
        assert all(plugin.name in repr(runtime.composition) for plugin in runtime.composition.plugins)


def test_weights_are_counted_not_printed() -> None:
    arrays = {"conv": [np.zeros((20, 1, 5, 5)), np.zeros(20)], "ip": [np.zeros((10, 800))]}
    assert repr(Weights(arrays)) == "<Weights: 8,520 numbers of 2 layers>"
    more = Weights(arrays, 5_000, {"momentum": {}})
    assert repr(more) == "<Weights: 8,520 numbers of 2 layers, state of momentum, iteration 5,000>"
    assert repr(Weights()) == "<Weights: 0 numbers of 0 layers>"


def test_a_manifest_shows_its_name_and_version() -> None:
    for manifest in demitasse.discover():
        assert repr(manifest).startswith(f"Manifest(name={manifest.name!r}, version=")
        assert len(repr(manifest)) < 200
