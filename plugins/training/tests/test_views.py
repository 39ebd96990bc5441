"""A net's contents by name: the error for an unknown name suggests the nearest, and is a KeyError."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError


@pytest.fixture
def net(toy: ModuleType, runtime: Callable[..., Any]) -> Any:
    """A net that is being trained."""
    return runtime().trainer(toy.solver(toy.classifier())).net


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("blobs", "scors", r"unknown blob 'scors'; did you mean 'scores'\? \(valid: .*scores.*\)$"),
        ("params", "scors", r"^unknown layer with parameters 'scors'; did you mean 'scores'\?"),
        ("params", 3, r"unknown layer with parameters '3' \(valid: "),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(net: Any, kind: str, name: Any, message: str) -> None:
    for family in (ModelError, KeyError):
        with pytest.raises(family, match=message):
            getattr(net, kind)[name]


@pytest.mark.parametrize("kind", ["blobs", "params"])
def test_what_a_net_has_stays_a_mapping(net: Any, kind: str) -> None:
    found = getattr(net, kind)
    assert isinstance(found, Mapping)
    assert "scores" in found and "scors" not in found
    assert found.get("scors") is None
    assert found["scores"] is found.get("scores")


@pytest.mark.parametrize(
    "change",
    [
        lambda net, array: net.params["scores"].__setitem__(0, array),
        lambda net, array: net.params["scores"].append(array),
        lambda net, array: net.params.__setitem__("scores", [array]),
        lambda net, array: net.params.update(scores=[array]),
        lambda net, array: net.blobs.__setitem__("data", array),
        lambda net, array: net.blobs.pop("data"),
    ],
)
def test_what_would_change_nothing_in_a_net_is_an_error(net: Any, change: Callable[..., None]) -> None:
    before = copy.deepcopy(net.params)
    with pytest.raises(ModelError, match=r"cannot be replaced.*\[\.\.\.\] = values"):
        change(net, np.zeros_like(before["scores"][0]))
    for mine, theirs in zip(before["scores"], net.params["scores"], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_parameters_print_their_shapes(net: Any) -> None:
    weights, bias = net.params["scores"]
    told = f"[<array {weights.shape[0]}x{weights.shape[1]}, float32>, <array {bias.size}, float32>]"
    assert repr(net.params["scores"]) == told
    assert told in repr(net.params)


def test_what_a_net_has_can_be_copied(net: Any) -> None:
    kept = copy.deepcopy(net.params)
    assert kept.keys() == net.params.keys()
    kept["scores"][0] = kept["scores"][0] + 1
    kept["mine"] = [np.ones(3)]
    assert pickle.loads(pickle.dumps(net.params)).keys() == net.params.keys()  # noqa: S301  made here
    with pytest.raises(KeyError, match="did you mean 'scores'"):
        kept["scors"]


def test_what_is_trained_and_run_prints_short_with_a_name_or_without(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    named = toy.classifier(phase="test")
    for name, words in (("lenet", "<net lenet (test), "), ("", "<net (test), ")):
        assert repr(runtime().net(replace(named, name=name))).startswith(words)
    train = replace(toy.classifier(), name="")
    trainer = runtime().trainer(toy.solver(train))
    assert repr(trainer).startswith("<trainer of a net at iteration 0 of ")
