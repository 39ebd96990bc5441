"""DeepLab's ``hole`` is Caffe's dilation: it is read, converted and set as such."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import inputs

import demitasse
from demitasse import ModelError
from demitasse_caffe.conversion import convert_model

Read = Callable[..., Any]

LAYER = """layer {{ name: "c" type: "{kind}" bottom: "x" top: "y" convolution_param {{
  num_output: 2 kernel_size: 3 weight_filler {{ type: "gaussian" std: 1 }} {windows} }} }}"""
V1_CROPPED = """
input: "data" input_dim: 1 input_dim: 1 input_dim: 40 input_dim: 40
layers {{ name: "c" type: CONVOLUTION bottom: "data" top: "c"
  convolution_param {{ num_output: 1 kernel_size: 3 {} }} }}
layers {{ name: "cut" type: CROP bottom: "data" bottom: "c" top: "cut" }}
"""


def layer_of(windows: str, kind: str = "Convolution") -> str:
    return inputs(x=(2, 3, 9, 11)) + LAYER.format(kind=kind, windows=windows)


def settled(read: Read, windows: str, **more: Any) -> Any:
    """Return the parameters of a convolution, as in a net in the current format."""
    return read(layer_of(windows)).net("test", **more).layers[-1].parameters.convolution_param


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize(
    ("hole", "dilation"),
    [
        ("hole: 2", "dilation: 2"),
        ("hole_h: 2 hole_w: 3", "dilation: 2 dilation: 3"),
        ("hole_w: 3", "dilation: 1 dilation: 3"),
    ],
)
def test_a_net_with_holes_computes_what_dilation_does(
    kind: str, hole: str, dilation: str, tmp_path: Path
) -> None:
    path, made = tmp_path / "net.prototxt", []
    x = np.random.default_rng(0).normal(0, 1, (2, 3, 9, 11)).astype("f4")
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for windows in (hole, dilation, ""):
            path.write_text(layer_of(windows, kind))
            made.append(runtime.net(path, phase="test").forward(x=x)["y"].copy())
    np.testing.assert_array_equal(made[0], made[1])
    assert made[0].shape != made[2].shape


@pytest.mark.parametrize(
    ("windows", "dilation"),
    [
        ("hole: 4", [4]),
        ("hole: 1", [1]),
        ("hole_h: 2", [2, 1]),
        ("hole_w: 3", [1, 3]),
        ("hole_h: 2 hole_w: 3", [2, 3]),
        ("hole: 2 dilation: 2", [2]),
        ("hole: 2 dilation: [2, 2]", [2, 2]),
        ("hole_h: 2 hole_w: 2 dilation: 2", [2]),
        ("dilation: 3", [3]),
        ("", []),
    ],
)
def test_holes_become_dilation(windows: str, dilation: list[int], read: Read) -> None:
    convolution = settled(read, windows)
    assert list(convolution.dilation) == dilation
    assert not any(convolution.HasField(name) for name in ("hole", "hole_h", "hole_w"))


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ("hole: 2 dilation: 3", "hole: 2 and dilation: 3 differ; give dilation alone$"),
        ("hole: 1 dilation: 3", "hole: 1 and dilation: 3 differ; give dilation alone$"),
        ("hole: 2 dilation: [2, 3]", "hole: 2 and dilation: 2, 3 differ; give dilation alone$"),
        ("hole_h: 2 dilation: 2", "hole_h: 2 and dilation: 2 differ; give dilation alone$"),
        (
            "hole_h: 2 hole_w: 3 dilation: [3, 2]",
            "hole_h: 2, hole_w: 3 and dilation: 3, 2 differ; give dilation alone$",
        ),
        ("hole: 2 hole_w: 2", "hole: 2, hole_w: 2: hole applies to both axes; give dilation$"),
    ],
)
def test_holes_that_differ_from_dilation_are_told(windows: str, message: str, read: Read) -> None:
    with pytest.raises(ModelError, match=rf"net\.prototxt:2: layer 'c': {message}"):
        read(layer_of(windows))


def test_a_net_of_the_form_before_2014_has_them_and_crops_with_them(read: Read) -> None:
    """A kernel of 3 with dilation 6 reaches 13, which is 6 on each side of its centre."""
    for windows, dilation, offset in (("hole: 6", [6], [6]), ("", [], [1])):
        _, conv, cut = (each.parameters for each in read(V1_CROPPED.format(windows)).net("test").layers)
        assert list(conv.convolution_param.dilation) == dilation
        assert not conv.convolution_param.HasField("hole")
        assert list(cut.crop_param.offset) == offset


def test_a_layer_of_three_axes_has_them_too(read: Read) -> None:
    text = inputs(x=(1, 2, 5, 5, 5)) + LAYER.format(kind="Convolution3D", windows="hole: 2")
    text = text.replace("convolution_param", "convolution3d_param")
    convolution = read(text).net("test").layers[-1].parameters.convolution3d_param
    assert list(convolution.dilation) == [2] and not convolution.HasField("hole")


def test_a_conversion_writes_dilation(tmp_path: Path) -> None:
    old, new = tmp_path / "old.prototxt", tmp_path / "new.prototxt"
    old.write_text(V1_CROPPED.format("hole_h: 4 hole_w: 2"))
    with demitasse.compose(plugins=["caffe"]) as runtime:
        assert convert_model(runtime, old, new)["upgraded"]
    written = new.read_text()
    assert re.findall(r"dilation: (\d)", written) == ["4", "2"]
    assert "hole" not in written


def test_an_override_may_say_them(read: Read) -> None:
    key = "layer.c.convolution_param"
    assert list(settled(read, "", overrides={f"{key}.hole": "2"}).dilation) == [2]
    both = {f"{key}.hole_h": "2", f"{key}.hole_w": "3"}
    assert list(settled(read, "", overrides=both).dilation) == [2, 3]
    whole = {key: "{ num_output: 1 kernel_size: 3 hole: 5 }"}
    assert list(settled(read, "hole: 4", overrides=whole).dilation) == [5]
    with pytest.raises(
        ModelError, match=r"net\.prototxt: overrides: layer 'c': hole: 2 and dilation: 4"
    ):
        settled(read, "hole: 4", overrides={f"{key}.hole": "2"})
