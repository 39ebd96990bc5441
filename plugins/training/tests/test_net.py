"""Nets that run forward on what they are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError, ShapeError


@pytest.fixture
def deployed(toy: ModuleType) -> Any:
    """A classifier of images that are given by hand."""
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 1, 6, 6)),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("active", "ReLU", "hidden", "hidden"),
        toy.layer("scores", "InnerProduct", "hidden", "scores", outputs=3),
        toy.layer("probability", "Softmax", "scores", "probability"),
        phase="test",
    )


def by_hand(params: dict[str, list[np.ndarray]], data: np.ndarray) -> np.ndarray:
    hidden = data.reshape(len(data), -1) @ params["hidden"][0].T + params["hidden"][1]
    scores = np.maximum(hidden, 0) @ params["scores"][0].T + params["scores"][1]
    result: np.ndarray = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return result


def test_a_net_computes_its_outputs(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    out = net.forward(data=data)
    assert {*out} == {"probability"}
    assert np.allclose(out["probability"], by_hand(net.params, data), rtol=0, atol=1e-14)
    assert np.array_equal(net.forward()["probability"], out["probability"]), "the input stays"


def test_another_batch_size_is_planned_anew_with_the_same_parameters(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any, copied: Any
) -> None:
    net = runtime().net(deployed, precision="f64")
    before = copied(net)
    for count in (7, 1, 4, 7):
        data = toy.images(count)["data"]
        out = net.forward(data=data)["probability"]
        assert out.shape == net.blobs["probability"].shape == (count, 3)
        assert np.allclose(out, by_hand(before, data), rtol=0, atol=1e-14)


def test_an_output_is_a_copy(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed)
    first = net.forward(data=toy.images(4)["data"])["probability"]
    kept = first.copy()
    net.forward(data=-toy.images(4)["data"])
    assert np.array_equal(first, kept)


def test_edited_parameters_count(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    net.params["scores"][1][...] = [0.0, 100.0, 0.0]
    assert (net.forward(data=data)["probability"].argmax(1) == 1).all()


def test_images_of_a_size_that_the_parameters_do_not_fit_are_refused(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    """And the net still works afterwards."""
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    before = net.forward(data=data)["probability"]
    with pytest.raises(ShapeError, match=r"parameter 0 of layer 'hidden' has shape \(7, 64\)"):
        net.forward(data=np.zeros((4, 1, 8, 8)))
    assert np.array_equal(net.forward(data=data)["probability"], before)


def test_an_unknown_input_is_named_with_the_nearest(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed)
    with pytest.raises(ModelError, match=r"toy\.net: unknown input 'dta'; did you mean 'data'"):
        net.forward(dta=np.zeros((4, 1, 6, 6)))


def test_an_unknown_blob_is_named_with_the_nearest(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed)
    assert {*net.blobs} == {"data", "hidden", "scores", "probability"}
    with pytest.raises(KeyError, match="hiden"):
        _ = net.blobs["hiden"]


def test_all_blobs_can_be_looked_at_in_a_retained_net(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed, precision="f64", retain="all")
    data = toy.images(4)["data"]
    net.forward(data=data)
    hidden = data.reshape(4, -1) @ net.params["hidden"][0].T + net.params["hidden"][1]
    assert np.allclose(net.blobs["hidden"].data, np.maximum(hidden, 0), rtol=0, atol=1e-14)
    assert np.array_equal(net.blobs["data"].data, data)


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
