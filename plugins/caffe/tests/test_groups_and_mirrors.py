"""GroupNorm, BroadcastMul, and caffe-windows' Flip and ChannelScale, compared with NumPy in float64; V1
layers of DeepLab's older fork."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import demitasse


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(3, 6, 4, 5), (2, 6, 2, 3, 2), (4, 12)])
def test_groups_of_channels_have_no_mean_and_a_variance_of_1(
    run: Any, groups: int, shape: tuple[int, ...]
) -> None:
    about = f"group_norm_param {{ group_num: {groups} eps: 0.25 }}"
    given, made, learned = run(
        f"layer {{ name: 'g' type: 'GroupNorm' bottom: 'x' top: 'y' {about} }}", x=shape
    )
    rows = given["x"].astype(np.float64).reshape(shape[0] * groups, -1)
    wanted = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 0.25)
    np.testing.assert_allclose(made["y"], wanted.reshape(shape), rtol=1e-5, atol=1e-5)
    assert not learned.get("g")


def test_what_is_the_same_all_over_a_group_becomes_0(run: Any) -> None:
    about = "group_norm_param { group_num: 2 eps: 0 }"
    flat = "layer { name: 'p' type: 'Power' bottom: 'x' top: 'p' power_param { scale: 0 shift: 3 } }"
    layer = f"layer {{ name: 'g' type: 'GroupNorm' bottom: 'p' top: 'p' {about} }}"
    _, made, _ = run(f"{flat} {layer}", x=(2, 4, 3))
    np.testing.assert_array_equal(made["p"], 0)


@pytest.mark.parametrize(
    ("about", "axes"),
    [
        ("", (3,)),
        ("flip_param { flip_height: true }", (2, 3)),
        ("flip_param { flip_width: false }", ()),
    ],
)
def test_images_are_mirrored(run: Any, about: str, axes: tuple[int, ...]) -> None:
    given, made, _ = run(
        f"layer {{ name: 'f' type: 'Flip' bottom: 'x' top: 'y' {about} }}", x=(2, 3, 4, 5)
    )
    np.testing.assert_array_equal(made["y"], np.flip(given["x"], axes))


@pytest.mark.parametrize(("shape", "places"), [((2, 3, 4, 5), (2, 1, 4, 5)), ((4, 6), (4, 1))])
def test_a_number_of_each_place_multiplies_all_its_channels(
    run: Any, shape: tuple[int, ...], places: tuple[int, ...]
) -> None:
    text = "layer { name: 's' type: 'ChannelScale' bottom: 'x' bottom: 'w' top: 'y' }"
    given, made, _ = run(text, x=shape, w=places)
    np.testing.assert_allclose(made["y"], given["x"] * given["w"], rtol=1e-6)


@pytest.mark.parametrize("order", ["bottom: 'x' bottom: 'w'", "bottom: 'w' bottom: 'x'"])
@pytest.mark.parametrize("channels", [(2, 3), (2, 3, 1, 1)])
def test_a_number_of_each_channel_multiplies_all_its_places(
    run: Any, order: str, channels: tuple[int, ...]
) -> None:
    given, made, _ = run(
        f"layer {{ name: 's' type: 'BroadcastMul' {order} top: 'y' }}", x=(2, 3, 4, 5), w=channels
    )
    np.testing.assert_allclose(made["y"], given["x"] * given["w"].reshape(2, 3, 1, 1), rtol=1e-6)


def test_lengths_that_were_taken_away_come_back(run: Any) -> None:
    """NormFace's two layers in sequence, as in AMSoftmax's nets."""
    given, made, _ = run(
        "layer { name: 'n' type: 'Normalize' bottom: 'x' top: 'n' top: 'length' }"
        "layer { name: 's' type: 'ChannelScale' bottom: 'n' bottom: 'length' top: 'y' }",
        x=(2, 8, 3, 3),
    )
    np.testing.assert_allclose(made["y"], given["x"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "shapes", "said"),
    [
        (
            "type: 'GroupNorm' bottom: 'x' top: 'y' group_norm_param { group_num: 4 }",
            {"x": (2, 6, 3)},
            "group_num 4 does not divide 6 channels",
        ),
        ("type: 'GroupNorm' bottom: 'x' top: 'y'", {"x": (2, 6, 3)}, "group_num 32 does not divide 6"),
        (
            "type: 'GroupNorm' bottom: 'x' top: 'y' group_norm_param { group_num: 2 eps: -1 }",
            {"x": (2, 6, 3)},
            "eps -1.0 is not a number >= 0",
        ),
        ("type: 'Flip' bottom: 'x' top: 'y'", {"x": (2, 6, 3)}, r"mirrors images .four axes.; its"),
        (
            "type: 'ChannelScale' bottom: 'x' bottom: 'w' top: 'y'",
            {"x": (2, 6, 3), "w": (2, 1, 6)},
            r"second bottom w \(2x1x6 float32\) does not have one number for each place of x",
        ),
        (
            "type: 'BroadcastMul' bottom: 'x' bottom: 'w' top: 'y'",
            {"x": (2, 6, 3), "w": (2, 3)},
            r"bottom w \(2x3 float32\) does not have one number for each channel of x",
        ),
        (
            "type: 'ROIPooling' bottom: 'x' bottom: 'w' top: 'y' "
            "roi_pooling_param { pooled_h: 2 pooled_w: 2 pad_ratio: 0.25 }",
            {"x": (2, 6, 3, 3), "w": (2, 5)},
            "pad_ratio 0.25, of MS-CNN's fork, must be 0: .* ROIAlign",
        ),
    ],
)
def test_mistakes_are_told(run: Any, layer: str, shapes: dict[str, Any], said: str) -> None:
    with pytest.raises(demitasse.ModelError, match=said):
        run(f"layer {{ name: 'it' {layer} }}", **shapes)


def test_the_form_before_2014_has_deeplabs_layers_too(read: Any) -> None:
    """The layers of its training nets, with a layer for tests that is unknown here."""
    text = """
        layers { name: "d" type: DUMMY_DATA top: "d" top: "l" dummy_data_param {
          num: 2 channels: 3 height: 17 width: 17 num: 2 channels: 1 height: 17 width: 17 } }
        layers { name: "c" type: CONVOLUTION bottom: "d" top: "c" strict_dim: false
          convolution_param { num_output: 4 kernel_size: 1 } }
        layers { name: "i" type: INTERP bottom: "c" top: "i" interp_param { shrink_factor: 8 } }
        layers { name: "j" type: INTERP bottom: "l" top: "j" interp_param { shrink_factor: 8 } }
        layers { name: "loss" type: SOFTMAX_LOSS bottom: "i" bottom: "j"
          softmaxloss_param { ignore_label: 255 } include { phase: TRAIN } }
        layers { name: "a" type: SEG_ACCURACY bottom: "i" bottom: "j" top: "a"
          seg_accuracy_param { ignore_label: 255 } }
        layers { name: "w" type: MAT_WRITE bottom: "i" include { phase: TEST }
          mat_write_param { prefix: "out" } }
    """
    net = read(text).net("train")
    kinds = ["DummyData", "Convolution", "Interp", "Interp", "SoftmaxWithLoss", "SegAccuracy"]
    assert [layer.type for layer in net.layers] == kinds
    assert net.layers[2].parameters.interp_param.shrink_factor == 8
    assert net.layers[4].parameters.loss_param.ignore_label == 255
    assert list(net.layers[5].parameters.seg_accuracy_param.ignore_label) == [255]
    assert "DeepLab's older fork that have no effect here: strict_dim (line 4)" in net.notes[0]
    assert read(text).net("test").foreign == {"MatWrite": "DeepLab's older fork"}
