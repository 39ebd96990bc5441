"""Layer types for regions of images: what they compute, and the errors for wrong ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import DataError, ModelError

INPUT = "layer {{ name: 'in{0}' type: 'Input' top: '{0}' input_param {{ shape {{ {1} }} }} }}\n"
POOL = (
    "layer {{ name: 'roi' type: 'ROIPooling' bottom: 'x' bottom: 'rois' top: 'y' "
    "roi_pooling_param {{ {0} }} }}"
)
PARAMETERS = "pooled_h: 3 pooled_w: 4 spatial_scale: 0.25"
ROIS = np.float32(
    [
        [0, 0, 0, 27, 35],  # the whole plane
        [1, 8, 6, 14.5, 20.5],
        [1, 4, 4, 4, 4],  # a point: every cell is that point
        [0, 20, 30, 60, 70],  # extends beyond the plane
        [0, -30, -30, -9, -9],  # lies beyond the plane
        [1, 20, 20, 10, 10],  # the wrong way round: of extent 1
    ]
)
"""Regions in an image of 36 x 28; the planes of 9 x 7 have a quarter of its size."""


def net_of(folder: Path, layer: str, rois: tuple[int, ...] = ROIS.shape) -> Path:
    path = folder / "net.prototxt"
    shapes = {"x": (2, 3, 9, 7), "rois": rois}
    inputs = (
        INPUT.format(name, " ".join(f"dim: {extent}" for extent in shape))
        for name, shape in shapes.items()
    )
    path.write_text("".join(inputs) + layer)
    return path


def nearest(number: float) -> int:
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def maxima(x: np.ndarray, roi: np.ndarray) -> np.ndarray:
    """Compute the maxima by the definition, with fractions: 3 x 4 cells of one region."""
    left, top, right, bottom = (nearest(float(corner) / 4) for corner in roi[1:])
    high, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
    y = np.zeros((3, 3, 4))
    for i, j in np.ndindex(3, 4):
        rows = [r for r in range(top + i * high // 3, top - (-(i + 1) * high // 3)) if 0 <= r < 9]
        columns = [c for c in range(left + j * wide // 4, left - (-(j + 1) * wide // 4)) if 0 <= c < 7]
        if rows and columns:
            y[:, i, j] = x[int(roi[0])][:, rows][:, :, columns].max((1, 2))
    return y


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1, 1)])
def test_regions_are_pooled_cell_by_cell(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 7)).astype(np.float32)
    expected = np.stack([maxima(x, roi) for roi in ROIS])
    assert (expected[4] == 0).all()
    assert (expected[3] == 0).any()
    assert (expected[:3] != 0).all()
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        net = runtime.net(net_of(tmp_path, POOL.format(PARAMETERS), shape))
        np.testing.assert_array_equal(net.forward(x=x, rois=ROIS.reshape(shape))["y"], expected)
        with pytest.raises(
            DataError, match=r"net\.prototxt:3: layer 'roi' \(ROIPooling\): region 1 is 2"
        ):
            net.forward(x=x, rois=(ROIS + np.float32([1, 0, 0, 0, 0])).reshape(shape))


@pytest.mark.parametrize(
    ("layer", "rois", "message"),
    [
        (POOL.format("pooled_w: 4"), (6, 5), r":3: layer 'roi' .*: roi_pooling_param { pooled_h } is 0"),
        (POOL.format("pooled_h: 1"), (6, 5), r"roi_pooling_param { pooled_w } is 0 or not given"),
        (POOL.format("pooled_h: 1 pooled_w: 1 spatial_scale: 0"), (6, 5), "spatial_scale 0 is not"),
        (POOL.format(PARAMETERS), (6, 4), r"regions \(6, 4\) are not rows of 5 numbers"),
        (
            "layer { name: 'l' type: 'SmoothL1Loss' bottom: 'x' bottom: 'rois' top: 'y' }",
            (2, 5),
            "layer 'l' .*: its bottoms .* do not have the same shape",
        ),
        (
            "layer { name: 'l' type: 'SmoothL1Loss' bottom: 'x' bottom: 'x' top: 'y' "
            "smooth_l1_loss_param { sigma: 0 } }",
            (2, 5),
            "sigma 0 is not a number above 0",
        ),
    ],
)
def test_a_mistake_is_told_with_its_layer(
    layer: str, rois: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with demitasse.compose(plugins=["-tuning"]) as runtime, pytest.raises(ModelError, match=message):
        runtime.net(net_of(tmp_path, layer, rois))
