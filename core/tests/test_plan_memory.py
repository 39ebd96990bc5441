"""Plans: memory is shared only where that has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_entries import of_layer, operations

from demitasse import Candidate, Layer, Request, Runtime, Work

Train = Callable[..., Any]
MakeRuntime = Callable[..., Runtime]


# Memory in place.


def test_a_layer_runs_in_place_when_nobody_else_reads_its_input(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "Convolution", "data", "middle", outputs=3),
            toy.layer("active", "ReLU", "middle", "active"),
            toy.layer("scores", "InnerProduct", "active", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
    ).plan
    entry = of_layer(plan, "active")
    assert entry.in_place
    assert entry.inputs[0] is not None
    assert entry.outputs[0] is not None
    assert entry.inputs[0].offset == entry.outputs[0].offset
    assert of_layer(plan, "active", "backward").in_place


def test_an_input_that_is_read_again_later_is_not_overwritten(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "InnerProduct", "data", "middle", outputs=5),
            toy.layer("active", "ReLU", "middle", "active"),
            toy.layer("next", "InnerProduct", "active", "next", outputs=5),
            toy.layer("both", "Sum", "next middle", "both"),
            toy.layer("loss", "SoftmaxLoss", "both label", "loss"),
        )
    ).plan
    assert not of_layer(plan, "active").in_place
    assert of_layer(plan, "both").in_place, "its first input dies there"


def test_an_input_that_the_backward_pass_reads_is_not_overwritten(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    """The second inner product's weight gradient needs the blob that the rectifier would destroy."""
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "InnerProduct", "data", "middle", outputs=3),
            toy.layer("other", "InnerProduct", "middle", "other", outputs=3),
            toy.layer("active", "ReLU", "middle", "active"),
            toy.layer("both", "Sum", "active other", "both"),
            toy.layer("loss", "SoftmaxLoss", "both label", "loss"),
        )
    ).plan
    assert not of_layer(plan, "active").in_place


def test_of_two_consumers_only_the_last_may_overwrite(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "InnerProduct", "data", "middle", outputs=3),
            toy.layer("left", "ReLU", "middle", "left"),
            toy.layer("right", "ReLU", "middle", "right"),
            toy.layer("both", "Sum", "left right", "both"),
            toy.layer("loss", "SoftmaxLoss", "both label", "loss"),
        )
    ).plan
    assert not of_layer(plan, "left").in_place
    assert of_layer(plan, "right").in_place


def test_an_input_that_is_given_twice_is_not_overwritten(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "InnerProduct", "data", "middle", outputs=3),
            toy.layer("twice", "Sum", "middle middle", "twice"),
            toy.layer("loss", "SoftmaxLoss", "twice label", "loss"),
        )
    ).plan
    assert not of_layer(plan, "twice").in_place


@pytest.mark.parametrize("read_again", [False, True])
def test_a_view_keeps_the_memory_that_it_views(
    toy: ModuleType, samples: Layer, agree: Any, read_again: bool
) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("middle", "Convolution", "data", "middle", outputs=2),
            toy.layer("flat", "Reshape", "middle", "flat", shape=(4, 72)),
            toy.layer("active", "ReLU", "flat", "active"),
            toy.layer("left", "InnerProduct", "active", "left", outputs=3),
            *(
                (
                    toy.layer("right", "InnerProduct", "middle", "right", outputs=3),
                    toy.layer("both", "Sum", "left right", "both"),
                )
                if read_again
                else ()
            ),
            toy.layer("loss", "SoftmaxLoss", f"{'both' if read_again else 'left'} label", "loss"),
        )
    ).plan
    assert "reshape" not in operations(plan), "a view computes nothing"
    assert of_layer(plan, "active").in_place is not read_again


def test_what_comes_from_outside_is_not_overwritten(toy: ModuleType, samples: Layer, agree: Any) -> None:
    plan = agree(
        toy.net(
            samples,
            toy.layer("active", "ReLU", "data", "active"),
            toy.layer("scores", "InnerProduct", "active", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
    ).plan
    assert not of_layer(plan, "active").in_place


def test_a_blob_in_the_objective_is_not_overwritten(toy: ModuleType, samples: Layer, agree: Any) -> None:
    """The loss is read when the whole forward pass is over."""
    plan = agree(
        toy.net(
            samples,
            toy.layer("scores", "InnerProduct", "data", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
            toy.layer("more", "ReLU", "loss", "more", loss_weights=(0.5,)),
        )
    ).plan
    assert not of_layer(plan, "more").in_place
    assert len(plan.objective) == 2


def test_outputs_keep_their_values_to_the_end(toy: ModuleType, runtime: MakeRuntime) -> None:
    """Only the user reads ``early``; the layers after it need memory of their own."""
    chain = [toy.layer(f"c{i}", "Convolution", f"c{i - 1}", f"c{i}", outputs=2) for i in range(2, 7)]
    net = toy.net(
        toy.layer("data", "Input", "", "data", shape=(2, 1, 6, 6)),
        toy.layer("c1", "Convolution", "data", "c1", outputs=2),
        toy.layer("early", "ReLU", "c1", "early"),
        *chain,
        phase="test",
    )
    data = toy.images(2)["data"]
    shared = runtime().net(net, precision="f64").forward(data=data)
    apart = runtime().net(net, precision="f64", retain="all").forward(data=data)
    assert {*shared} == {*apart} == {"early", "c6"}
    for name in shared:
        assert np.array_equal(shared[name], apart[name])


# Lifetimes.


def test_blobs_share_memory_and_results_do_not_change(toy: ModuleType, agree: Any) -> None:
    plan = agree(toy.classifier(), solver={"passes": 2}).plan
    assert plan.arena_bytes < 0.75 * plan.unshared_bytes


def test_a_retained_plan_shares_nothing(toy: ModuleType, train: Train) -> None:
    plan = train(toy.classifier(), retain="all").plan
    assert plan.arena_bytes == plan.unshared_bytes
    assert not any(entry.in_place for entry in plan.entries)
    named = [buffer for entry in plan.entries for buffer in entry.outputs if buffer is not None]
    places = [(buffer.region, buffer.offset) for buffer in named]
    assert len(set(places)) == len(places)


def untidy(toy: ModuleType, ran: set[str], *, updates: bool) -> Any:
    """Return reference kernels that request a workspace and leave rubbish in it: those that update flat
    memory, or all others. ``ran`` receives the names of their operations."""

    def kernels(request: Request) -> Iterable[Candidate]:
        if updates is not (not request.operation.outputs and request.operation.name != "accumulate"):
            return
        for candidate in toy.installed("reference").kernels(request):

            def bind(inputs: Any, outputs: Any, workspace: Any, bind: Any = candidate.bind) -> Work:
                assert workspace.nbytes >= 1000
                work = bind(inputs, outputs, None)

                def run() -> None:
                    work()
                    workspace.fill(255)
                    ran.add(request.operation.name)

                return run

            yield Candidate(
                "untidy", bind, candidate.input_layouts, candidate.output_layouts, workspace=1000
            )

    return toy.plugin("untidy", kernels=kernels)


def test_workspaces_live_for_one_call_and_overlap_nothing(
    toy: ModuleType, train: Train, agree: Any
) -> None:
    plan = agree(toy.classifier(), kernels=[untidy(toy, set(), updates=False)]).plan
    assert all(entry.workspace is not None for entry in plan.entries)
    without = train(toy.classifier()).plan
    assert plan.arena_bytes <= without.arena_bytes + 1024, "they share one place"


def test_kernels_that_update_get_the_workspace_that_they_ask_for(toy: ModuleType, agree: Any) -> None:
    ran = set[str]()
    agree(toy.classifier(), kernels=[untidy(toy, ran, updates=True)])
    assert "momentum_update" in ran
