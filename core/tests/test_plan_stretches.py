"""Plans: gradients that are made in stretches, each used for its update before the next is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Candidate, Layer, NetDefinition, Plan, Request, Work

PARTS = 2
WEIGHTS = "inner_product_backward_weights"


@pytest.fixture
def in_parts(toy: ModuleType) -> Any:
    """Return the reference's inner products, able to make the gradient of their weights in parts."""

    def kernels(request: Request) -> Iterable[Candidate]:
        if request.operation.name != WEIGHTS:
            return
        for candidate in toy.installed("reference").kernels(request):

            def bind_part(
                number: int, inputs: Any, outputs: Any, workspace: Any, bind: Any = candidate.bind
            ) -> Work:
                stretch, *rest = outputs
                spec = request.outputs[0]
                assert spec is not None
                whole = np.empty(spec.shape, spec.dtype)
                work = bind(inputs, [whole, *rest], None)

                def run() -> None:
                    work()
                    stretch[:] = np.split(whole.reshape(-1), PARTS)[number]

                return run

            yield Candidate("in parts", candidate.bind, parts=PARTS, bind_part=bind_part)

    return toy.plugin("in_parts", kernels=kernels)


def products(toy: ModuleType, samples: Layer, *, share: str = "") -> NetDefinition:
    """Return a net of three inner products with 16 outputs (the last two may share weights), and one
    with three outputs."""
    shared = {"share": share} if share else {}
    return toy.net(  # type: ignore[no-any-return]
        samples,
        toy.layer("first", "InnerProduct", "data", "first", outputs=16),
        toy.layer("rectified", "ReLU", "first", "first"),
        toy.layer("second", "InnerProduct", "first", "second", outputs=16, **shared),
        toy.layer("third", "InnerProduct", "second", "third", outputs=16, **shared),
        toy.layer("scores", "InnerProduct", "third", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )


def cut(plan: Plan) -> set[str]:
    return {entry.layer for entry in plan.entries if entry.stretches}


def test_what_reads_a_parameter_comes_before_it_is_updated_in_stretches(
    toy: ModuleType, samples: Layer, agree: Callable[..., Any], in_parts: Any
) -> None:
    """The gradient passed to the layer below is computed with the weights before the update: parameters
    equal those of a net in which all gradients exist before any is used."""
    plan = agree(products(toy, samples), kernels=[in_parts], solver={"rate": 0.5}).plan
    assert cut(plan) >= {"second", "third"}
    for layer in cut(plan):
        (made,) = (e for e in plan.entries if (e.layer, e.operation) == (layer, WEIGHTS))
        (weights,) = (s.span for s in plan.slots if s.owners == ((layer, 0),))
        assert sum(map(len, made.stretches)) == len(weights)
        later = plan.entries[plan.entries.index(made) + 1 :]
        read = {b.name for entry in later for b in entry.inputs if b and b.region == "parameters"}
        assert not [name for name in read if name.startswith(layer)]


def test_gradients_that_add_up_are_whole(
    toy: ModuleType, samples: Layer, agree: Callable[..., Any], in_parts: Any
) -> None:
    net = products(toy, samples, share="both")
    plan = agree(net, kernels=[in_parts], solver={"rate": 0.5}).plan
    assert not cut(plan) & {"second", "third"}
