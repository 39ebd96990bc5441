"""An operation without gradients is an error only between parameters and the loss."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Candidate, PlanError, compose
from demitasse.operations import define, same_as

CLAMP = define("activation", "clamp", "y = x, but at most 1", "x", "y", same_as("x"))


@pytest.fixture
def trained(toy: ModuleType) -> Callable[..., Any]:
    """``trained(*layers)``: the layers that have learned in a step of a net whose ``Clamp`` has no
    gradient."""

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Any:
        def work() -> None:
            outputs[0][...] = inputs[0].clip(max=1)

        return work

    def kernels(request: Any) -> Any:
        return [Candidate("NumPy", bind)] if request.operation.name == "clamp" else []

    clamp = toy.Kind("Clamp", lambda layer, bottoms, graph: [graph.apply("clamp", bottoms[0])])
    hooks = {"operations": lambda: [CLAMP], "layer_types": lambda: [clamp], "kernels": kernels}

    def make(*layers: Any) -> Any:
        plugins = [toy.plugin("stranger", **hooks), "reference", "training", toy.toy()]
        with compose(toy.machine(), plugins) as runtime:
            samples = toy.layer("samples", "Samples", "", "data label", batch=4)
            trainer = runtime.trainer(toy.solver(toy.net(samples, *layers)), precision="f64")
            before = {name: arrays[0].copy() for name, arrays in trainer.net.params.items()}
            trainer.step(1)
            after = {name: arrays[0].copy() for name, arrays in trainer.net.params.items()}
            return {name for name in before if not np.array_equal(before[name], after[name])}

    return make


def test_a_layer_that_would_not_learn_is_told_of(toy: ModuleType, trained: Callable[..., Any]) -> None:
    with pytest.raises(PlanError) as caught:
        trained(
            toy.layer("inner", "InnerProduct", "data", "inner", outputs=5),
            toy.layer("limit", "Clamp", "inner", "limited"),
            toy.layer("scores", "InnerProduct", "limited", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
    message = str(caught.value)
    assert message.startswith("layer 'limit': operation 'clamp' has no gradients, but the loss 'loss'")
    assert "gradient rules" in message and "lr_mult: 0" in message


def test_what_has_nothing_to_learn_before_it_needs_no_gradient(
    toy: ModuleType, trained: Callable[..., Any]
) -> None:
    learned = trained(
        toy.layer("limit", "Clamp", "data", "limited"),
        toy.layer("scores", "InnerProduct", "limited", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    assert learned == {"scores"}


def test_neither_does_what_is_before_it_if_it_is_frozen(
    toy: ModuleType, trained: Callable[..., Any]
) -> None:
    learned = trained(
        toy.layer("inner", "InnerProduct", "data", "inner", outputs=5, rate=0),
        toy.layer("limit", "Clamp", "inner", "limited"),
        toy.layer("scores", "InnerProduct", "limited", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    assert learned == {"scores"}


def test_nor_does_a_score_beside_the_loss(toy: ModuleType, trained: Callable[..., Any]) -> None:
    learned = trained(
        toy.layer("scores", "InnerProduct", "data", "scores", outputs=3),
        toy.layer("limit", "Clamp", "scores", "limited"),
        toy.layer("accuracy", "Accuracy", "limited label", "accuracy"),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    assert learned == {"scores"}
