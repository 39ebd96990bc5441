"""Plans: memory is shared only where nobody notices, layouts only change where kernels disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    PLAIN,
    Candidate,
    Entry,
    Layer,
    Layout,
    ModelError,
    NetDefinition,
    Plan,
    PlanError,
    Request,
    Runtime,
    ShapeError,
    TensorSpec,
    Work,
    arrange,
)

NHWC = Layout("NHWC", (0, 2, 3, 1))
BLOCKED = Layout("NCHW4c", blocks=((1, 4),))

Train = Callable[..., Any]
MakeRuntime = Callable[..., Runtime]


def of_layer(plan: Plan, layer: str, phase: str = "forward") -> Entry:
    """The one entry of a layer in a phase, layout changes aside."""
    (entry,) = [
        e
        for e in plan.entries
        if (e.layer, e.phase) == (layer, phase) and e.operation not in ("reorder", "accumulate")
    ]
    return entry


def operations(plan: Plan, layer: str | None = None, phase: str | None = None) -> list[str]:
    return [e.operation for e in plan.entries if layer in (None, e.layer) and phase in (None, e.phase)]


@pytest.fixture
def samples(toy: ModuleType) -> Layer:
    return toy.layer("samples", "Samples", "", "data label", batch=4)  # type: ignore[no-any-return]


@pytest.fixture
def agree(toy: ModuleType, train: Train) -> Callable[..., Any]:
    """``agree(net, ...)`` trains a net some steps as planned, and once more with every blob in memory
    of its own and reference kernels only: the same losses and parameters, to the last bit unless
    ``kernels`` were given. The trainer as planned."""

    def check(net: NetDefinition, *, kernels: Any = (), **options: Any) -> Any:
        planned = train(net, kernels=kernels, **options)
        plain = train(net, retain="all", **options)
        for _ in range(4):
            ours, theirs = planned.step(1).loss, plain.step(1).loss
            assert ours == theirs or (kernels and abs(ours - theirs) < 1e-12)
        for layer, arrays in plain.net.params.items():
            for ours, theirs in zip(planned.net.params[layer], arrays, strict=True):
                assert np.array_equal(ours, theirs) or (kernels and np.allclose(ours, theirs, 1e-11))
        return planned

    return check


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
    """Nobody reads ``early``, but the user does; the layers after it need memory of their own."""
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


def untidy(toy: ModuleType, *, updates: bool) -> Any:
    """Reference kernels that ask for a workspace and leave rubbish in it; of those that update flat
    memory, or of all others."""

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

                return run

            yield Candidate(
                "untidy", bind, candidate.input_layouts, candidate.output_layouts, workspace=1000
            )

    return toy.plugin("untidy", kernels=kernels)


def test_workspaces_live_for_one_call_and_overlap_nothing(
    toy: ModuleType, train: Train, agree: Any
) -> None:
    plan = agree(toy.classifier(), kernels=[untidy(toy, updates=False)]).plan
    assert all(entry.workspace is not None for entry in plan.entries)
    without = train(toy.classifier()).plan
    assert plan.arena_bytes <= without.arena_bytes + 1024, "they share one place"


def test_kernels_that_update_get_the_workspace_that_they_ask_for(toy: ModuleType, agree: Any) -> None:
    agree(toy.classifier(), kernels=[untidy(toy, updates=True)])


# What nobody needs is not computed.


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


# Parameters.


def test_shared_parameters_have_one_place_and_add_up_their_gradients(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    """y = W (W x + b) + b, whose gradient of W is dy h^T + W^T dy x^T, computed here by hand."""
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

    # The same parameters, given to a net of its own.
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


# Layouts.


def in_layout(toy: ModuleType, layout: Layout, *names: str) -> Any:
    """Kernels that take and give images in a layout, computed by the reference on plain copies."""

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


@pytest.mark.parametrize("layout", [NHWC, BLOCKED], ids=lambda layout: layout.name)
@pytest.mark.parametrize("passes", [1, 2])
def test_kernels_of_another_layout_compute_the_same(
    toy: ModuleType, agree: Any, layout: Layout, passes: int
) -> None:
    """Weights lie in that layout too, and so must their gradients, added up or not."""
    trainer = agree(
        toy.classifier(),
        kernels=[in_layout(toy, layout, *CONVOLUTIONS)],
        solver={"passes": passes},
    )
    changes = [e for e in trainer.plan.entries if e.operation == "reorder"]
    assert changes
    assert all(e.reason in (f"plain to {layout.name}", f"{layout.name} to plain") for e in changes)
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
    """The forward kernel reads the weights as they lie, the backward kernel wants them plain."""
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


def test_a_plugin_that_passes_is_named_in_the_reason(
    toy: ModuleType, samples: Layer, train: Train
) -> None:
    plan = train(toy.classifier(), kernels=[in_layout(toy, NHWC, "convolution")]).plan
    first = of_layer(plan, "first")
    assert (first.plugin, first.kernel, first.reason) == ("other", "NHWC convolution", "preferred")
    assert of_layer(plan, "scores").reason == "not computed by other"


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
        ShapeError, match=r"'right'.*'both' with layer 'left'.*\(5, 36\); here \(6, 36\)"
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
    assert "4 buckets" in lines[-1] or "3 buckets" in lines[-1]


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
