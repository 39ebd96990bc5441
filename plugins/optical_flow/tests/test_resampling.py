"""Resample, Accum and DataAugmentation compared with loops written from their definition, and
mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse

PROPERTY = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck), deadline=None)
RESAMPLE = "layer {{ name: 'r' type: 'Resample' bottom: 'x' top: 'r' resample_param {{ {} }} }}"
AUGMENT = (
    "layer {{ name: 'd' type: 'DataAugmentation' bottom: 'x' top: 'd' augmentation_param {{ {} }} }}"
)
ACCUM = "layer {{ name: 'c' type: 'Accum' {} top: 'c' accum_param {{ {} }} }}"
single = np.float32


def curve(x: float, kind: str) -> float:
    x = abs(x)
    if kind == "LINEAR":
        return max(0.0, 1 - x)
    if x <= 1:
        return x * x * (1.5 * x - 2.5) + 1
    return x * (x * (-0.5 * x + 2.5) - 4) + 2 if x < 2 else 0.0


def away(x: float) -> int:
    """Round to the nearest integer, with halves away from 0."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def slow(x: np.ndarray, rows: int, columns: int, kind: str, antialias: bool) -> np.ndarray:
    """Repeat the fork's loops, place by place, which use half of the rows' step for columns and vice
    versa."""
    height, width = x.shape[2:]
    fx, fy = single(width) / single(columns), single(height) / single(rows)
    widened = antialias and (fx > 1 or fy > 1)
    made = np.zeros((*x.shape[:2], rows, columns))
    ax, ay = (single(1) / f if widened else single(1) for f in (fx, fy))
    reach = {"LINEAR": 2, "CUBIC": 4}.get(kind, 0)
    rx, ry = (2 if f < 1 else math.ceil(reach / a) for f, a in ((fx, ax), (fy, ay)))
    for i, j in np.ndindex(rows, columns):
        x_in = single(j) * fx + fy / single(2) - single(0.5)
        y_in = single(i) * fy + fx / single(2) - single(0.5)
        xr, yr = away(float(x_in)), away(float(y_in))
        if kind == "NEAREST":
            made[:, :, i, j] = x[:, :, min(max(yr, 0), height - 1), min(max(xr, 0), width - 1)]
            continue
        total, weights = np.zeros(x.shape[:2]), 0.0
        for y in range(yr - ry, yr + ry + 1):
            for z in range(xr - rx, xr + rx + 1):
                if 0 <= y < height and 0 <= z < width:
                    w = curve(float(ax * (x_in - single(z))), kind)
                    w *= curve(float(ay * (y_in - single(y))), kind)
                    total, weights = total + w * x[:, :, y, z], weights + w
        if weights:
            made[:, :, i, j] = total / weights
    return made


@given(
    st.integers(0, 999),
    st.integers(1, 12),
    st.integers(1, 14),
    st.sampled_from(["NEAREST", "LINEAR", "CUBIC"]),
    st.booleans(),
)
@PROPERTY
def test_resample_is_that_of_the_definition(
    run: Any, seed: int, rows: int, columns: int, kind: str, antialias: bool
) -> None:
    x = np.random.default_rng(seed).normal(size=(2, 2, 5, 6))
    fields = f"height: {rows} width: {columns} type: {kind} antialias: {str(antialias).lower()}"
    made = run(RESAMPLE.format(fields), x=x)["r"]
    np.testing.assert_allclose(made, slow(x, rows, columns, kind, antialias), rtol=1e-5, atol=1e-6)


def test_a_larger_image_is_that_of_pytorch(run: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 6))
    for kind, mode in (("LINEAR", "bilinear"), ("NEAREST", "nearest")):
        made = run(RESAMPLE.format(f"height: 20 width: 24 type: {kind}"), x=x)["r"]
        more = {} if mode == "nearest" else {"align_corners": False}
        theirs = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=4, mode=mode, **more)
        np.testing.assert_allclose(made, theirs.numpy(), atol=1e-6)


def test_the_size_is_that_of_a_second_bottom(run: Any) -> None:
    x, other = np.random.default_rng(0).normal(size=(1, 2, 5, 6)), np.zeros((1, 7, 10, 12))
    layer = RESAMPLE.format("").replace("bottom: 'x'", "bottom: 'x' bottom: 'other'")
    made = run(layer, x=x, other=other)["r"]
    np.testing.assert_array_equal(made, run(RESAMPLE.format("height: 10 width: 12"), x=x)["r"])


def slow_stretched(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    height, width = x.shape[2:]
    made = np.empty((*x.shape[:2], rows, columns))
    for i, j in np.ndindex(rows, columns):
        row = i / (rows - 1) * (height - 1) if rows > 1 else 0.0
        column = j / (columns - 1) * (width - 1) if columns > 1 else 0.0
        top, left = min(int(row + 1e-9), height - 1), min(int(column + 1e-9), width - 1)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        b, a = row - top, column - left
        upper = (1 - a) * x[:, :, top, left] + a * x[:, :, top, right]
        lower = (1 - a) * x[:, :, bottom, left] + a * x[:, :, bottom, right]
        made[:, :, i, j] = (1 - b) * upper + b * lower
    return made


@pytest.mark.parametrize(
    ("bottoms", "fields", "size"),
    [
        ("x", "", (3, 4)),
        ("x y", "", (5, 6)),
        ("x y", "have_reference: true", (5, 6)),
        ("x y", "size_divisible_by: 4", (8, 8)),
        ("x y", "top_height: 9 top_width: 11", (9, 11)),
        ("x y", "top_height: 9 top_width: 6", (5, 6)),
    ],
)
def test_accum_stretches_and_joins(run: Any, bottoms: str, fields: str, size: tuple[int, int]) -> None:
    dice = np.random.default_rng(0)
    arrays = {"x": dice.normal(size=(2, 2, 3, 4)), "y": dice.normal(size=(2, 1, 5, 6))}
    given = " ".join(f"bottom: '{name}'" for name in bottoms.split())
    made = run(ACCUM.format(given, fields), **{name: arrays[name] for name in bottoms.split()})["c"]
    joined = bottoms.split()[:-1] if "have_reference" in fields else bottoms.split()
    expected = np.concatenate([slow_stretched(arrays[name], *size) for name in joined], 1)
    np.testing.assert_allclose(made, expected, atol=1e-6)


def test_mean_scales_and_shifts(run: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 3, 4))
    fields = "operation: SUBTRACT value: [1, 2, 4] mean_scale: 0.5 input_scale: 3 output_scale: 0.25"
    layer = f"layer {{ name: 'm' type: 'Mean' bottom: 'x' top: 'm' mean_param {{ {fields} }} }}"
    means = np.array([1.0, 2, 4, 1, 2, 4]).reshape(1, 6, 1, 1)
    np.testing.assert_allclose(run(layer, x=x)["m"], 0.25 * (3 * x - 0.5 * means), atol=1e-12)
    added = layer.replace("SUBTRACT", "ADD")
    np.testing.assert_allclose(run(added, x=x)["m"], 0.25 * (3 * x + 0.5 * means), atol=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.5])
def test_neg_relu_and_channel_norm(run: Any, slope: float) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    fields = f"relu_param {{ negative_slope: {slope} }}"
    made = run(f"layer {{ name: 'n' type: 'NegReLU' bottom: 'x' top: 'n' {fields} }}", x=x)["n"]
    np.testing.assert_allclose(made, np.minimum(x, 0) + slope * np.maximum(x, 0), atol=1e-12)
    norm = run("layer { name: 'n' type: 'ChannelNorm' bottom: 'x' top: 'n' }", x=x)["n"]
    np.testing.assert_allclose(norm, np.sqrt((x**2).sum(1, keepdims=True)), atol=1e-12)


def test_augmentation_cuts_the_middle_and_takes_a_mean(run: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 9))
    made = run(AUGMENT.format("crop_height: 4 crop_width: 6 mean: [1, 2, 3] mean_per_pixel: false"), x=x)
    columns = (x[..., 1:7] + x[..., 2:8]) / 2  # 9 - 6 is odd: halfway between pixels
    expected = columns[:, :, 1:5] - np.array([1.0, 2, 3]).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(made["d"], expected, atol=1e-12)


def test_a_crop_as_large_as_the_image_ends_as_the_forks_does(run: Any) -> None:
    """The last place is at 1.05 less than the number of pixels."""
    x = np.random.default_rng(0).normal(size=(1, 1, 2, 5))
    made = run(AUGMENT.format("crop_height: 2 crop_width: 5"), x=x)["d"]
    across = np.concatenate([x[..., :4], 0.05 * x[..., 3:4] + 0.95 * x[..., 4:]], -1)
    expected = np.concatenate([across[:, :, :1], 0.05 * across[:, :, :1] + 0.95 * across[:, :, 1:]], 2)
    np.testing.assert_allclose(made, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (RESAMPLE.format("height: 4"), r"resample_param { width height } are not both given"),
        (RESAMPLE.format("height: 4 width: 4 type: AREA"), "type: AREA } is not supported"),
        (RESAMPLE.format("height: 4 width: 4 type: LINEER"), "did you mean 'LINEAR'"),
        (ACCUM.format("bottom: 'x'", "have_reference: true"), "takes the last of two bottoms or more"),
        (ACCUM.format("bottom: 'x'", "size_divisible_by: 0"), r"{ size_divisible_by } is 0"),
        (
            "layer { name: 'm' type: 'Mean' bottom: 'x' top: 'm' mean_param { value: 1 } }",
            r"mean_param { operation } is not given",
        ),
        (
            "layer { name: 'm' type: 'Mean' bottom: 'x' top: 'm' mean_param { operation: ADD } }",
            r"mean_param { value } is not given",
        ),
        (
            "layer { name: 'm' type: 'Mean' bottom: 'x' top: 'm' "
            "mean_param { operation: ADD value: [1, 2] } }",
            "2 means do not fit the 3 channels",
        ),
        (AUGMENT.format("crop_height: 9 crop_width: 3"), "a crop of 9 must be from 1 to the 6"),
        (
            AUGMENT.format("crop_height: 4 crop_width: 3 augment_during_test: true mirror { prob: 1 }"),
            r"augmentation_param { mirror } changes images at random",
        ),
        (AUGMENT.format("recompute_mean: 9"), "write mean_per_pixel: false"),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, layer: str, message: str) -> None:
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(layer, x=np.zeros((1, 3, 6, 6)))
    assert "net.prototxt:2" in str(caught.value)


def test_a_mean_that_training_would_take_is_refused_there(run: Any) -> None:
    layer = AUGMENT.format("recompute_mean: 9 mean_per_pixel: false")
    with pytest.raises(demitasse.ModelError, match="is not supported in training: give mean"):
        run(layer, "train", x=np.zeros((1, 3, 6, 6)))
