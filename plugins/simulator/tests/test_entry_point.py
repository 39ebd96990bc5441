"""The plugin as others find it: its entry point, its manifest and its hooks."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

import demitasse
import demitasse_simulator.plugin
from demitasse import CompositionError, FlatMemory, Group, Place, Request, discover


def test_the_entry_point_names_the_module() -> None:
    (point,) = (p for p in entry_points(group="demitasse.plugins") if p.name == "simulator")
    assert point.load() is demitasse_simulator.plugin


def test_the_manifest_is_sound_and_declares_what_is_served() -> None:
    (manifest,) = (m for m in discover() if m.name == "simulator")
    assert not manifest.problem and manifest.automatic
    assert set(manifest.roles["commands"]["commands"]) == set(demitasse_simulator.plugin.commands())
    assert manifest.roles["programs"]["programs"] == list(demitasse_simulator.plugin.programs())


def test_its_kernels_are_only_for_places_that_are_described() -> None:
    relu = demitasse.compose(plugins=["reference"]).vocabulary["relu"]
    real = Request(relu, (), (), {}, Place("node"))
    assert not list(demitasse_simulator.plugin.kernels(real))
    described = Request(relu, (), (), {}, Place("node", "ldm", simulated=True))
    (candidate,) = demitasse_simulator.plugin.kernels(described)
    with pytest.raises(
        demitasse.PlanError, match=r"no composed plugin computes relu in 'ldm', .* only described"
    ):
        candidate.bind([], [], None)


def test_its_synchronisation_refuses_to_train() -> None:
    sync = demitasse_simulator.plugin.gradient_sync(Group(("node",), 0, None, "float32", {}))
    with pytest.raises(CompositionError, match="level 'node': plugin 'simulator' only predicts"):
        sync.bind(FlatMemory(None, None))
