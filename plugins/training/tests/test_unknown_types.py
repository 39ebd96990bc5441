"""Layer types that no composed plugin has: which plugin provides them, and what to compose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from demitasse import Manifest, ModelError


def test_a_layer_type_of_a_plugin_that_is_not_composed_is_said(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Manifest("soft", roles={"layer_types": {"types": ("SoftCap", "Other")}})
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (installed,))
    hint = r"the installed plugin 'soft' has it, but is not composed: add it to the plugins \(\+soft\)"
    net = toy.net(toy.layer("cap", "SoftCap", "", "cap"), phase="test")
    with pytest.raises(
        ModelError, match=rf"toy\.net: layer 'cap'.*unknown layer type 'SoftCap'.*{hint}"
    ):
        runtime().net(net)
    net = toy.net(toy.layer("cap", "SoftCup", "", "cap"), phase="test")
    with pytest.raises(ModelError, match=r"'SoftCup'.*a plugin adds a type with the layer_types hook"):
        runtime().net(net)


def test_why_an_installed_plugin_cannot_be_used_is_said_where_its_type_is_missing(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = {"layer_types": {"types": ("SoftCap",)}}
    unfit = Manifest("soft", roles=roles, problem="it is for demitasse '>=9'")
    torn = Manifest("tanned", problem="plugin.toml: unknown key 'automatik'")
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (unfit, torn))
    net = toy.net(toy.layer("cap", "SoftCap", "", "cap"), phase="test")
    told = r"'SoftCap'; the installed plugin 'soft' has it, but cannot be used: it is for dem.* '>=9'$"
    with pytest.raises(ModelError, match=told):
        runtime().net(net)
    net = toy.net(toy.layer("cap", "Tanned", "", "cap"), phase="test")
    told = r"that may have it, but cannot be used: tanned \(plugin.toml: unknown key 'automatik'\)$"
    with pytest.raises(ModelError, match=rf"'Tanned'.*; installed plugins {told}"):
        runtime().net(net)


def test_whose_a_type_is_is_said_in_place_of_a_name_that_is_near(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    net = toy.net(toy.layer("shape", "Reshap", "", "shape"), phase="test")
    with pytest.raises(ModelError, match=r"unknown layer type 'Reshap'; did you mean 'Reshape'"):
        runtime().net(net)
    net = dataclasses.replace(net, foreign={"Reshap": "another's fork"})
    with pytest.raises(
        ModelError, match=r"unknown layer type 'Reshap': it belongs to another's fork and is not one of"
    ):
        runtime().net(net)


def test_a_type_that_nobody_has_is_told_before_one_that_is_installed_and_before_samples_are_opened(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Manifest("soft", roles={"layer_types": {"types": ("SoftCap",)}})
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (installed,))
    source = toy.layer("data", "Samples", "", "data label", batch=2)
    cap, axpy = toy.layer("cap", "SoftCap", "data", "cap"), toy.layer("mix", "Axpy", "cap", "mix")
    told = (
        r"layer 'mix' \(Axpy\): unknown layer type 'Axpy' \(valid: .*\); a plugin "
        r"adds a type with the layer_types hook .*; also unknown: 'SoftCap' \(line"
    )
    with pytest.raises(ModelError, match=told):
        runtime().net(toy.net(source, cap, axpy, phase="test"))
