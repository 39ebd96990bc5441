"""Each layer type: the operations it emits, their attributes, and shapes worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError, NetDefinition
from demitasse_caffe import fillers
from demitasse_caffe.layers import LAYER_TYPES
from demitasse_caffe.plugin import model_reader

TYPES = {kind.name: kind for kind in LAYER_TYPES}


def definition(read: Any, text: str, shapes: dict[str, tuple[int, ...]], phase: str) -> NetDefinition:
    inputs = "".join(
        f'layer {{ name: "in_{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {extent}" for extent in shape)
        + " } } }\n"
        for name, shape in shapes.items()
    )
    net: NetDefinition = read(inputs + text).net(phase)
    return net


@pytest.fixture
def build(read: Any, recorder: Any) -> Any:
    """Build a layer below inputs ``x`` (and more) of the given shapes."""

    def build(text: str, phase: str = "train", **shapes: tuple[int, ...]) -> Any:
        graph = recorder(phase)
        graph.expand(definition(read, f"layer {{ {text} }}", shapes, phase))
        return graph

    return build


def convolution(parameters: str, tops: str = 'top: "y"', more: str = "") -> str:
    return (
        f'name: "c" type: "Convolution" bottom: "x" {tops} {more} convolution_param {{ {parameters} }}'
    )


@pytest.mark.parametrize(
    ("parameters", "x", "w", "y"),
    [
        # (224 + 2 * 3 - 7) / 2 + 1 = 112.5, rounded down.
        ("num_output: 64 kernel_size: 7 stride: 2 pad: 3", (10, 3, 224, 224), (64, 3, 7, 7), (112, 112)),
        ("num_output: 20 kernel_size: 5", (64, 1, 28, 28), (20, 1, 5, 5), (24, 24)),
        ("num_output: 8 kernel_size: 3 pad: 1 group: 2", (1, 6, 9, 9), (8, 3, 3, 3), (9, 9)),
        ("num_output: 4 kernel_h: 1 kernel_w: 3", (1, 2, 5, 8), (4, 2, 1, 3), (5, 6)),
        ("num_output: 4 kernel_size: 1 kernel_size: 3", (1, 2, 5, 8), (4, 2, 1, 3), (5, 6)),
        ("num_output: 4 kernel_size: 3 stride_h: 2 stride_w: 1", (1, 2, 7, 7), (4, 2, 3, 3), (3, 5)),
        ("num_output: 4 kernel_size: 3 pad_h: 1", (1, 2, 7, 7), (4, 2, 3, 3), (7, 5)),
        # A kernel of 3 with dilation 2 reaches 5: 9 - 5 + 1.
        ("num_output: 4 kernel_size: 3 dilation: 2", (1, 2, 9, 9), (4, 2, 3, 3), (5, 5)),
        ("num_output: 4 kernel_size: 3", (2, 3, 9), (4, 3, 3), (7,)),
        ("num_output: 4 kernel_size: 3 pad: 1", (2, 3, 4, 5, 6), (4, 3, 3, 3, 3), (4, 5, 6)),
    ],
)
def test_convolution_has_the_shape_of_its_windows(
    build: Any, parameters: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]
) -> None:
    graph = build(convolution(parameters), x=x)
    assert [p.shape for p in graph.parameters] == [w, (w[0],)]
    assert graph.blobs["y"].shape == (x[0], w[0], *y)


def test_convolution_passes_its_numbers_on(build: Any) -> None:
    graph = build(
        convolution("num_output: 8 kernel_size: 3 stride: 2 pad: 1 dilation: 2 group: 4"),
        x=(1, 8, 32, 32),
    )
    ((name, inputs, attributes),) = graph.operations
    assert name == "convolution"
    assert attributes == {"stride": (2, 2), "pad": (1, 1), "dilation": (2, 2), "groups": 4}
    assert [tensor.shape for tensor in inputs] == [(1, 8, 32, 32), (8, 2, 3, 3), (8,)]


def test_parameters_have_their_multipliers_fillers_and_shared_names(build: Any) -> None:
    graph = build(
        convolution(
            "num_output: 8 kernel_size: 3 weight_filler { type: 'gaussian' std: 0.01 } "
            "bias_filler { type: 'constant' value: 0.1 }",
            more="param { lr_mult: 0.5 decay_mult: 0 name: 'w' } param { lr_mult: 2 }",
        ),
        x=(1, 3, 8, 8),
    )
    w, b = graph.parameters
    assert (w.rate, w.decay, w.shared, w.filler) == (0.5, 0.0, "w", fillers.Gaussian(0.0, 0.01, -1))
    assert (b.rate, b.decay, b.shared, b.filler) == (2.0, 1.0, None, fillers.Constant(0.1))


def test_a_convolution_may_have_no_bias(build: Any) -> None:
    graph = build(convolution("num_output: 8 kernel_size: 3 bias_term: false"), x=(1, 3, 8, 8))
    assert [p.shape for p in graph.parameters] == [(8, 3, 3, 3)]
    assert graph.operations[0][1][2] is None


def test_several_bottoms_share_a_convolutions_kernels(build: Any) -> None:
    text = convolution("num_output: 2 kernel_size: 1", 'top: "y" top: "z" bottom: "x2"')
    graph = build(text, x=(1, 3, 8, 8), x2=(1, 3, 4, 4))
    assert len(graph.parameters) == 2
    assert (graph.blobs["y"].shape, graph.blobs["z"].shape) == ((1, 2, 8, 8), (1, 2, 4, 4))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("kernel_size: 3", "needs a num_output"),
        ("num_output: 4", "needs a kernel_size"),
        ("num_output: 4 kernel_size: 0", r"kernel_size \(0, 0\) is not positive"),
        ("num_output: 4 kernel_size: 3 stride: 0", r"stride \(0, 0\) is not positive"),
        ("num_output: 4 kernel_size: 3 kernel_h: 3", "kernel_size and kernel_h or kernel_w exclude"),
        ("num_output: 4 kernel_h: 3", "needs both kernel_h and kernel_w"),
        ("num_output: 4 kernel_size: 3 kernel_size: 3 kernel_size: 3", "3 numbers for 2 spatial axes"),
        ("num_output: 4 kernel_size: 3 group: 2", "group 2 does not divide 3 input channels"),
        ("num_output: 4 kernel_size: 3 weight_filler { type: 'xaver' }", "did you mean 'xavier'"),
    ],
)
def test_a_convolution_that_cannot_be_says_why(build: Any, parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(convolution(parameters), x=(1, 3, 8, 8))


def pooling(parameters: str, tops: str = 'top: "y"') -> str:
    return f'name: "p" type: "Pooling" bottom: "x" {tops} pooling_param {{ {parameters} }}'


@pytest.mark.parametrize(
    ("parameters", "x", "y"),
    [
        # (32 - 3) / 2 = 14.5, rounded up, + 1: Caffe's rule.
        ("kernel_size: 3 stride: 2", (32, 32), (16, 16)),
        ("kernel_size: 3 stride: 2 round_mode: FLOOR", (32, 32), (15, 15)),
        ("kernel_size: 2 stride: 2", (24, 24), (12, 12)),
        ("kernel_size: 3 stride: 2", (55, 55), (27, 27)),
        # ceil((7 + 2 - 2) / 2) + 1 = 5, whose last window would start at 8 >= 7 + 1: dropped.
        ("kernel_size: 2 stride: 2 pad: 1", (7, 7), (4, 4)),
        ("kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1", (6, 6), (3, 4)),
        ("global_pooling: true", (7, 5), (1, 1)),
        ("pool: AVE kernel_size: 8", (8, 8), (1, 1)),
        # ceil((3 - 5) / 3) + 1 = 1: a window beyond the edges, as of GoogLeNets on small images.
        ("pool: AVE kernel_size: 5 stride: 3", (3, 3), (1, 1)),
        ("kernel_size: 9 stride: 3 pad: 1", (5, 8), (1, 2)),
    ],
)
def test_pooling_rounds_up(build: Any, parameters: str, x: tuple[int, int], y: tuple[int, int]) -> None:
    assert build(pooling(parameters), x=(2, 3, *x)).blobs["y"].shape == (2, 3, *y)


def test_pooling_is_by_maximum_or_average(build: Any) -> None:
    names = [
        build(pooling(f"pool: {how} kernel_size: 2"), x=(1, 1, 4, 4)).operations[0][0]
        for how in ("MAX", "AVE")
    ]
    assert names == ["pooling_max", "pooling_average"]


@pytest.mark.parametrize("how", ["MAX", "AVE"])
def test_the_only_window_may_be_larger_than_the_space_and_is_then_all_of_it(
    build: Any, how: str
) -> None:
    text = f"pool: {how} kernel_size: 9 stride: 3 pad: 1"
    attributes = build(pooling(text), x=(1, 1, 5, 6)).operations[0][2]
    assert attributes["kernel"] == (7, 8)


def test_a_second_top_of_maximum_pooling_is_the_place(build: Any) -> None:
    graph = build(pooling("kernel_size: 2", 'top: "y" top: "mask"'), x=(1, 1, 4, 4))
    assert graph.blobs["mask"].shape == (1, 1, 3, 3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("stride: 2", "needs a kernel_size"),
        ("global_pooling: true kernel_size: 2", "give no kernel_size"),
        ("global_pooling: true pad: 1", "pad 0 and stride 1"),
        ("kernel_size: 2 stride: 0", "not positive"),
        ("kernel_size: 2 pad: 2", "pad of 2 is not smaller than the window"),
        ("kernel_size: 9", "window of 9 does not fit"),
        ("kernel_size: 10 stride: 2", "window of 10 does not fit"),
        ("kernel_size: 9 stride: 2 round_mode: FLOOR", "window of 9 does not fit"),
    ],
)
def test_a_pooling_that_cannot_be_says_why(build: Any, parameters: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(pooling(parameters), x=(1, 1, 8, 8))


def test_an_average_has_no_places(build: Any) -> None:
    with pytest.raises(ValueError, match="only pool MAX has a second top"):
        build(pooling("pool: AVE kernel_size: 2", 'top: "y" top: "z"'), x=(1, 1, 4, 4))


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
    assert usual == {"keep": 0.999, "epsilon": 1e-5, "relu": False}
    text = batch_norm("moving_average_fraction: 0.9 eps: 0.001")
    assert build(text, x=(8, 6)).operations[0][2] == {"keep": 0.9, "epsilon": 0.001, "relu": False}
    # With 0 a channel that is constant would be 0 / 0, and so would what only pads a layout.
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
        ("", (8,), "normalises samples x channels x space"),
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
    graph = build(total + text.format("Scale", ""), x=(5,))  # one number for all, whatever the axis
    assert graph.operations[1][2] == {"axis": 0}
    with pytest.raises(ValueError, match=r"w \(2, 3\) and b None do not fit x \(2, 3, 4\) from axis 1"):
        build(text.format("Scale", ""), **shapes)


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
    with pytest.raises(ValueError, match="exclude each other"):
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
    ],
)
def test_an_absurd_size_is_refused_before_memory_is_taken(
    build: Any, kind: str, parameters: str
) -> None:
    with pytest.raises(ValueError, match=r"elements; at most 2,147,483,647"):
        build(f'type: "{kind}" bottom: "x" top: "y" {parameters}', x=(2, 60))


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
        ("shape { dim: 7 dim: -1 }", "do not divide by 7"),
        ("shape { dim: 1 dim: 1 dim: 1 dim: 1 dim: 0 }", "has no axis"),
        ("shape { dim: 7 }", "cannot view"),
        ("shape { dim: 1 } axis: 9", "axis 9 is not one of"),
        ("shape { dim: 1 } axis: 3 num_axes: 4", "goes beyond"),
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
        ('type: "Accuracy" bottom: "x" top: "y"', r"has 1 bottoms \(x\), not 2"),
        ('type: "Silence" bottom: "x" top: "y"', r"has 1 tops \(y\), not 0"),
        ('type: "Eltwise" bottom: "x" top: "y"', r"has 1 bottoms \(x\), not 2 or more"),
        ('type: "Pooling" bottom: "x"', r"has 0 tops \(none\), not 1 to 2"),
    ],
)
def test_a_wrong_number_of_blobs_says_how_many(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text, x=(2, 3))


# Samples.


def test_input_gives_the_declared_shapes(build: Any) -> None:
    graph = build(
        'type: "Input" top: "a" top: "b" input_param { shape { dim: 2 dim: 3 } shape { dim: 4 } }'
    )
    assert (graph.blobs["a"].shape, graph.blobs["b"].shape) == ((2, 3), (4,))
    same = build('type: "Input" top: "a" top: "b" input_param { shape { dim: 2 } }')
    assert same.blobs["a"].shape == same.blobs["b"].shape == (2,)
    with pytest.raises(ValueError, match=r"top 'a' has the shape \(\); write input_param"):
        build('type: "Input" top: "a"')
    with pytest.raises(ValueError, match="3 shapes for 1 tops"):
        build('type: "Input" top: "a" input_param { shape {} shape {} shape {} }')


def data(parameters: str = "", transform: str = "", tops: str = 'top: "data" top: "label"') -> str:
    return (
        f'name: "d" type: "Data" {tops} data_param {{ source: "digits:train" batch_size: 8 '
        f"{parameters} }} {transform}"
    )


def test_data_without_a_transformation_is_read_as_real_numbers(build: Any) -> None:
    graph = build(data("shuffle: true"))
    ((spec, batch, fields),) = graph.sources
    assert (spec.source, spec.kind, spec.shuffle, spec.seed) == ("digits:train", None, True, 7)
    assert (batch, fields) == (8, {"data": "real", "label": "real"})
    assert spec.location.line == 1
    assert graph.operations == []
    assert (graph.blobs["data"].shape, graph.blobs["label"].shape) == ((8, 3, 32, 32), (8,))


def test_data_without_a_second_top_has_no_label(build: Any) -> None:
    assert build(data(tops='top: "data"')).sources[0][2] == {"data": "real"}


def test_data_is_transformed_as_it_is_stored(build: Any) -> None:
    transform = "transform_param { scale: 0.00390625 crop_size: 28 mirror: true mean_value: 5 }"
    graph = build(data(transform=transform))
    assert graph.sources[0][2] == {"data": "raw", "label": "real"}
    ((name, inputs, attributes),) = graph.operations
    assert name == "image_transform"
    assert [tensor.name for tensor in inputs] == ["data", "d.mean", "iteration", "sample"]
    assert attributes == {
        "scale": 0.00390625,
        "crop": 28,
        "mirror": True,
        "random": True,
        "seed": 7,
        "stream": 0,
    }
    assert graph.blobs["data"].shape == (8, 3, 28, 28)
    assert build(data(transform=transform), "test").operations[0][2]["random"] is False


def test_a_mean_is_one_number_or_one_a_channel(build: Any) -> None:
    one = build(data(transform="transform_param { mean_value: 5 }"))
    assert one.constants["d.mean"].tolist() == [[[5.0]]]
    three = build(data(transform="transform_param { mean_value: 1 mean_value: 2.5 mean_value: 3 }"))
    assert three.constants["d.mean"].reshape(-1).tolist() == [1.0, 2.5, 3.0]
    assert three.constants["d.mean"].shape == (3, 1, 1)
    with pytest.raises(ValueError, match="2 mean_value for 3 channels; give 1 or 3"):
        build(data(transform="transform_param { mean_value: 1 mean_value: 2 }"))


def test_a_mean_file_lies_beside_the_net_or_is_missed_by_name(
    build: Any, shared: Path, tmp_path: Path
) -> None:
    mean = (shared / "mean/cifar10_mean.binaryproto").read_bytes()
    (tmp_path / "mean.binaryproto").write_bytes(mean)
    graph = build(data(transform="transform_param { mean_file: 'examples/mean.binaryproto' }"))
    assert graph.constants["d.mean"].shape == (3, 32, 32)
    # The mean of CIFAR-10's training images by colour, as published: 125.3, 123.0, 113.9.
    assert np.sort(graph.constants["d.mean"].mean(axis=(1, 2))) == pytest.approx(
        [113.9, 123.0, 125.3], abs=0.1
    )
    with pytest.raises(ModelError, match=r":1: layer 'd' \(Data\): mean_file 'meen.*' is not there"):
        build(data(transform="transform_param { mean_file: 'meen.binaryproto' }"))
    with pytest.raises(ValueError, match="mean_file and mean_value exclude"):
        build(data(transform="transform_param { mean_file: 'mean.binaryproto' mean_value: 1 }"))


def test_the_backend_is_named_where_its_files_are(build: Any, tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db/data.mdb").touch()
    text = 'name: "d" type: "Data" top: "x" data_param {{ source: "{}" batch_size: 1 backend: LMDB }}'
    (found, _, _), (word, _, _) = (
        build(text.format(source)).sources[0] for source in ("db", "digits:test")
    )
    assert (found.source, found.kind) == (str(tmp_path / "db"), "lmdb")
    assert (word.source, word.kind) == ("digits:test", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "Data" top: "x" data_param { batch_size: 1 }', "needs a source"),
        ('type: "Data" top: "x" data_param { source: "a" }', "needs a batch_size"),
        (data("scale: 0.5"), "data_param has scale, which Caffe no longer reads there"),
        (data(transform="transform_param { crop_size: 40 }"), "crop of 40 does not fit"),
    ],
)
def test_data_that_cannot_be_says_why(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text)


# Whole nets, with shapes as their papers and Caffe's logs give them.

LENET = {
    "conv1": (20, 24, 24),
    "pool1": (20, 12, 12),
    "conv2": (50, 8, 8),
    "pool2": (50, 4, 4),
    "ip1": (500,),
    "ip2": (10,),
}
CIFAR_QUICK = {
    "conv1": (32, 32, 32),
    "pool1": (32, 16, 16),
    "conv2": (32, 16, 16),
    "pool2": (32, 8, 8),
    "conv3": (64, 8, 8),
    "pool3": (64, 4, 4),
    "ip1": (64,),
    "ip2": (10,),
}
CIFAR_FULL = {
    "conv1": (32, 32, 32),
    "pool1": (32, 16, 16),
    "norm1": (32, 16, 16),
    "conv2": (32, 16, 16),
    "pool2": (32, 8, 8),
    "conv3": (64, 8, 8),
    "pool3": (64, 4, 4),
    "ip1": (10,),
}
ALEXNET = {
    "conv1": (96, 55, 55),
    "norm1": (96, 55, 55),
    "pool1": (96, 27, 27),
    "conv2": (256, 27, 27),
    "pool2": (256, 13, 13),
    "conv3": (384, 13, 13),
    "conv4": (384, 13, 13),
    "conv5": (256, 13, 13),
    "pool5": (256, 6, 6),
    "fc6": (4096,),
    "fc7": (4096,),
    "fc8": (1000,),
}
GOOGLENET = {
    "conv1/7x7_s2": (64, 112, 112),
    "pool1/3x3_s2": (64, 56, 56),
    "inception_3a/output": (256, 28, 28),
    "inception_4a/output": (512, 14, 14),
    "inception_5b/output": (1024, 7, 7),
    "pool5/7x7_s1": (1024, 1, 1),
    "prob": (1000,),
}
# Learned numbers: LeNet 431,080 and AlexNet 60,965,224 are the published counts; the others are sums
# of outputs * (inputs + 1) over their layers, by hand.
NETS = [
    ("examples/mnist/lenet.prototxt", 64, LENET, 431080),
    ("examples/cifar10/cifar10_quick.prototxt", 1, CIFAR_QUICK, 145578),
    ("examples/cifar10/cifar10_full.prototxt", 1, CIFAR_FULL, 89578),
    ("models/bvlc_alexnet/deploy.prototxt", 10, ALEXNET, 60965224),
    ("models/bvlc_googlenet/deploy.prototxt", 10, GOOGLENET, 6998552),
]


@pytest.mark.parametrize(("path", "batch", "expected", "learned"), NETS)
def test_a_known_net_has_its_known_shapes(
    shared: Path, recorder: Any, path: str, batch: int, expected: dict[str, Any], learned: int
) -> None:
    reader = model_reader(shared / "prototxt/BVLC+caffe" / path, TYPES)
    assert reader is not None
    graph = recorder("test")
    shapes = graph.expand(reader.net("test"))
    assert {name: shapes[name] for name in expected} == {
        name: (batch, *shape) for name, shape in expected.items()
    }
    assert sum(int(np.prod(p.shape)) for p in graph.parameters) == learned


RESNET_50 = {
    "conv1": (64, 112, 112),
    "pool1": (64, 56, 56),
    "res2c": (256, 56, 56),
    "res3d": (512, 28, 28),
    "res4f": (1024, 14, 14),
    "res5c": (2048, 7, 7),
    "pool5": (2048, 1, 1),
    "fc1000": (1000,),
}


def test_resnet_50_has_its_published_shapes_and_parameters(shared: Path, recorder: Any) -> None:
    """25,557,032 is the published count; this file's first convolution has a bias of 64 besides, and
    53 layers keep statistics of 26,560 channels."""
    path = "prototxt/KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy.prototxt"
    reader = model_reader(shared / path, TYPES)
    assert reader is not None
    graph = recorder("test")
    shapes = graph.expand(reader.net("test"))
    assert {name: shapes[name] for name in RESNET_50} == {k: (1, *v) for k, v in RESNET_50.items()}
    kept = [p for p in graph.parameters if not getattr(p, "trainable", True)]
    assert sum(int(np.prod(p.shape)) for p in kept) == 2 * 26_560 + 53
    counts = [int(np.prod(p.shape)) for p in graph.parameters]
    assert sum(counts) - (2 * 26_560 + 53) == 25_557_032 + 64


@pytest.mark.parametrize("phase", ["train", "test"])
@pytest.mark.parametrize(
    ("path", "sample"),
    [
        ("examples/mnist/lenet_train_test.prototxt", (1, 28, 28)),
        ("models/bvlc_googlenet/train_val.prototxt", (3, 256, 256)),
    ],
)
def test_a_net_builds_for_both_phases_with_its_scores(
    shared: Path, recorder: Any, path: str, sample: tuple[int, ...], phase: str
) -> None:
    reader = model_reader(shared / "prototxt/BVLC+caffe" / path, TYPES)
    assert reader is not None
    graph = recorder(phase, sample)
    shapes = graph.expand(reader.net(phase))
    names = [operation for operation, _, _ in graph.operations]
    assert "image_transform" in names and "softmax_loss" in names
    assert ("accuracy" in names) == (phase == "test")
    assert all(shape == () for name, shape in shapes.items() if "loss" in name and "/" not in name)
