"""Nets run layer by layer: partial passes, gradients of every blob, other shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import CompositionError, ModelError, ShapeError, compose

Make = Callable[..., Any]


@pytest.fixture
def forked(toy: ModuleType) -> Any:
    """An input, a layer with a ReLU, two readers of it, and their sum."""
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 5)),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=6),
        toy.layer("active", "ReLU", "hidden", "hidden"),
        toy.layer("left", "InnerProduct", "hidden", "left", outputs=3),
        toy.layer("right", "InnerProduct", "hidden", "right", outputs=3),
        toy.layer("total", "Sum", "left right", "total"),
        phase="test",
    )


@pytest.fixture
def net(runtime: Make, forked: Any) -> Any:
    made = runtime().net(forked, precision="f64", retain="all", backward="every blob")
    made.walk.data("data")[...] = np.random.default_rng(0).normal(size=(4, 5))
    return made


def test_each_tensor_of_a_blob_has_a_name_of_its_own(net: Any) -> None:
    history = [(layer, tensor.name) for layer, tensor in net.graph.history["hidden"]]
    assert history == [(1, "hidden@0"), (2, "hidden")]
    assert list(net.graph.splits.values()) == [2]


def test_a_walk_shows_a_blob_as_it_is_at_the_end_of_the_walk(net: Any) -> None:
    walk = net.walk
    walk.forward(0, 1)
    W, b = net.params["hidden"]
    before = walk.data("data") @ W.T + b
    assert np.allclose(walk.data("hidden"), before, atol=1e-14)
    walk.forward(2, 2)
    assert np.allclose(walk.data("hidden"), np.maximum(before, 0), atol=1e-14)
    walk.forward()
    assert np.allclose(walk.data("hidden"), np.maximum(before, 0), atol=1e-14)


def test_gradients_of_readers_are_summed_between_them_and_the_layer(net: Any) -> None:
    walk = net.walk
    walk.forward()
    given = np.random.default_rng(1).normal(size=(4, 3))
    walk.diff("total")[...] = given
    V, U = net.params["left"][0], net.params["right"][0]
    walk.backward(5, 4)
    walk.backward(3, 3)
    walk.diff("hidden")[...] = 1
    walk.backward(2, 2)
    active = walk.data("hidden") > 0
    assert np.allclose(walk.diff("hidden"), active, atol=1e-14), (
        "the sum is not made: its readers are above"
    )
    walk.backward(3, 2)
    assert np.allclose(walk.diff("hidden"), (given @ V + given @ U) * active, atol=1e-14)


def test_parameters_gradients_add_up_and_are_cleared(net: Any) -> None:
    walk = net.walk
    walk.forward()
    walk.diff("total")[...] = 1
    walk.backward()
    first = walk.gradients["left", 0].copy()
    assert np.allclose(first, np.ones((3, 4)) @ walk.data("hidden"), atol=1e-14)
    walk.backward()
    assert np.allclose(walk.gradients["left", 0], 2 * first, atol=1e-14)
    walk.clear()
    assert not walk.gradients["left", 0].any()


def test_plans_are_kept_by_shape_and_inputs_are_carried(runtime: Make, toy: ModuleType) -> None:
    both = toy.net(
        toy.layer("a", "Input", "", "a", shape=(2, 3)),
        toy.layer("b", "Input", "", "b", shape=(4, 3)),
        toy.layer("one", "InnerProduct", "a", "one", outputs=2),
        toy.layer("two", "InnerProduct", "b", "two", outputs=2),
        phase="test",
    )
    net = runtime().net(both, retain="all", backward="every blob")
    first = net.walk
    first.data("b")[...] = 5
    net.reshape({"a": (1, 3)})
    assert net.walk is not first
    assert (net.walk.data("b") == 5).all()
    assert net.walk.data("a").shape == (1, 3)
    net.walk.data("b")[...] = 6
    net.reshape({"a": (2, 3)})
    assert net.walk is first
    assert (first.data("b") == 6).all()
    with pytest.raises(ModelError, match=r"unknown input 'c'"):
        net.reshape({"c": (1,)})


def test_layers_behind_may_be_left_out(net: Any) -> None:
    with pytest.raises(ShapeError, match="layer 'hidden' cannot take this input"):
        net.reshape({"data": (4, 7)}, 3)
    assert net.walk.data("data").shape == (4, 5), "it is as it was"
    net.reshape({"data": (2, 5)}, 3)
    assert net.walk.layers == ("data", "hidden", "active")
    net.walk.diff("hidden")[...] = 1
    net.walk.forward()
    net.walk.backward()
    net.reshape({"data": (4, 5)})
    assert len(net.walk.layers) == 6


def test_a_net_adopts_the_parameters_of_another(runtime: Make, forked: Any, toy: ModuleType) -> None:
    made = runtime()
    one, two = (made.net(forked, retain="all", seed=seed) for seed in (1, 2))
    assert not np.array_equal(one.params["left"][0], two.params["left"][0])
    two.adopt(one.plan.slots, one.walk.flat)
    one.params["left"][0][...] = 3
    assert (two.walk.params["left"][0] == 3).all()
    other = made.net(toy.classifier(phase="test"), retain="all", data={"test": toy.images(20)})
    with pytest.raises(ShapeError, match="no such parameter"):
        other.adopt(one.plan.slots, one.walk.flat)
    assert other.forward().keys()
    other.close()


def test_backward_is_of_retained_nets(runtime: Make, forked: Any) -> None:
    with pytest.raises(CompositionError, match=r"backward='objective' needs retain='all'"):
        runtime().net(forked, backward="objective")
    with pytest.raises(CompositionError, match=r"unknown backward 'yes' \(valid: None, 'objective'"):
        runtime().net(forked, backward="yes", retain="all")
    with pytest.raises(ModelError, match="to run a net layer by layer, plan it"):
        _ = runtime().net(forked).walk


def test_an_input_that_is_overwritten_in_place(runtime: Make, toy: ModuleType) -> None:
    """The caller's input reaches the layer, whether or not all blobs are kept."""
    definition = toy.net(
        toy.layer("data", "Input", "", "data", shape=(3,)),
        toy.layer("active", "ReLU", "data", "data"),
        phase="test",
    )
    for retain in (None, "all"):
        net = runtime().net(definition, retain=retain)
        for given in ([1, -1, 2], [-3, 4, -5]):
            assert net.forward(data=np.array(given))["data"].tolist() == [max(0, v) for v in given]


def test_an_interactive_trainer_trains_as_a_trainer_does(
    runtime: Make, toy: ModuleType, differ: Any
) -> None:
    definition = toy.classifier()
    made = runtime(arrays=toy.images(30))
    solver = toy.solver(definition, passes=2, momentum=0.9)
    by_hand = made.program("interactive trainer", solver)
    whole = made.trainer(solver, retain="all")
    told, rates = list[str](), list[float]()
    by_hand.listeners.append(lambda event: rates.append(event.values["rate"]))
    for _ in range(3):
        loss = by_hand.iterate([lambda: told.append("before")], [lambda: told.append("after")])
        assert loss == pytest.approx(whole.step(1).loss, rel=1e-6)
    assert told == ["before", "after"] * 3
    assert rates == [0.01] * 3
    assert differ(by_hand.net.params, whole.net.params) < 1e-6


def test_an_interactive_trainer_has_one_worker(runtime: Make, toy: ModuleType) -> None:
    made = runtime(2, arrays=toy.images(30))
    with pytest.raises(CompositionError, match=r"an interactive trainer has one worker; .* has 2"):
        made.program("interactive trainer", toy.solver(toy.classifier()))


def test_the_gradient_of_an_input_that_a_scale_layer_reads_is_kept(tmp_path: Path) -> None:
    """Its backward has several outputs; only the user reads this one."""
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "scaled" type: "Scale" bottom: "x" top: "y"
                scale_param { bias_term: true filler { type: "constant" value: 3 } } }
    """)
    with compose() as runtime:
        net = runtime.net(
            tmp_path / "net.prototxt", precision="f64", retain="all", backward="every blob"
        )
        net.forward(x=np.ones((2, 3)))
        given = np.random.default_rng(3).normal(size=(2, 3))
        net.walk.diff("y")[...] = given
        net.walk.backward()
        assert np.allclose(net.walk.diff("x"), 3 * given, atol=1e-14)


def test_an_input_that_is_only_seen_in_another_shape_has_a_gradient(
    runtime: Make, tmp_path: Path
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 } } }\n'
        'layer { name: "cut" type: "Reshape" bottom: "x" top: "cut" '
        "reshape_param { shape { dim: 0 dim: 2 dim: 3 } } }\n"
        'layer { name: "s" type: "Sigmoid" bottom: "cut" top: "y" }'
    )
    with compose(plugins=["caffe", "training", "reference"]) as composed:
        walk = composed.net(path, precision="f64", retain="all", backward="every blob").walk
        walk.forward()
        walk.diff("y")[...] = 1
        walk.backward()
        np.testing.assert_allclose(walk.diff("x"), np.full((2, 6), 0.25))
