"""Plans: layouts change only where kernels disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_entries import of_layer

from demitasse import PLAIN, Buffer, Candidate, Layer, Layout, Request, TensorSpec, Work

NHWC = Layout("NHWC", (0, 2, 3, 1))
BLOCKED = Layout("NCHW4c", blocks=((1, 4),))

Train = Callable[..., Any]


def in_layout(toy: ModuleType, layout: Layout, *names: str) -> Any:
    """Return kernels that take and return images in a layout; the reference computes on plain copies."""

    def of(spec: Any) -> Layout:
        return PLAIN if spec is None or len(spec.shape) != 4 else layout

    def plain(specs: Sequence[TensorSpec | None]) -> tuple[TensorSpec | None, ...]:
        return tuple(None if s is None else TensorSpec(s.shape, s.dtype) for s in specs)

    def kernels(request: Request) -> Iterable[Candidate]:
        if request.operation.name not in names:
            return ()
        given, made = plain(request.inputs), plain(request.outputs)
        asked = Request(request.operation, given, made, request.attributes, request.place)
        (candidate,) = toy.installed("reference").kernels(asked)

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
            xs, ys = (
                [None if s is None else np.zeros(s.shape, s.dtype) for s in specs]
                for specs in (given, made)
            )
            compute = candidate.bind(xs, ys, None)

            def work() -> None:
                for copy, array in zip(xs, inputs, strict=True):
                    if copy is not None:
                        copy[...] = of(copy).unpack(array, copy.shape)
                compute()
                for copy, array in zip(ys, outputs, strict=True):
                    if copy is not None:
                        array[...] = of(copy).pack(copy)

            return work

        kernel = f"{layout.name} {request.operation.name}"
        return [Candidate(kernel, bind, tuple(map(of, given)), tuple(map(of, made)))]

    return toy.plugin("other", kernels=kernels)


CONVOLUTIONS = (
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
)


def place(buffers: Sequence[Buffer | None]) -> Any:
    """Return where the first of an entry's inputs or outputs lies."""
    (buffer, *_) = buffers
    return buffer and (buffer.region, buffer.offset)


@pytest.mark.parametrize("layout", [NHWC, BLOCKED], ids=lambda layout: layout.name)
@pytest.mark.parametrize("passes", [1, 2])
def test_kernels_of_another_layout_compute_the_same(
    toy: ModuleType, agree: Any, layout: Layout, passes: int
) -> None:
    """Weights are in that layout, too, and so must their gradients be, accumulated or not."""
    trainer = agree(
        toy.classifier(),
        kernels=[in_layout(toy, layout, *CONVOLUTIONS)],
        solver={"passes": passes},
    )
    changes = [e for e in trainer.plan.entries if e.operation == "reorder"]
    assert changes
    assert all(e.reason in (f"plain to {layout.name}", f"{layout.name} to plain") for e in changes)
    assert not [e for e in changes if place(e.inputs) == place(e.outputs)], "onto itself"
    slot = next(slot for slot in trainer.plan.slots if ("first", 0) in slot.owners)
    assert slot.spec.layout == layout
    assert trainer.net.params["first"][0].shape == (4, 1, 3, 3)


@pytest.mark.parametrize("layout", [NHWC, BLOCKED], ids=lambda layout: layout.name)
@pytest.mark.parametrize("passes", [1, 2])
def test_parameters_without_sharing_compute_the_same_in_another_layout(
    toy: ModuleType, samples: Layer, agree: Any, layout: Layout, passes: int
) -> None:
    agree(
        toy.net(
            samples,
            toy.layer("first", "Convolution", "data", "first", outputs=3),
            toy.layer("second", "Convolution", "first", "second", outputs=5),
            toy.layer("scores", "InnerProduct", "second", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        ),
        kernels=[in_layout(toy, layout, *CONVOLUTIONS)],
        solver={"passes": passes},
    )


def test_only_a_kernel_that_wants_it_makes_the_layout_change(
    toy: ModuleType, samples: Layer, agree: Any
) -> None:
    """Forward convolutions agree with each other; the rest of the net is plain. The samples have one
    channel, and lie in either layout as they are."""
    trainer = agree(
        toy.net(
            samples,
            toy.layer("first", "Convolution", "data", "first", outputs=3),
            toy.layer("second", "Convolution", "first", "second", outputs=3),
            toy.layer("scores", "InnerProduct", "second", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        ),
        kernels=[in_layout(toy, NHWC, "convolution")],
    )
    forward = [e for e in trainer.plan.entries if e.phase == "forward"]
    assert [(e.layer, e.operation) for e in forward] == [
        ("first", "convolution"),
        ("second", "convolution"),
        ("scores", "reorder"),
        ("scores", "inner_product"),
        ("loss", "softmax_loss"),
    ]


def test_a_blob_is_reordered_once_for_two_readers(toy: ModuleType, samples: Layer, agree: Any) -> None:
    trainer = agree(
        toy.net(
            samples,
            toy.layer("whole", "Convolution", "data", "whole", outputs=3),
            toy.layer("left", "Convolution", "whole", "left", outputs=3),
            toy.layer("right", "Convolution", "whole", "right", outputs=3),
            toy.layer("both", "Sum", "left right", "both"),
            toy.layer("scores", "InnerProduct", "both", "scores", outputs=3),
            toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
        ),
        kernels=[in_layout(toy, NHWC, "convolution_backward_weights")],
    )
    of_whole = [
        e
        for e in trainer.plan.entries
        if e.operation == "reorder" and e.inputs[0] and e.inputs[0].name == "whole"
    ]
    assert len(of_whole) == 1


def test_parameters_take_the_layout_of_their_first_reader(
    toy: ModuleType, samples: Layer, train: Train, agree: Any
) -> None:
    """The forward kernel reads the weights as they lie, the backward kernel requests them plain."""
    net = toy.net(
        samples,
        toy.layer("first", "Convolution", "data", "first", outputs=3),
        toy.layer("second", "Convolution", "first", "second", outputs=4),
        toy.layer("scores", "InnerProduct", "second", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    other = [in_layout(toy, NHWC, "convolution")]
    trainer = agree(net, kernels=other)
    slots = {slot.owners[0]: slot.spec for slot in trainer.plan.slots}
    assert slots["second", 0].layout == NHWC
    assert slots["second", 1].layout == PLAIN
    read = [
        e.inputs[0].name
        for e in trainer.plan.entries
        if e.operation == "reorder" and e.inputs[0] and e.inputs[0].region == "parameters"
    ]
    assert read == ["second[0]"]
    fresh, plain = train(net, kernels=other).net.params, train(net).net.params
    assert np.array_equal(fresh["second"][0], plain["second"][0]), "params are in NCHW order"


def test_a_test_net_reads_parameters_in_the_layout_that_they_have(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    net = toy.net(
        samples,
        toy.layer("first", "Convolution", "data", "first", outputs=3),
        toy.layer("second", "Convolution", "first", "second", outputs=5),
        toy.layer("scores", "InnerProduct", "second", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    tested = toy.net(*net.layers, phase="test")
    plain = train(net, tested)
    other = train(net, tested, kernels=[in_layout(toy, BLOCKED, *CONVOLUTIONS)])
    fresh = plain.test()["loss"]
    assert other.test()["loss"] == pytest.approx(fresh, abs=1e-13)
    plain.step(3)
    other.step(3)
    assert abs(plain.test()["loss"] - fresh) > 1e-3
    assert other.test()["loss"] == pytest.approx(plain.test()["loss"], abs=1e-13)


def test_a_plugin_that_passes_is_named_in_the_reason(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    plan = train(toy.classifier(), kernels=[in_layout(toy, NHWC, "convolution")]).plan
    first = of_layer(plan, "first")
    assert (first.plugin, first.kernel, first.reason) == ("other", "NHWC convolution", "preferred")
    assert of_layer(plan, "scores").reason == "not computed by other"
