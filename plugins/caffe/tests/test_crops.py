"""Crop layers in the format before 2014, which the net aligns, and those that forks align."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse import ModelError

Read = Callable[..., Any]

SIDE, MIDDLE = 81, slice(36, 45)
INPUT = f'input: "data" input_dim: 1 input_dim: 1 input_dim: {SIDE} input_dim: {SIDE}\n'
FCN = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: [1, 1, 50, 40] }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 1 kernel_size: 3 pad_h: {pad} pad_w: 35 }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: "up" type: "Deconvolution" bottom: "pool" top: "up"
  convolution_param {{ num_output: 1 kernel_size: 4 stride: 2 }} }}
layer {{ name: "cut" type: "Crop" bottom: "up" bottom: "data" top: "cut" {crop} }}
"""

window = st.integers(1, 4).flatmap(
    lambda kernel: st.tuples(
        st.sampled_from(["CONVOLUTION", "POOLING"]),
        st.just(kernel),
        st.integers(1, 2),
        st.integers(0, kernel - 1),
    )
)


def old(name: str, kind: str, bottoms: str, more: str = "") -> str:
    read = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layers {{ name: "{name}" top: "{name}" type: {kind} {read} {more} }}\n'


def mean(kind: str, kernel: int, stride: int, pad: int) -> str:
    about = f"kernel_size: {kernel} stride: {stride} pad: {pad}"
    if kind == "POOLING":
        return f"pooling_param {{ pool: AVE {about} }}"
    filler = f'weight_filler {{ type: "constant" value: {1 / kernel**2!r} }}'
    return f"convolution_param {{ num_output: 1 {about} {filler} }}"


def enlarged(scale: int) -> str:
    about = f"kernel_size: {2 * scale - scale % 2} stride: {scale} bias_term: false"
    return f'convolution_param {{ num_output: 1 {about} weight_filler {{ type: "bilinear" }} }}'


@given(windows=st.lists(window, max_size=3), pad=st.integers(20, 30))
def test_what_is_cut_lies_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, windows: list[tuple[str, int, int, int]], pad: int
) -> None:
    """Means and bilinear upsampling keep the numbers of a ramp at the coordinates that the numbers
    name."""
    text = INPUT + old("x0", "CONVOLUTION", "data", mean("CONVOLUTION", 1, 1, pad))
    for number, (kind, *about) in enumerate(windows):
        text += old(f"x{number + 1}", kind, f"x{number}", mean(kind, *about))
    scale = int(np.prod([stride for _, _, stride, _ in windows]))
    text += old("up", "DECONVOLUTION", f"x{len(windows)}", enlarged(scale))
    (path := tmp_path_factory.mktemp("net") / "net.prototxt").write_text(
        text + old("cut", "CROP", "up data")
    )
    ramp = np.add.outer(1000 * np.arange(SIDE), np.arange(SIDE)).astype(np.float32)
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        cut = runtime.net(path).forward(data=ramp[None, None])["cut"][0, 0]
    assert cut.shape == ramp.shape
    off = (cut - ramp)[MIDDLE, MIDDLE] / 1001
    assert np.ptp(off) < 0.001
    assert abs(off.mean()) < 0.501  # a crop between two pixels goes to the nearest


def test_a_published_net_in_the_old_form_is_cut_where_its_later_file_says(read: Read) -> None:
    """FCN-32s on VGG-16: its file in the current format has an offset of 19."""
    text, top = 'input: "data" input_dim: 1 input_dim: 3 input_dim: 500 input_dim: 500\n', "data"
    for stage, depth in enumerate((2, 2, 3, 3, 3)):
        for number in range(depth):
            pad = 100 if stage == number == 0 else 1
            text += old(f"c{stage}{number}", "CONVOLUTION", top, mean("CONVOLUTION", 3, 1, pad))
            top = f"c{stage}{number}"
            text += f'layers {{ name: "{top}r" type: RELU bottom: "{top}" top: "{top}" }}\n'
        text += old(f"p{stage}", "POOLING", top, mean("POOLING", 2, 2, 0))
        top = f"p{stage}"
    text += old("fc6", "CONVOLUTION", top, mean("CONVOLUTION", 7, 1, 0))
    text += old("up", "DECONVOLUTION", "fc6", "convolution_param { kernel_size: 64 stride: 32 }")
    crop = read(text + old("score", "CROP", "up data")).net("test").layers[-1]
    assert crop.type == "Crop"
    assert list(crop.parameters.crop_param.offset) == [19]


def test_an_autocrop_is_a_crop_that_aligns(read: Read) -> None:
    text = FCN.format(pad=20, crop="").replace('type: "Crop"', 'type: "AutoCrop"')
    found = read(text).net("test")
    assert found.notes == ()
    assert found.layers[-1].type == "Crop"
    assert list(found.layers[-1].parameters.crop_param.offset) == [20, 35]
    cut = 'layer { name: "s" type: "Slice" bottom: "conv" top: "a" top: "b" slice_param { AXIS } }\n'
    through = text.replace('bottom: "conv" top: "pool"', 'bottom: "b" top: "pool"')
    through = through.replace("num_output: 1 kernel_size: 3", "num_output: 2 kernel_size: 3")
    through = through.replace('layer { name: "pool"', cut + 'layer { name: "pool"')
    for axis in ("", "axis: 1", "slice_dim: 1", "axis: -3"):
        again = read(through.replace("AXIS", axis)).net("test").layers[-1]
        assert list(again.parameters.crop_param.offset) == [20, 35]
    with pytest.raises(ModelError, match="where pixels lie: unknown"):
        read(through.replace("AXIS", "axis: 2"))
    apart = text.replace("kernel_size: 4 stride: 2", "kernel_size: 4 stride: 3")
    with pytest.raises(ModelError, match=r"layer 'cut' \(AutoCrop\): no offset aligns its bottoms"):
        read(apart)


@pytest.mark.parametrize(("cut", "offset"), [("axis: 1", 1), ("slice_dim: 0", 1), ("axis: 2", None)])
def test_pieces_of_channels_lie_where_the_whole_did(cut: str, offset: int | None, read: Read) -> None:
    """Of a blob cut into rows it is not known which rows a piece has."""
    text = f"""
    input: "data" input_shape {{ dim: 2 dim: 3 dim: 32 dim: 32 }}
    layer {{ name: "pool" type: "Pooling" bottom: "data" top: "p"
      pooling_param {{ kernel_size: 2 stride: 2 }} }}
    layer {{ name: "pieces" type: "Slice" bottom: "p" top: "a" top: "b"
      slice_param {{ {cut} slice_point: 1 }} }}
    layer {{ name: "up" type: "Deconvolution" bottom: "b" top: "u"
      convolution_param {{ num_output: 1 kernel_size: 4 stride: 2 }} }}
    layer {{ name: "cut" type: "AutoCrop" bottom: "u" bottom: "data" top: "k" }}"""
    if offset is None:
        with pytest.raises(ModelError, match=r"layer 'cut' \(AutoCrop\): .*where pixels lie: unknown"):
            read(text)
        return
    assert list(read(text).net("test").layers[-1].parameters.crop_param.offset) == [offset]


def test_what_forks_align_is_told_and_cut_as_in_caffe(read: Read) -> None:
    (note,) = read(FCN.format(pad=35, crop="")).net("test").notes
    assert "Crop without crop_param cuts from offset 0 on, as in BVLC Caffe" in note
    assert "net.prototxt" in note and "'cut' in line 10: offset: 35" in note
    (note,) = read(FCN.format(pad=20, crop="")).net("test").notes
    assert "'cut' in line 10: offset: 20 offset: 35" in note


@pytest.mark.parametrize("crop", ["crop_param { offset: 0 }", "crop_param { }"])
def test_a_crop_that_says_its_offset_is_no_news(crop: str, read: Read) -> None:
    assert read(FCN.format(pad=35, crop=crop)).net("test").notes == ()


def test_nor_is_one_at_the_corner(read: Read) -> None:
    text = FCN.format(pad=1, crop="").replace("pad_w: 35", "pad_w: 1")
    assert read(text.replace("kernel_size: 4", "kernel_size: 2")).net("test").notes == ()


@pytest.mark.parametrize("stride", ["kernel_size: 2 stride: 0", "kernel_size: 4 stride: 0"])
def test_strides_of_zero_are_left_to_their_layers(stride: str, read: Read) -> None:
    text = FCN.format(pad=35, crop="").replace(stride.replace("0", "2"), stride)
    assert "stride: 0" in text
    assert read(text).net("test").notes == ()


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (old("half", "POOLING", "data", mean("POOLING", 2, 2, 0)), "at 2 x +0.5"),
        (old("half", "INNER_PRODUCT", "data", "inner_product_param { num_output: 4 }"), "unknown"),
        (old("half", "CONVOLUTION", "data", mean("CONVOLUTION", 5, 1, 0)), "at 1 x +2"),
    ],
)
def test_what_no_offset_aligns_is_an_error(cut: str, told: str, read: Read) -> None:
    with pytest.raises(
        ModelError, match=r"net.prototxt:3: layer 'cut' \(CROP\): no offset aligns"
    ) as error:
        read(INPUT + cut + old("cut", "CROP", "half data"))
    assert f"where pixels lie: {told})" in str(error.value)
