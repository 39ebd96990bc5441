"""Each layer type: the operations it emits, their attributes, and shapes worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from demitasse_caffe import fillers
from demitasse_caffe.layers import LAYER_TYPES


def test_relu_has_its_slope(build: Any) -> None:
    graph = build(
        'name: "r" type: "ReLU" bottom: "x" top: "x" relu_param { negative_slope: 0.1 }', x=(2, 3)
    )
    assert graph.operations[0][0] == "relu"
    assert graph.operations[0][2] == {"negative_slope": 0.1}


def test_lrn_is_across_channels_or_within_one(build: Any) -> None:
    text = 'type: "LRN" bottom: "x" top: "y" lrn_param {{ local_size: 3 alpha: 5e-05 k: 2 {} }}'
    across = build(text.format(""), x=(1, 8, 4, 4)).operations[0]
    within = build(text.format("norm_region: WITHIN_CHANNEL"), x=(1, 8, 4, 4)).operations[0]
    assert across[0] == "lrn_across_channels"
    assert across[2] == {"size": 3, "alpha": 5e-05, "beta": 0.75, "k": 2.0}
    assert within[0] == "lrn_within_channel"
    assert within[2] == {"size": 3, "alpha": 5e-05, "beta": 0.75, "k": 1.0}
    with pytest.raises(ValueError, match="local_size 4 has no middle"):
        build('type: "LRN" bottom: "x" top: "y" lrn_param { local_size: 4 }', x=(1, 8, 4, 4))


@pytest.mark.parametrize(
    ("parameters", "w", "y"),
    [
        ("num_output: 10", (10, 60), (2, 10)),
        ("num_output: 10 transpose: true", (60, 10), (2, 10)),
        ("num_output: 10 axis: 2", (10, 20), (2, 3, 10)),
        ("num_output: 10 axis: -1", (10, 5), (2, 3, 4, 10)),
    ],
)
def test_inner_product_flattens_from_its_axis(
    build: Any, parameters: str, w: tuple[int, ...], y: tuple[int, ...]
) -> None:
    text = f'type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ {parameters} }}'
    graph = build(text, x=(2, 3, 4, 5))
    assert [p.shape for p in graph.parameters] == [w, (10,)]
    assert graph.blobs["y"].shape == y


def test_inner_product_may_have_no_bias_and_needs_outputs(build: Any) -> None:
    text = 'type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ {} }}'
    assert len(build(text.format("num_output: 3 bias_term: false"), x=(2, 3)).parameters) == 1
    with pytest.raises(ValueError, match="needs a num_output"):
        build(text.format(""), x=(2, 3))
    with pytest.raises(ValueError, match="axis 5 is not one of the 2 axes"):
        build(text.format("num_output: 3 axis: 5"), x=(2, 3))


def test_dropout_drops_in_training_only(build: Any) -> None:
    text = 'type: "Dropout" bottom: "x" top: "y" dropout_param { dropout_ratio: 0.3 }'
    graph = build(text, x=(2, 3))
    ((name, inputs, attributes),) = graph.operations
    assert (name, attributes) == ("dropout", {"ratio": 0.3, "seed": 7, "stream": 1})
    assert [tensor.name for tensor in inputs[1:]] == ["iteration", "sample"]
    tested = build(text, "test", x=(2, 3))
    assert tested.operations == []
    assert tested.blobs["y"] is tested.blobs["x"]


def test_a_layers_own_phase_counts_more_than_the_nets(build: Any) -> None:
    assert build('type: "Dropout" bottom: "x" top: "y" phase: TEST', x=(2, 3)).operations == []
    assert build('type: "Dropout" bottom: "x" top: "y" phase: TRAIN', "test", x=(2, 3)).operations


def test_a_dropout_of_everything_is_an_error(build: Any) -> None:
    with pytest.raises(ValueError, match=r"dropout_ratio 1\.0 is not in \[0, 1\)"):
        build('type: "Dropout" bottom: "x" top: "y" dropout_param { dropout_ratio: 1 }', x=(2, 3))


@pytest.mark.parametrize("ratio", [1, 2, -0.5])
def test_a_ratio_of_dropout_has_no_effect_in_a_test(build: Any, ratio: float) -> None:
    """As in Caffe, where a test copies the input: real deploy nets have a ratio of 1."""
    text = f'type: "Dropout" bottom: "x" top: "y" dropout_param {{ dropout_ratio: {ratio} }}'
    assert build(text, "test", x=(2, 3)).operations == []


def test_softmax_is_along_its_axis(build: Any) -> None:
    graph = build('type: "Softmax" bottom: "x" top: "y" softmax_param { axis: -2 }', x=(2, 3, 4))
    assert graph.operations[0][0] == "softmax"
    assert graph.operations[0][2] == {"axis": 1}


@pytest.mark.parametrize(
    ("parameters", "normalization", "ignored"),
    [
        ("", "valid", None),
        ("loss_param { normalize: true }", "valid", None),
        ("loss_param { normalize: false }", "batch_size", None),
        ("loss_param { normalization: FULL normalize: false }", "full", None),
        ("loss_param { normalization: NONE ignore_label: 255 }", "none", 255),
        ("loss_param { ignore_label: 0 }", "valid", 0),
    ],
)
def test_softmax_loss_is_normalised_as_caffe_does(
    build: Any, parameters: str, normalization: str, ignored: int | None
) -> None:
    text = f'type: "SoftmaxWithLoss" bottom: "x" bottom: "l" top: "loss" top: "p" {parameters}'
    graph = build(text, x=(2, 3, 4, 4), l=(2, 1, 4, 4))
    assert graph.operations[0][0] == "softmax_loss"
    assert graph.operations[0][2] == {
        "axis": 1,
        "ignore_label": ignored,
        "normalization": normalization,
    }
    assert (graph.blobs["loss"].shape, graph.blobs["p"].shape) == ((), (2, 3, 4, 4))


def test_only_losses_are_part_of_the_objective() -> None:
    losses = {kind.name for kind in LAYER_TYPES if kind.loss_weight}
    assert losses == {kind.name for kind in LAYER_TYPES if "Loss" in kind.name}


def test_accuracy_has_its_numbers_and_a_share_by_class(build: Any) -> None:
    text = (
        'type: "Accuracy" bottom: "x" bottom: "l" top: "a" top: "by_class" '
        "accuracy_param { top_k: 5 ignore_label: 3 }"
    )
    graph = build(text, x=(8, 10), l=(8,))
    assert graph.operations[0][2] == {"axis": 1, "ignore_label": 3, "top_k": 5}
    assert (graph.blobs["a"].shape, graph.blobs["by_class"].shape) == ((), (10,))


def batch_norm(parameters: str = "", more: str = "") -> str:
    text = f"{more} batch_norm_param {{ {parameters} }}"
    return f'name: "n" type: "BatchNorm" bottom: "x" top: "x" {text}'


@pytest.mark.parametrize(
    ("phase", "parameters", "name"),
    [
        ("train", "", "batch_norm"),
        ("test", "", "batch_norm_inference"),
        ("train", "use_global_stats: true", "batch_norm_inference"),
        ("test", "use_global_stats: false", "batch_norm"),
    ],
)
def test_batch_normalisation_is_by_the_batch_in_training_and_by_kept_statistics_in_tests(
    build: Any, phase: str, parameters: str, name: str
) -> None:
    graph = build(batch_norm(parameters), phase, x=(8, 6, 5, 4))
    assert [operation for operation, _, _ in graph.operations] == [name]
    assert graph.blobs["x"].shape == (8, 6, 5, 4)


def test_batch_normalisation_has_caffes_numbers(build: Any) -> None:
    usual = build(batch_norm(), x=(8, 6)).operations[0][2]
    sums = {"averaged": False, "relu": False}
    assert usual == {"keep": 0.999, "epsilon": 1e-5, **sums}
    text = batch_norm("moving_average_fraction: 0.9 eps: 0.001")
    assert build(text, x=(8, 6)).operations[0][2] == {"keep": 0.9, "epsilon": 0.001, **sums}
    # With an epsilon of 0 a constant channel, or one that only pads a layout, would be 0 / 0.
    assert 0 < build(batch_norm("eps: 0"), x=(8, 6)).operations[0][2]["epsilon"] < 1e-37


@pytest.mark.parametrize("rates", ["", "param { lr_mult: 0 } " * 3, "param { lr_mult: 1 name: 's' }"])
def test_statistics_are_three_blobs_that_nobody_trains(build: Any, rates: str) -> None:
    parameters = build(batch_norm(more=rates), x=(8, 6, 5, 4)).parameters
    assert [p.shape for p in parameters] == [(6,), (6,), (1,)]
    assert not any(p.trainable or p.rate or p.decay for p in parameters)
    assert not any(p.filler(p.shape, None).any() for p in parameters)
    assert parameters[0].shared == ("s" if "name" in rates else None)


@pytest.mark.parametrize(
    ("parameters", "x", "message"),
    [
        ("eps: -1", (8, 6), "eps -1.0 is not a number >= 0"),
    ],
)
def test_a_batch_normalisation_that_cannot_be_says_why(
    build: Any, parameters: str, x: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(batch_norm(parameters), x=x)


@pytest.mark.parametrize(
    ("parameters", "axis", "shape"),
    [
        ("", 1, (3,)),
        ("axis: 2 num_axes: 2", 2, (4, 5)),
        ("axis: -1", 3, (5,)),
        ("num_axes: -1", 1, (3, 4, 5)),
        ("num_axes: 0", 1, ()),
        ("axis: 0 num_axes: 4", 0, (2, 3, 4, 5)),
    ],
)
def test_scales_and_biases_lie_along_axes(
    build: Any, parameters: str, axis: int, shape: tuple[int, ...]
) -> None:
    text = f'bottom: "x" top: "y" scale_param {{ bias_term: true {parameters} }}'
    graph = build(f'type: "Scale" {text}', x=(2, 3, 4, 5))
    scale, bias = graph.parameters
    assert (scale.shape, scale.filler) == (shape, fillers.Constant(1.0))
    assert (bias.shape, bias.filler) == (shape, fillers.Constant(0.0))
    assert [(name, given) for name, _, given in graph.operations] == [("scale", {"axis": axis})]
    graph = build(f'type: "Bias" bottom: "x" top: "y" bias_param {{ {parameters} }}', x=(2, 3, 4, 5))
    (bias,) = graph.parameters
    assert (bias.shape, bias.filler) == (shape, fillers.Constant(0.0))
    assert graph.operations[0][2] == {"axis": axis}


def test_scales_and_biases_are_filled_and_trained_as_they_say(build: Any) -> None:
    text = (
        'type: "Scale" bottom: "x" top: "y" param { lr_mult: 2 } param { decay_mult: 0 } scale_param { '
        "bias_term: true filler { value: 0.5 } bias_filler { type: 'gaussian' std: 3 } }"
    )
    scale, bias = build(text, x=(2, 3)).parameters
    assert (scale.filler, scale.rate, scale.decay) == (fillers.Constant(0.5), 2.0, 1.0)
    assert (bias.filler, bias.rate, bias.decay) == (fillers.Gaussian(0.0, 3.0, -1), 1.0, 0.0)


def test_a_second_bottom_is_the_scale_or_the_bias(build: Any) -> None:
    text = 'type: "{}" bottom: "x" bottom: "w" top: "y" {}'
    shapes = {"x": (2, 3, 4), "w": (2, 3)}
    graph = build(text.format("Scale", "scale_param { axis: 0 bias_term: true }"), **shapes)
    assert [p.shape for p in graph.parameters] == [(2, 3)]
    assert graph.operations[0][1][1] is graph.blobs["w"]
    graph = build(text.format("Bias", "bias_param { axis: 0 }"), **shapes)
    assert graph.parameters == []
    assert graph.operations[0][1][2] is graph.blobs["w"]
    total = 'name: "sum" type: "Reduction" bottom: "x" top: "w" } layer { '
    graph = build(total + text.format("Scale", ""), x=(5,))  # a single number, whatever the axis
    assert graph.operations[1][2] == {"axis": 0}
    for kind in ("Scale", "Bias"):
        with pytest.raises(
            ValueError, match=r"^w \(2x3 .* does not have the extents of x .* from axis 1"
        ):
            build(text.format(kind, ""), **shapes)


@pytest.mark.parametrize("kind", ["Scale", "Bias"])
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("axis: 3", "axis 3 is not one of the 3 axes"),
        ("axis: 1 num_axes: 3", "num_axes 3 from axis 1 on is more than"),
        ("num_axes: -2", "num_axes -2 from axis 1 on"),
    ],
)
def test_a_scale_or_bias_that_cannot_be_says_why(
    build: Any, kind: str, parameters: str, message: str
) -> None:
    text = f'type: "{kind}" bottom: "x" top: "y" {kind.lower()}_param {{ {parameters} }}'
    with pytest.raises(ValueError, match=message):
        build(text, x=(2, 3, 4))


def test_concat_joins_along_its_axis(build: Any) -> None:
    text = 'type: "Concat" bottom: "x" bottom: "z" top: "y" concat_param {{ {} }}'
    shapes = {"x": (2, 3, 4), "z": (2, 5, 4)}
    assert build(text.format(""), **shapes).blobs["y"].shape == (2, 8, 4)
    assert build(text.format("axis: -2"), **shapes).blobs["y"].shape == (2, 8, 4)
    assert build(text.format("concat_dim: 1"), **shapes).blobs["y"].shape == (2, 8, 4)
    with pytest.raises(ValueError, match="cannot be combined"):
        build(text.format("concat_dim: 1 axis: 1"), **shapes)
    with pytest.raises(ValueError, match="cannot join"):
        build(text.format("axis: 2"), **shapes)
    with pytest.raises(ValueError, match="axis 3 is not one of the 3 axes"):
        build(text.replace('bottom: "z"', "").format("axis: 3"), **shapes)


def test_eltwise_sums_with_coefficients(build: Any) -> None:
    text = 'type: "Eltwise" bottom: "x" bottom: "z" top: "y" eltwise_param {{ {} }}'
    shapes = {"x": (2, 3), "z": (2, 3)}
    graph = build(text.format("coeff: 1 coeff: -0.5"), **shapes)
    assert graph.operations[0][0] == "sum"
    assert graph.operations[0][2] == {"coefficients": (1.0, -0.5)}
    with pytest.raises(ValueError, match="1 coeff for 2 bottoms"):
        build(text.format("coeff: 1"), **shapes)
    with pytest.raises(ValueError, match="coeff"):
        build(text.format("operation: PROD coeff: 1 coeff: 2"), **shapes)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("InnerProduct", "inner_product_param { num_output: 2000000000 }"),
        ("Embed", "embed_param { input_dim: 4000000000 num_output: 8 }"),
        ("Tile", "tile_param { tiles: 2000000000 }"),
        ("Interp", "interp_param { height: 2000000000 width: 2000000000 }"),
        ("Upsample", "upsample_param { scale: 4000000000 }"),
        ("ContinuationIndicator", "continuation_indicator_param { time_step: 99999 batch_size: 99999 }"),
    ],
)
def test_an_absurd_size_is_refused_before_memory_is_taken(
    build: Any, kind: str, parameters: str
) -> None:
    with pytest.raises(ValueError, match=r"elements; at most 2,147,483,647"):
        bottom = "" if kind == "ContinuationIndicator" else 'bottom: "x"'
        build(f'type: "{kind}" {bottom} top: "y" {parameters}', x=(2, 60, 1, 1))


def test_more_axes_than_a_blob_of_caffes_has_are_refused(build: Any) -> None:
    ones = "dim: 1 " * 33
    with pytest.raises(ValueError, match="top 'y' would have 33 axes; at most 32"):
        build(f'type: "Input" top: "y" input_param {{ shape {{ {ones} }} }}')
    with pytest.raises(ValueError, match="top 'y' would have 33 axes; at most 32"):
        build(f'type: "Reshape" bottom: "x" top: "y" reshape_param {{ shape {{ {ones} }} }}', x=(1,))


@pytest.mark.parametrize("kind", ["Flatten", "Reshape"])
def test_a_layer_that_gives_another_shape_does_not_work_in_place(build: Any, kind: str) -> None:
    with pytest.raises(ValueError, match="does not work in place: give the top a name of its own"):
        build(f'type: "{kind}" bottom: "x" top: "x"', x=(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [("", (2, 60)), ("axis: 2", (2, 3, 20)), ("axis: 1 end_axis: 2", (2, 12, 5)), ("axis: 0", (120,))],
)
def test_flatten_joins_axes(build: Any, parameters: str, shape: tuple[int, ...]) -> None:
    text = f'type: "Flatten" bottom: "x" top: "y" flatten_param {{ {parameters} }}'
    assert build(text, x=(2, 3, 4, 5)).blobs["y"].shape == shape


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ("shape { dim: 0 dim: -1 }", (2, 60)),
        ("shape { dim: 0 dim: 0 dim: 20 }", (2, 3, 20)),
        ("shape { dim: -1 } axis: 1", (2, 60)),
        ("shape { dim: 2 dim: -1 } axis: 1 num_axes: 2", (2, 2, 6, 5)),
        ("shape { dim: 1 } axis: -1 num_axes: 0", (2, 3, 4, 5, 1)),
        ("shape { dim: 1 } axis: 0 num_axes: 0", (1, 2, 3, 4, 5)),
        ("axis: 2 num_axes: 0", (2, 3, 4, 5)),
    ],
)
def test_reshape_copies_and_infers(build: Any, parameters: str, shape: tuple[int, ...]) -> None:
    text = f'type: "Reshape" bottom: "x" top: "y" reshape_param {{ {parameters} }}'
    assert build(text, x=(2, 3, 4, 5)).blobs["y"].shape == shape


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("shape { dim: -1 dim: -1 }", "once, -1"),
        ("shape { dim: -2 }", "once, -1"),
        ("shape { dim: 7 dim: -1 }", "are not divisible by 7"),
        ("shape { dim: 1 dim: 1 dim: 1 dim: 1 dim: 0 }", "has no axis"),
        ("shape { dim: 7 }", "cannot view"),
        ("shape { dim: 1 } axis: 9", "axis 9 is not one of"),
        ("shape { dim: 1 } axis: 3 num_axes: 4", "goes beyond"),
        ("axis: 1 num_axes: 1", r"reshape_param { shape { dim: ... } } is not given"),
    ],
)
def test_a_reshape_that_cannot_be_says_why(build: Any, parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(f'type: "Reshape" bottom: "x" top: "y" reshape_param {{ {parameters} }}', x=(2, 3, 4, 5))


def test_split_and_silence_compute_nothing(build: Any) -> None:
    graph = build('type: "Split" bottom: "x" top: "a" top: "b"', x=(2, 3))
    assert graph.blobs["a"] is graph.blobs["b"] is graph.blobs["x"]
    assert build('type: "Silence" bottom: "x"', x=(2, 3)).operations == graph.operations == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "ReLU" top: "y"', r"has 0 bottoms \(none\), not 1"),
        ('type: "ReLU" bottom: "x" bottom: "x" top: "y"', r"has 2 bottoms \(x, x\), not 1"),
        ('type: "Accuracy" bottom: "x" top: "y"', r"has 1 bottom \(x\), not 2"),
        ('type: "Silence" bottom: "x" top: "y"', r"has 1 top \(y\), not 0"),
        ('type: "Eltwise" bottom: "x" top: "y"', r"has 1 bottom \(x\), not 2 or more"),
        ('type: "Pooling" bottom: "x"', r"has 0 tops \(none\), not 1 to 2"),
    ],
)
def test_a_wrong_number_of_blobs_says_how_many(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text, x=(2, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"Power" bottom: "x" top: "y" power_param { scale: nan }', "power_param { scale: nan }"),
        ('"Power" bottom: "x" top: "y" power_param { shift: -inf }', "power_param { shift: -inf }"),
        ('"Power" bottom: "x" top: "y" loss_weight: inf', "loss_weight: inf"),
        ('"PReLU" bottom: "x" top: "y" param { lr_mult: nan }', "param { lr_mult: nan }"),
        ('"Clip" bottom: "x" top: "y" clip_param { min: nan max: 1 }', "clip_param { min: nan }"),
        (
            '"Eltwise" bottom: "x" bottom: "x" top: "y" eltwise_param { coeff: 1 coeff: nan }',
            "eltwise_param { coeff: nan }",
        ),
        (
            '"InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 '
            'bias_filler { type: "constant" value: inf } }',
            "bias_filler { value: inf }",
        ),
    ],
)
def test_a_field_that_is_not_finite_is_named(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} is not a finite number"):
        build(f"type: {text}", x=(2, 3))


def test_a_bound_may_be_infinite(build: Any) -> None:
    text = 'type: "Clip" bottom: "x" top: "y" clip_param { min: 0 max: inf }'
    assert build(text, x=(2, 3)).operations[0][2] == {"least": 0.0, "most": math.inf}
    with pytest.raises(ValueError, match=r"a min of 2 above its max of 1"):
        build('type: "Clip" bottom: "x" top: "y" clip_param { min: 2 max: 1 }', x=(2, 3))


def test_interp_says_what_it_resizes(build: Any) -> None:
    text = 'type: "Interp" bottom: "x" top: "y" interp_param { height: 2 width: 2 PADS }'
    with pytest.raises(
        ValueError, match=r"resizes samples x channels x rows x columns; its bottom is x"
    ):
        build(text.replace("PADS", ""), x=(2, 3))
    with pytest.raises(ValueError, match=r"pad_beg 1 and pad_end 0 cut off, and must be 0 or less"):
        build(text.replace("PADS", "pad_beg: 1"), x=(2, 3, 4, 4))
