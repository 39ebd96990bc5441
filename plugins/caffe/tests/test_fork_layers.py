"""Layer types of widespread forks: what they emit and compute, and the errors for wrong ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse

INPUT = "layer {{ name: 'in{0}' type: 'Input' top: '{0}' input_param {{ shape {{ {1} }} }} }}\n"


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_is_reversed(run: Any, axis: int) -> None:
    given, made, _ = run(
        f"layer {{ name: 'r' type: 'Reverse' bottom: 'x' top: 'y' reverse_param {{ axis: {axis} }} }}",
        x=(3, 4, 2),
    )
    np.testing.assert_array_equal(made["y"], np.flip(given["x"], axis))


def test_axes_are_transposed(run: Any) -> None:
    given, made, _ = run(
        "layer { name: 't' type: 'Transpose' bottom: 'x' top: 'y' "
        "transpose_param { dim: 3 dim: 0 dim: 2 dim: 1 } }",
        x=(2, 3, 4, 5),
    )
    np.testing.assert_array_equal(made["y"], given["x"].transpose(3, 0, 2, 1))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("type: 'Reverse' bottom: 'x' top: 'y' reverse_param { axis: 2 }", "axis } 2 is not an axis of"),
        (
            "type: 'Reverse' bottom: 'x' top: 'y' reverse_param { axis: -1 }",
            "axis } -1 is not an axis of",
        ),
        ("type: 'Transpose' bottom: 'x' top: 'y' transpose_param { dim: 1 }", r"dim } \[1\] does not"),
        ("type: 'Transpose' bottom: 'x' top: 'y' transpose_param { dim: 1 dim: 1 }", "does not name"),
    ],
)
def test_axes_that_there_are_not_are_told(run: Any, layers: str, said: str) -> None:
    with pytest.raises(demitasse.ModelError, match=said):
        run(f"layer {{ name: 'a' {layers} }}", x=(3, 4))


def depthwise(kind: str, more: str = "", outputs: int = 3) -> str:
    return (
        f"layer {{ name: 'c' type: '{kind}' bottom: 'x' top: 'y' convolution_param {{ {more} "
        f"num_output: {outputs} kernel_size: 3 weight_filler {{ type: 'gaussian' std: 1 }} }} }}"
    )


@pytest.mark.parametrize("kind", ["ConvolutionDepthwise", "DepthwiseConvolution"])
@pytest.mark.parametrize("more", ["", "group: 3"])
def test_a_depthwise_convolution_has_a_kernel_for_each_channel(kind: str, more: str, run: Any) -> None:
    given, made, learned = run(depthwise(kind, more), x=(2, 3, 5, 6))
    w, _ = learned["c"]
    assert w.shape == (3, 1, 3, 3)
    windows = np.lib.stride_tricks.sliding_window_view(given["x"], (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,cij->nchw", windows, w[:, 0])
    np.testing.assert_allclose(made["y"], expected, rtol=1e-4, atol=1e-4)


def test_one_of_the_two_names_pays_no_heed_to_a_group(run: Any) -> None:
    _, _, learned = run(depthwise("ConvolutionDepthwise", "group: 2"), x=(2, 3, 5, 6))
    assert learned["c"][0].shape == (3, 1, 3, 3)


@pytest.mark.parametrize("outputs", [0, 2, 4])
def test_nor_to_a_number_of_outputs_that_is_not_the_channels(outputs: int, run: Any) -> None:
    """MnasNet's file has a num_output of 16 for 32 channels."""
    _, made, learned = run(depthwise("ConvolutionDepthwise", outputs=outputs), x=(2, 3, 5, 6))
    assert learned["c"][0].shape[:2] == (3, 1)
    assert made["y"].shape[:2] == (2, 3)


def test_relu6_is_clipped_at_6(run: Any) -> None:
    given, made, _ = run("layer { name: 'r' type: 'ReLU6' bottom: 'x' top: 'y' }", x=(4, 3, 5))
    assert given["x"].max() > 6
    np.testing.assert_array_equal(made["y"], np.clip(given["x"], 0, 6))


@pytest.mark.parametrize("tail", [(), (1, 1)])
def test_axpy_scales_each_channel_and_adds(tail: tuple[int, ...], run: Any) -> None:
    text = "layer { name: 'e' type: 'Axpy' bottom: 'a' bottom: 'x' bottom: 'z' top: 'y' }"
    given, made, _ = run(text, a=(2, 3, *tail), x=(2, 3, 4, 5), z=(2, 3, 4, 5))
    expected = given["a"].reshape(2, 3, 1, 1) * given["x"] + given["z"]
    np.testing.assert_allclose(made["y"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_channels_are_dealt_out_by_groups(groups: int, run: Any) -> None:
    text = (
        "layer { name: 's' type: 'ShuffleChannel' bottom: 'x' top: 'y' "
        f"shuffle_channel_param {{ group: {groups} }} }}"
    )
    given, made, _ = run(text, x=(2, 6, 3, 4))
    order = [row * (6 // groups) + column for column in range(6 // groups) for row in range(groups)]
    np.testing.assert_array_equal(made["y"], given["x"][:, order])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (depthwise("DepthwiseConvolution", "group: 2"), "a group for each of its 3 channels, not 2"),
        (depthwise("DepthwiseConvolution", outputs=4), "group 3 does not divide 3 .* num_output 4"),
        (
            "layer { name: 'c' type: 'ShuffleChannel' bottom: 'x' top: 'y' "
            "shuffle_channel_param { group: 2 } }",
            "group 2 does not divide 3 channels",
        ),
        (
            "layer { name: 'c' type: 'Axpy' bottom: 'x' bottom: 'x' bottom: 'x' top: 'y' }",
            "does not have a number for each channel",
        ),
        (
            "layer { name: 'c' type: 'ShuffleChannel' bottom: 'x' top: 'y' "
            "shuffle_channel_param { groups: 3 } }",
            "unknown field 'groups'; did you mean 'group'",
        ),
    ],
)
def test_a_wrong_layer_is_named_with_what_is_wrong(layer: str, message: str, run: Any) -> None:
    with pytest.raises(demitasse.DemitasseError, match=message) as caught:
        run(layer, x=(2, 3, 5, 6))
    assert "net.prototxt" in str(caught.value)


def test_gradients_pass_through_all_of_them(tmp_path: Path) -> None:
    """Compares with differences of the loss; the tolerance is that of float32, in which nets run
    here."""
    text = (
        depthwise("ConvolutionDepthwise", outputs=6).replace("'x'", "'data'")
        + "layer { name: 's' type: 'ShuffleChannel' bottom: 'y' top: 's' "
        "shuffle_channel_param { group: 3 } }"
        "layer { name: 'r' type: 'ReLU6' bottom: 's' top: 'r' }"
        "layer { name: 'm' type: 'Pooling' bottom: 's' top: 'm' "
        "pooling_param { pool: AVE global_pooling: true } }"
        "layer { name: 'e' type: 'Axpy' bottom: 'm' bottom: 'r' bottom: 's' top: 'e' }"
        "layer { name: 'l' type: 'Reduction' bottom: 'e' top: 'l' loss_weight: 1 "
        "reduction_param { operation: SUMSQ coeff: 0.001 } }"
    )
    import demitasse_caffe.pycaffe as caffe

    path = tmp_path / "net.prototxt"
    path.write_text(
        "force_backward: true\n" + INPUT.format("data", "dim: 2 dim: 3 dim: 4 dim: 4") + text
    )
    net = caffe.Net(str(path), caffe.TRAIN)
    net.blobs["data"].data[...] = np.random.default_rng(1).normal(0, 1, (2, 3, 4, 4))
    w = net.params["c"][0].data

    def loss() -> float:
        return float(net.forward()["l"])

    loss()
    net.backward()
    gradient = net.params["c"][0].diff.copy()
    assert np.abs(gradient).max() > 0.01
    for place in [(0, 0, 0, 0), (2, 0, 1, 1), (5, 0, 2, 1)]:
        kept = w[place]
        w[place] = kept + 0.01
        above = loss()
        w[place] = kept - 0.01
        below = loss()
        w[place] = kept
        assert gradient[place] == pytest.approx((above - below) / 0.02, rel=0.03, abs=0.01)


def layer(kind: str, more: str) -> str:
    return f"layer {{ name: 'l' type: '{kind}' bottom: 'x' top: 'y' {more} }}"


@pytest.mark.parametrize(
    ("order", "axes"),
    [("order: 0 order: 2 order: 3 order: 1", (0, 2, 3, 1)), ("order: 2", (2, 0, 1, 3))],
)
def test_axes_that_are_not_named_stay_behind(order: str, axes: tuple[int, ...], run: Any) -> None:
    given, made, _ = run(layer("Permute", f"permute_param {{ {order} }}"), x=(2, 3, 4, 5))
    np.testing.assert_array_equal(made["y"], given["x"].transpose(axes))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3), (2, 3, 6)])
@pytest.mark.parametrize("across", ["true", "false"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_a_normalised_blob_has_the_length_of_its_scale(
    across: str, shape: tuple[int, ...], shared: str, run: Any
) -> None:
    axes = tuple(range(1, len(shape))) if across == "true" else 1
    more = (
        f"norm_param {{ across_spatial: {across} channel_shared: {shared} eps: 0.5 "
        f"scale_filler {{ type: 'gaussian' std: 1 }} }}"
    )
    given, made, learned = run(layer("Normalize", more), x=shape)
    x, w = given["x"].astype(float), learned["l"][0]
    assert w.shape == (() if shared == "true" else (3,))
    expected = (
        x / np.sqrt((x**2).sum(axes, keepdims=True) + 0.5) * w.reshape((-1, *(1,) * (len(shape) - 2)))
    )
    np.testing.assert_allclose(made["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "size", "inner"),
    [
        ("height: 7 width: 20", (7, 20), (0, 0)),
        ("zoom_factor: 3", (13, 22), (0, 0)),
        ("shrink_factor: 2", (3, 4), (0, 0)),
        ("shrink_factor: 2 zoom_factor: 4", (9, 13), (0, 0)),
        ("shrink_factor: 2 zoom_factor: 4 height: 6 width: 5", (6, 5), (0, 0)),
        ("zoom_factor: 2 height: 6 width: 5", (9, 15), (0, 0)),
        ("height: 1 width: 8 pad_beg: -1 pad_end: -2", (1, 8), (1, 2)),
    ],
)
def test_an_image_is_resized_from_corner_to_corner(
    more: str, size: tuple[int, int], inner: tuple[int, int], run: Any
) -> None:
    given, made, _ = run(layer("Interp", f"interp_param {{ {more} }}"), x=(2, 3, 5, 8))
    y = given["x"].astype(float)[:, :, inner[0] : 5 - inner[1], inner[0] : 8 - inner[1]]
    for axis, count in enumerate(size, 2):
        at = np.linspace(0, y.shape[axis] - 1, count) if count > 1 else np.zeros(1)
        places = np.arange(y.shape[axis])
        y = np.apply_along_axis(lambda line, at=at, n=places: np.interp(at, n, line), axis, y)
    assert made["y"].shape == (2, 3, *size)
    np.testing.assert_allclose(made["y"], y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["LEARN", "INFERENCE"])
def test_segnets_normalisation_is_by_the_batch_or_by_none(mode: str, run: Any) -> None:
    fill = "{ type: 'gaussian' std: 1 }"
    more = f"bn_param {{ bn_mode: {mode} scale_filler {fill} shift_filler {fill} }}"
    given, made, learned = run(layer("BN", more), x=(3, 4, 2, 5))
    x, (w, b) = given["x"].astype(float), learned["l"]
    assert w.shape == b.shape == (4,)
    if mode == "LEARN":
        x = x - x.mean((0, 2, 3), keepdims=True)
        x /= np.sqrt((x**2).mean((0, 2, 3), keepdims=True) + 1e-9)
    expected = x * w[:, None, None] + b[:, None, None]
    np.testing.assert_allclose(made["y"], expected, rtol=1e-5, atol=1e-5)


def test_segnets_normalisation_tells_the_batchs_mean_and_variance(tmp_path: Path) -> None:
    """A script in SegNet's repository makes the scale and the shift of INFERENCE from them. No gradient
    passes through them."""
    given = INPUT.format("x", "dim: 3 dim: 4 dim: 2 dim: 5")
    text = (
        "force_backward: true layer {{ name: 'l' type: 'BN' bottom: 'x' top: 'x' top: 'm' {} "
        "bn_param {{ scale_filler {{ type: 'constant' value: 2 }} {} }} }} "
        "layer {{ name: 's' type: 'Reduction' bottom: 'm' top: 's' loss_weight: 1 }}"
    )
    path, x = tmp_path / "net.prototxt", np.random.default_rng(0).normal(1, 4, (3, 4, 2, 5))
    path.write_text(given + text.format("top: 'v'", ""))
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for phase in ("train", "test"):
            net = runtime.net(path, phase=phase, retain="all", backward="every blob")
            net.forward(x=x.astype("f4"))
            net.walk.backward()
            diff = net.walk.diff("x")
            assert diff is not None and not diff.any()
            found = {name: net.blobs[name].data for name in "xmv"}
            mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
            np.testing.assert_allclose(found["m"], mean, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(found["v"], variance, rtol=1e-5)
            np.testing.assert_allclose(found["x"], 2 * (x - mean) / np.sqrt(variance), atol=1e-4)
            net.close()
        path.write_text(given + text.format("", "bn_mode: INFERENCE"))
        with pytest.raises(
            demitasse.ModelError, match=r"has further tops, .* only in SegNet's mode LEARN"
        ):
            runtime.net(path)


AVERAGED = (
    "bn_param {{ slope_filler {{ type: 'gaussian' std: 1 }} bias_filler {{ type: 'gaussian' std: 1 }} "
    "momentum: 0.75 eps: 0.01 {} }}"
)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_normalisation_of_psp_nets_keeps_averages(frozen: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        INPUT.format("x", "dim: 3 dim: 4 dim: 2 dim: 5")
        + layer("BN", AVERAGED.format("frozen: true" * frozen))
        + "layer { name: 's' type: 'Reduction' bottom: 'y' top: 's' loss_weight: 1 }"
    )
    x = np.random.default_rng(0).normal(1, 4, (3, 4, 2, 5)).astype("f4")
    average, spread = x.mean((0, 2, 3), dtype=float), x.var((0, 2, 3), dtype=float)
    each = (-1, 1, 1)
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for phase in ("train", "test"):
            net = runtime.net(path, phase=phase, retain="all")
            w, b, mean, variance = (np.array(a, float) for a in net.params["l"])
            assert not mean.any() and (variance == frozen).all()
            for _ in range(2):
                net.forward(x=x)
            by_batch = phase == "train" and not frozen
            centre, square = (average, spread) if by_batch else (mean, variance)
            expected = (x - centre.reshape(each)) / np.sqrt(square.reshape(each) + 0.01)
            expected = expected * w.reshape(each) + b.reshape(each)
            np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-4)
            share = 1 - 0.75**2 if by_batch else 0
            now = [np.array(a) for a in net.params["l"]]
            np.testing.assert_allclose(now[2], share * average, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(now[3], share * spread + (1 - share) * variance, rtol=1e-5)
            net.close()


def test_a_frozen_normalisation_learns_nothing(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        INPUT.format("x", "dim: 3 dim: 4")
        + layer("BN", AVERAGED.format("frozen: true"))
        + "layer { name: 's' type: 'Reduction' bottom: 'y' top: 's' loss_weight: 1 }"
    )
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(path, phase="train")
        assert [slot.trainable for slot in net.plan.slots] == [False] * 4
        net.close()


def test_a_bn_of_two_forks_is_asked_whose_it_is(run: Any) -> None:
    with pytest.raises(
        demitasse.ModelError, match="scale_filler of SegNet's fork and eps, slope_filler"
    ):
        more = "slope_filler { type: 'constant' } eps: 0.1 scale_filler { type: 'constant' }"
        run(layer("BN", f"bn_param {{ {more} }}"), x=(2, 3, 4, 4))


POOLED = (
    "layer {{ name: 'p' type: 'Pooling' bottom: 'x' top: 'y' top: 'place' "
    "pooling_param {{ kernel_size: {0} stride: {0} }} }}"
    "layer {{ name: 'u' type: 'Upsample' bottom: 'y' bottom: 'place' top: 'z' "
    "upsample_param {{ {1} }} }}"
)


@pytest.mark.parametrize(
    ("window", "more", "shape", "size"),
    [
        (2, "", (2, 3, 6, 8), (6, 8)),
        (2, "scale: 2 pad_out_h: true", (2, 3, 5, 8), (5, 8)),
        (2, "pad_out_w: true pad_out_h: true", (2, 3, 5, 7), (5, 7)),
        (3, "scale: 3", (1, 2, 6, 9), (6, 9)),
        (3, "scale_h: 3 scale_w: 3", (1, 2, 6, 9), (6, 9)),
        (3, "upsample_h: 8 upsample_w: 7", (1, 2, 8, 7), (8, 7)),
    ],
)
def test_maxima_are_put_back_where_they_were(
    window: int, more: str, shape: tuple[int, ...], size: tuple[int, int], run: Any
) -> None:
    given, made, _ = run(POOLED.format(window, more), x=shape)
    expected = np.zeros((*shape[:2], *size), np.float32)
    for plane in np.ndindex(shape[:2]):
        for top, left in itertools.product(range(0, shape[2], window), range(0, shape[3], window)):
            cell = given["x"][plane][top : top + window, left : left + window]
            row, column = np.unravel_index(cell.argmax(), cell.shape)
            expected[plane][top + row, left + column] = cell.max()
    np.testing.assert_array_equal(made["z"], expected)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "scale_h: 2",
            r"layer 'u' .Upsample.: upsample_param { scale_h } also needs the one of the other side",
        ),
        ("upsample_w: 6", r"{ upsample_w } also needs the one of"),
        ("scale: 3 pad_out_h: true", r"pad_out_h and pad_out_w are for a scale of 2, not \[3, 3\]"),
        ("scale: 0", "would make an image of 0 x 0"),
        (
            "scale: 1",
            r"layer 'u' .Upsample.: .* is not a place in 3 x 4 .valid: whole numbers from 0 to 11",
        ),
    ],
)
def test_a_wrong_upsampling_is_told(more: str, message: str, run: Any) -> None:
    with pytest.raises(demitasse.DemitasseError, match=message):
        run(POOLED.format(2, more), x=(1, 2, 6, 8))


@pytest.mark.parametrize(("more", "times"), [("scale: 2", (2, 2)), ("scale_h: 3 scale_w: 1", (3, 1))])
def test_without_places_each_element_is_repeated(more: str, times: tuple[int, int], run: Any) -> None:
    given, made, _ = run(layer("Upsample", f"upsample_param {{ {more} }}"), x=(2, 3, 4, 5))
    expected = given["x"].repeat(times[0], axis=2).repeat(times[1], axis=3)
    np.testing.assert_array_equal(made["y"], expected)


def reorganised(x: np.ndarray, stride: int, forward: bool) -> np.ndarray:
    """Repeat Darknet's loops over the elements of x in their order in memory."""
    images, channels, rows, columns = x.shape
    given, made, fewer = x.ravel(), np.zeros(x.size, x.dtype), channels // stride**2
    for b, k, j, i in np.ndindex(x.shape):
        here = i + columns * (j + rows * (k + channels * b))
        part, row = k // fewer, j * stride + k // fewer // stride
        column = i * stride + part % stride
        there = column + columns * stride * (row + rows * stride * (k % fewer + fewer * b))
        if forward:
            made[there] = given[here]
        else:
            made[here] = given[there]
    if forward:
        return made.reshape(images, fewer, rows * stride, columns * stride)
    return made.reshape(images, channels * stride**2, rows // stride, columns // stride)


@pytest.mark.parametrize(("stride", "shape"), [(2, (2, 8, 4, 6)), (3, (1, 9, 3, 6)), (1, (2, 3, 4, 5))])
@pytest.mark.parametrize("reverse", [False, True])
def test_reorganised_maps_are_darknets(
    stride: int, shape: tuple[int, ...], reverse: bool, run: Any
) -> None:
    about = f"stride: {stride} reverse: {str(reverse).lower()}"
    given, made, _ = run(layer("Reorg", f"reorg_param {{ {about} }}"), x=shape)
    np.testing.assert_array_equal(made["y"], reorganised(given["x"], stride, reverse))


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        (
            "Upsample",
            "",
            r"layer 'l' .Upsample.: upsample_param { scale } is not given; a second bottom",
        ),
        ("Reorg", "", r"layer 'l' .Reorg.: reorg_param { stride } is not given"),
        ("Reorg", "reorg_param { stride: 2 }", r"stride 2 does not divide the sides, .* of x \(2x3x5x8"),
        ("Permute", "", r"layer 'l' .Permute.: permute_param { order } is not given"),
        ("Permute", "permute_param { order: 1 order: 1 }", r"order \[1, 1\] does not name axes"),
        ("Permute", "permute_param { order: 4 }", r"order \[4\] does not name axes"),
        ("Interp", "interp_param { height: 3 }", "needs height and width, zoom_factor or shrink_factor"),
        ("Interp", "interp_param { zoom_factor: 0 }", "zoom_factor } must be 1 or more"),
        ("Interp", "interp_param { height: 0 width: 3 }", "would make an image of 0 x 3"),
        (
            "Interp",
            "interp_param { zoom_factor: 2 pad_beg: -5 }",
            "pad_beg -5 and pad_end 0 leave nothing",
        ),
    ],
)
def test_a_mistake_in_them_is_told(kind: str, more: str, message: str, run: Any) -> None:
    with pytest.raises(demitasse.ModelError, match=message):
        run(layer(kind, more), x=(2, 3, 5, 8))


def test_who_brings_an_operation_that_nobody_composed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(INPUT.format("x", "dim: 2 dim: 3") + layer("Permute", "permute_param { order: 1 }"))
    plugins = ["caffe", "training", "reference"]
    with (
        demitasse.compose(plugins=plugins) as runtime,
        pytest.raises(demitasse.ModelError, match=r"needs the operation 'permute', .* 'onnx' brings it"),
    ):
        runtime.net(path)


def test_what_dropout_keeps_stays_as_it_is_where_tests_scale_down(tmp_path: Path) -> None:
    """The same elements are dropped with and without the field."""
    path, x = tmp_path / "net.prototxt", np.random.default_rng(0).normal(size=(50, 40)).astype("f4")
    found = {}
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for phase, more in itertools.product(["train", "test"], ["", "scale_train: false"]):
            dropout = layer("Dropout", f"dropout_param {{ dropout_ratio: 0.3 {more} }}")
            path.write_text(INPUT.format("x", "dim: 50 dim: 40") + dropout)
            found[phase, more] = runtime.net(path, phase=phase).forward(x=x)["y"]
    scaled, kept = found["train", ""], found["train", "scale_train: false"]
    assert 0.25 < (kept == 0).mean() < 0.35
    np.testing.assert_allclose(kept, np.where(scaled == 0, 0, x), rtol=1e-6)
    np.testing.assert_allclose(found["test", "scale_train: false"], 0.7 * x, rtol=1e-6)
    np.testing.assert_array_equal(found["test", ""], x)
