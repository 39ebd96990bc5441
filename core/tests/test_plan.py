"""Plans: what is computed, by which plugin, and what cannot be planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_entries import of_layer, operations

from demitasse import Candidate, Layer, ModelError, PlanError, Request, Runtime, ShapeError, arrange

Train = Callable[..., Any]
MakeRuntime = Callable[..., Runtime]


# What nothing needs is not computed.


def test_optional_outputs_that_nobody_reads_are_dropped(toy: ModuleType, train: Train) -> None:
    plan = train(toy.classifier()).plan
    assert of_layer(plan, "drop").outputs[1] is not None, "the backward pass reads the mask"
    assert of_layer(plan, "loss").outputs[1] is not None, "and the probability"
    frozen = train(
        toy.net(
            toy.layer("samples", "Samples", "", "data label", batch=4),
            toy.layer("scores", "InnerProduct", "data", "scores", outputs=3, rate=0.0),
            toy.layer("drop", "Dropout", "scores", "scores"),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
    ).plan
    assert of_layer(frozen, "drop").outputs[1] is None
    assert of_layer(frozen, "loss").outputs[1] is None


def test_first_layers_compute_no_gradient_of_their_input(toy: ModuleType, train: Train) -> None:
    plan = train(toy.classifier()).plan
    assert operations(plan, "first", "backward") == ["convolution_backward_weights"]
    assert "convolution_backward_data" in operations(plan, "third", "backward")


def test_frozen_parameters_have_no_gradient_and_are_not_updated(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    trainer = train(
        toy.net(
            samples,
            toy.layer("frozen", "InnerProduct", "data", "frozen", outputs=5, rate=0.0),
            toy.layer("scores", "InnerProduct", "frozen", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        )
    )
    before = {k: [a.copy() for a in arrays] for k, arrays in trainer.net.params.items()}
    trainer.step(3)
    after = trainer.net.params
    assert operations(trainer.plan, "frozen", "backward") == []
    assert operations(trainer.plan, "scores", "backward") == ["inner_product_backward_weights"]
    assert all(np.array_equal(a, b) for a, b in zip(before["frozen"], after["frozen"], strict=True))
    assert not np.array_equal(before["scores"][0], after["scores"][0])
    trained = {slot.owners[0][0]: slot.trainable for slot in trainer.plan.slots}
    assert trained == {"scores": True, "frozen": False}
    assert trainer.plan.trainable < trainer.plan.parameters


# What cannot be planned.


def test_an_operation_that_nobody_computes_is_named_with_who_was_asked(
    toy: ModuleType, runtime: MakeRuntime
) -> None:
    def kernels(request: Request) -> Iterable[Candidate]:
        return ()

    only = toy.plugin("idle", kernels=kernels, allocator=toy.installed("reference").allocator)
    second = toy.plugin("lazy", kernels=kernels)
    from demitasse import compose

    plugins = [only, second, "training", toy.toy()]
    net = toy.net(
        toy.layer("data", "Input", "", "data", shape=(2, 1, 6, 6)),
        toy.layer("active", "ReLU", "data", "active"),
        phase="test",
    )
    with compose(toy.machine(), plugins) as made, pytest.raises(PlanError) as caught:
        made.net(net)
    message = str(caught.value)
    assert "layer 'active'" in message
    assert "computes relu of 2x1x6x6 float32" in message
    assert "'machine' (host)" in message
    assert "asked: idle, lazy" in message


def test_the_quickest_of_a_plugins_kernels_is_chosen_when_all_tell_their_time(
    toy: ModuleType, train: Train
) -> None:
    def offering(*seconds: float | None) -> Any:
        def kernels(request: Request) -> Iterable[Candidate]:
            for candidate in toy.installed("reference").kernels(request):
                where = candidate.input_layouts, candidate.output_layouts
                for number, time in enumerate(seconds):
                    yield Candidate(f"kernel {number}", candidate.bind, *where, seconds=time)

        return toy.plugin("timed", kernels=kernels)

    def chosen(*seconds: float | None) -> set[str]:
        return {e.kernel for e in train(toy.classifier(), kernels=[offering(*seconds)]).plan.entries}

    assert chosen(2e-3, 1e-3, 3e-3) == {"kernel 1"}
    assert chosen(2e-3, None, 1e-3) == {"kernel 0"}


def test_blobs_that_do_not_fit_are_both_named_with_their_shapes(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(
        samples,
        toy.layer("left", "InnerProduct", "data", "left", outputs=5),
        toy.layer("right", "InnerProduct", "data", "right", outputs=6),
        toy.layer("both", "Sum", "left right", "both"),
    )
    with pytest.raises(ShapeError) as caught:
        train(net)
    message = str(caught.value)
    assert "toy.net: layer 'both' (Sum)" in message
    assert "left (4x5 float64)" in message
    assert "right (4x6 float64)" in message


def test_a_parameter_that_does_not_fit_is_named_with_its_shape(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(samples, toy.layer("scores", "InnerProduct", "data", "scores", outputs=5, inputs=7))
    with pytest.raises(ShapeError, match=r"layer 'scores'.*data \(4x1x6x6.*scores\[0\] \(5x7 float64\)"):
        train(net)


def test_sharing_a_parameter_of_another_shape_names_both_layers_and_shapes(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(
        samples,
        toy.layer("left", "InnerProduct", "data", "left", outputs=5, share="both"),
        toy.layer("right", "InnerProduct", "data", "right", outputs=6, share="both"),
    )
    with pytest.raises(
        ShapeError, match=r"'right'.*'both' with layer 'left'.*\(5, 36\); here it is \(6, 36\)"
    ):
        train(net)


def test_an_unknown_bottom_is_named_with_the_nearest(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(samples, toy.layer("scores", "InnerProduct", "dat", "scores", outputs=5))
    with pytest.raises(ModelError, match=r"layer 'scores'.*unknown bottom blob 'dat'.*mean 'data'"):
        train(net)


def test_an_unknown_layer_type_is_named_with_the_nearest(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(samples, toy.layer("scores", "InnerProdukt", "data", "scores", outputs=5))
    with pytest.raises(ModelError, match=r"'scores'.*layer type 'InnerProdukt'.*mean 'InnerProduct'"):
        train(net)


def test_a_top_of_another_layer_is_not_taken_silently(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(
        samples,
        toy.layer("left", "InnerProduct", "data", "scores", outputs=3),
        toy.layer("right", "InnerProduct", "data", "scores", outputs=3),
    )
    with pytest.raises(ModelError, match=r"layer 'right'.*top 'scores' is already the top of another"):
        train(net)


def test_a_net_without_a_loss_cannot_be_trained(toy: ModuleType, samples: Layer, train: Train) -> None:
    with pytest.raises(ModelError, match=r"toy\.net: the net has no loss"):
        train(toy.net(samples, toy.layer("scores", "InnerProduct", "data", "scores", outputs=3)))


def test_a_plan_prints_each_operation_and_what_memory_it_saves(toy: ModuleType, train: Train) -> None:
    trainer = train(toy.classifier())
    lines = str(trainer.plan).splitlines()
    assert len(lines) == len(trainer.plan.entries) + 1
    assert "convolution" in lines[0]
    assert "reference: numpy convolution" in lines[0]
    assert "in place" in lines[1]
    assert "3 buckets" in lines[-1]


def test_two_plans_of_one_net_are_equal(toy: ModuleType, train: Train) -> None:
    assert train(toy.classifier()).plan == train(toy.classifier()).plan
    assert train(toy.classifier()).plan != train(toy.classifier(8)).plan


def test_a_place_is_where_the_machine_puts_its_workers(toy: ModuleType) -> None:
    (one,) = arrange(toy.machine(), "float32")
    assert (one.place.level, one.place.space, one.groups) == ("machine", "host", ())
    six = arrange(toy.machine(2, 3), "float32")
    assert [w.index for w in six] == [0, 1, 2, 3, 4, 5]
    assert {w.place.level for w in six} == {"thread"}
    groups = [[(g.levels, g.index) for _, g in w.groups] for w in six]
    assert groups[4] == [(("thread",), 1), (("node",), 1)]
    inner, outer = six[4].groups[0][1], six[4].groups[1][1]
    assert inner.team is six[3].groups[0][1].team
    assert inner.team is not six[1].groups[0][1].team
    assert outer.team is six[1].groups[1][1].team
    assert inner.team is not None
    assert outer.team is not None
    assert (inner.team.size, outer.team.size) == (3, 2)
