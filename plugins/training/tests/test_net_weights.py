"""Weights given to a net: from a trained net, from memory, from several files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import demitasse


def test_a_net_takes_the_weights_of_a_trained_one(
    toy: ModuleType, runtime: Callable[..., Any], tmp_path: Path
) -> None:
    made = runtime(arrays=toy.images(40))
    tested = toy.classifier(20, "test")
    trainer = made.trainer(
        toy.solver(toy.classifier(), tested, test_iterations=(2,), rate=0.02), precision="f64"
    )
    trainer.step(20)
    path = trainer.snapshot(tmp_path / "toy")
    net = made.net(tested, weights=path, precision="f64")
    assert net.test(2) == trainer.test()
    assert net.test(2) == net.test(2), "always from the start of the data"
    other = made.net(tested, precision="f64")
    assert not np.array_equal(other.params["first"][0], net.params["first"][0])


def test_weights_in_memory_are_given_where_files_are(
    toy: ModuleType, runtime: Callable[..., Any], tmp_path: Path
) -> None:
    made = runtime(arrays=toy.images(40))
    solver = toy.solver(toy.classifier(), toy.classifier(20, "test"), test_iterations=(2,), rate=0.02)
    trainer = made.trainer(solver, precision="f64")
    trainer.step(20)
    weights = demitasse.Weights(dict(trainer.net.params))
    net = made.net(toy.classifier(20, "test"), weights=weights, precision="f64")
    assert net.test(2) == trainer.test()
    assert list(net.loaded) == ["the weights given"]
    first = np.full_like(trainer.net.params["first"][0], 0.5)
    bias = [0.25] * len(trainer.net.params["first"][1])
    mine = demitasse.Weights({"first": [first, bias]})  # type: ignore[list-item]
    path = trainer.snapshot(tmp_path / "toy")
    other = made.trainer(solver, weights=[path, mine], precision="f64")
    assert np.array_equal(other.net.params["first"][0], first), "the later ones count"
    assert np.array_equal(other.net.params["first"][1], bias)
    assert np.array_equal(other.net.params["second"][0], trainer.net.params["second"][0])
    first[...] = 0
    assert np.all(np.asarray(other.net.params["first"][0]) == 0.5), "they are copied"


def test_several_weights_in_memory_are_told_apart(
    toy: ModuleType, runtime: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = runtime(arrays=toy.images(40))
    params = dict(made.trainer(toy.solver(toy.classifier())).net.params)
    del params["third"]  # it belongs to a loss that is not tested
    parts = [demitasse.Weights({name: params[name]}) for name in params]
    net = made.net(toy.classifier(20, "test"), weights=iter(parts))
    assert list(net.loaded) == [f"the weights given ({n})" for n in range(1, len(parts) + 1)]
    assert not caplog.records, "each layer is in one of them"
    for name in params:
        assert np.array_equal(net.params[name][0], params[name][0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            {"first": []},
            "weights must be a file's path, demitasse.Weights, or a list of these; given dict",
        ),
        ([b"w.caffemodel"], "or a list of these; given bytes"),
        (demitasse.Weights({"first": [np.zeros(3)]}), "the weights given: layer 'first'"),
        (demitasse.Weights({"fist": [np.zeros(3)]}), "the weights given"),
    ],
    ids=["a mapping", "bytes", "another shape", "another layer"],
)
def test_what_are_no_weights_is_told(
    toy: ModuleType, runtime: Callable[..., Any], weights: Any, message: str
) -> None:
    made = runtime(arrays=toy.images(40))
    with pytest.raises(demitasse.DemitasseError, match=message):
        made.net(toy.classifier(20, "test"), weights=weights)
    with pytest.raises(demitasse.DemitasseError, match=message):
        made.trainer(toy.solver(toy.classifier()), weights=weights)
