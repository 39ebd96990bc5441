"""Convolution and pooling: the operations they emit, their attributes, and shapes worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from demitasse import ModelError
from demitasse_caffe import fillers


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
        ("num_output: 4 kernel_size: 3 kernel_h: 3", "kernel_size and kernel_h or kernel_w cannot"),
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
        # ceil((3 - 5) / 3) + 1 = 1: a window beyond the edges, as when GoogLeNet runs on small images.
        ("pool: AVE kernel_size: 5 stride: 3", (3, 3), (1, 1)),
        ("kernel_size: 9 stride: 3 pad: 1", (5, 8), (1, 2)),
    ],
)
def test_pooling_rounds_up(build: Any, parameters: str, x: tuple[int, int], y: tuple[int, int]) -> None:
    assert build(pooling(parameters), x=(2, 3, *x)).blobs["y"].shape == (2, 3, *y)


def test_nvidias_word_for_rounding_down_is_taken(build: Any, read: Any) -> None:
    down = build(pooling("kernel_size: 3 stride: 2 torch_pooling: true"), x=(1, 1, 8, 8))
    assert down.blobs["y"].shape == (1, 1, 3, 3)
    up = build(
        pooling("kernel_size: 3 stride: 2 round_mode: FLOOR torch_pooling: false"), x=(1, 1, 8, 8)
    )
    assert up.blobs["y"].shape == (1, 1, 3, 3)
    text = pooling("kernel_size: 3 torch_pooling: true round_mode: CEIL")
    with pytest.raises(ModelError, match="torch_pooling: true and round_mode: CEIL differ; give"):
        read(f"layer {{ {text} }}").net("test")


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
        ("global_pooling: true kernel_size: 2", "leave kernel_size out"),
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
    with pytest.raises(ValueError, match="only pool MAX of images has a second top"):
        build(pooling("pool: AVE kernel_size: 2", 'top: "y" top: "z"'), x=(1, 1, 4, 4))
