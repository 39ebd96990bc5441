"""Plans: where parameters and their gradients lie, and when the gradients are final."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_entries import operations

from demitasse import Layer, NetDefinition, ShapeError

Train = Callable[..., Any]


def test_shared_parameters_have_one_place_and_add_up_their_gradients(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    """For y = W (W x + b) + b, the gradient of W is dy h^T + W^T dy x^T, computed here by hand."""
    arrays = toy.images(4, size=2, classes=4)
    square = {"outputs": 4, "share": "both"}
    trainer = train(
        toy.net(
            samples,
            toy.layer("lower", "InnerProduct", "data", "lower", **square),
            toy.layer("upper", "InnerProduct", "lower", "upper", **square),
            toy.layer("loss", "SoftmaxLoss", "upper label", "loss"),
        ),
        solver={"rate": 1.0, "momentum": 0.0, "decay": 0.0},
        arrays=arrays,
    )
    plan = trainer.plan
    assert {slot.owners for slot in plan.slots} == {
        (("lower", 0), ("upper", 0)),
        (("lower", 1), ("upper", 1)),
    }
    assert operations(plan).count("accumulate") == 4
    assert trainer.net.params["lower"][0] is not trainer.net.params["upper"][0]
    assert np.shares_memory(trainer.net.params["lower"][0], trainer.net.params["upper"][0])

    W, b = (array.copy() for array in trainer.net.params["lower"])
    trainer.step(1)
    x, label = arrays["data"].reshape(4, 4), arrays["label"].astype(int)
    h = x @ W.T + b
    y = h @ W.T + b
    p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    dy = (p - np.eye(4)[label]) / 4
    dh = dy @ W
    expected = W - (dy.T @ h + dh.T @ x), b - 2 * (dy.sum(0) + dh.sum(0))
    for ours, theirs in zip(trainer.net.params["upper"], expected, strict=True):
        assert np.allclose(ours, theirs, atol=1e-13)


def test_parameters_of_a_bucket_are_final_after_their_last_use(toy: ModuleType, train: Train) -> None:
    plan = train(toy.classifier()).plan
    assert sorted(layer for bucket in plan.buckets for layer in bucket.layers) == [
        "first",
        "scores",
        "second",
        "third",
    ]
    for bucket, first, final in zip(plan.buckets, plan.first_read, plan.final, strict=True):
        span = range(bucket.span.start * 8, bucket.span.stop * 8)
        uses = [
            i
            for i, entry in enumerate(plan.entries)
            for buffer in (*entry.inputs, *entry.outputs)
            if buffer and buffer.region in ("parameters", "gradients") and buffer.offset in span
        ]
        assert (first, final) == (min(uses), max(uses))
        assert plan.entries[first].phase == "forward"
        assert plan.entries[final].phase == "backward"


def test_buckets_follow_the_order_in_which_backward_finishes_them(toy: ModuleType, train: Train) -> None:
    plan = train(toy.classifier()).plan
    assert [*plan.final] == sorted(plan.final)
    assert [b.span.start for b in plan.buckets] == [
        0,
        *(b.span.stop for b in plan.buckets[:-1]),
    ], "one after another without gaps"
    assert plan.buckets[-1].span.stop == plan.trainable


def test_a_test_net_reads_the_parameters_of_the_trained_net(toy: ModuleType, train: Train) -> None:
    arrays = toy.images(40)
    trainer = train(
        toy.classifier(20),
        toy.classifier(40, "test"),
        solver={"rate": 0.02, "decay": 0.0},
        arrays=arrays,
    )
    before = trainer.test()["accuracy"]
    trainer.step(60)
    after = trainer.test()["accuracy"]

    # The same parameters, in a separate net.
    net = trainer.runtime.net(toy.classifier(40, "test"), precision="f64")
    for layer, values in trainer.net.params.items():
        for mine, value in zip(net.params[layer], values, strict=True):
            mine[...] = value
    assert after == net.forward()["accuracy"]
    assert after > before


def test_a_test_net_with_other_parameters_is_refused(toy: ModuleType, train: Train) -> None:
    def scored(**parameters: Any) -> NetDefinition:
        return toy.net(  # type: ignore[no-any-return]
            toy.layer("samples", "Samples", "", "data label", batch=4),
            toy.layer("scores", "InnerProduct", "data", "scores", **parameters),
            toy.layer("accuracy", "Accuracy", "scores label", "accuracy"),
            phase="test",
        )

    with pytest.raises(ShapeError, match=r"parameter 0 of layer 'scores' has shape \(5, 36\)"):
        train(
            toy.net(
                *scored(outputs=3).layers[:2],
                toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
            ),
            scored(outputs=5),
        )
