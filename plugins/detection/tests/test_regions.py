"""PSROIPooling compared with a slow implementation of the paper, its gradient, and mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_detection.regions import pooled, pooled_backward

PROPERTY = settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
LAYER = (
    "layer {{ name: 'p' type: 'PSROIPooling' bottom: 'x' bottom: 'rois' top: 'p' "
    "psroi_pooling_param {{ {} }} }}"
)


def slow(x: np.ndarray, regions: np.ndarray, size: int, scale: float) -> np.ndarray:
    """Pool region by region, cell by cell. Scales are powers of two, so that nothing is rounded."""
    depth = x.shape[1] // size**2
    y = np.zeros((len(regions), depth, size, size))
    for r, (sample, *corners) in enumerate(regions.reshape(-1, 5)):
        x1, y1, x2, y2 = (math.copysign(math.floor(abs(c) + 0.5), c) for c in corners)
        left, top, right, bottom = x1 * scale, y1 * scale, (x2 + 1) * scale, (y2 + 1) * scale
        tall, wide = (max(s, float(np.float32(0.1))) / size for s in (bottom - top, right - left))
        for i, j in np.ndindex(size, size):
            rows = range(
                max(math.floor(top + i * tall), 0), min(math.ceil(top + (i + 1) * tall), x.shape[2])
            )
            columns = range(
                max(math.floor(left + j * wide), 0), min(math.ceil(left + (j + 1) * wide), x.shape[3])
            )
            places = [(row, column) for row in rows for column in columns]
            for d in range(depth):
                plane = x[int(sample), (d * size + i) * size + j]
                y[r, d, i, j] = sum(plane[p] for p in places) / len(places) if places else 0
    return y


def problem(seed: int, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a problem in which some regions extend beyond the planes, and some have their corners in
    the wrong order."""
    dice = np.random.default_rng(seed)
    sample, corners = dice.integers(0, 2, (count, 1)), dice.integers(-40, 140, (count, 4)) / 2
    return dice.normal(size=(2, 3 * size**2, 7, 9)), np.concatenate([sample, corners], 1)


@given(
    st.integers(0, 999), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.sampled_from([1 / 16, 0.25])
)
@PROPERTY
def test_the_means_are_the_papers_and_the_gradient_is_their_slope(
    run: Any, seed: int, size: int, count: int, scale: float
) -> None:
    x, regions = problem(seed, size, count)
    fields = f"group_size: {size} output_dim: 3 spatial_scale: {scale}"
    made = run(LAYER.format(fields), x=x, rois=regions[:, :, None, None])["p"]
    np.testing.assert_allclose(made, slow(x, regions, size, scale), rtol=1e-9, atol=1e-12)
    about = {"size": size, "scale": scale, "source": ""}
    dy = np.random.default_rng(seed).normal(size=made.shape)
    gradient = pooled_backward(dy, regions, x.shape, about)
    turned = np.random.default_rng(seed + 1).normal(size=x.shape)  # the operations are linear in x
    assert (gradient * turned).sum() == pytest.approx(
        (dy * pooled(turned, regions, about)).sum(), abs=1e-9
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "group_size: 2 output_dim: 3",
            r"psroi_pooling_param { spatial_scale } is not given, or not above",
        ),
        (
            "group_size: 2 output_dim: -3 spatial_scale: 1",
            r"{ output_dim } is not given, or not above 0",
        ),
        (
            "group_size: 3 output_dim: 3 spatial_scale: 1",
            "output_dim 3 in 3 x 3 cells does not make the channels",
        ),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    x, regions = problem(0, 2, 3)
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(fields), x=x, rois=regions)
    assert "net.prototxt:3" in str(caught.value)


@pytest.mark.parametrize(("at", "value"), [(0, 2), (0, 0.5), (3, -1e9), (1, 1e9)])
def test_what_is_no_region_is_an_error(run: Any, at: int, value: float) -> None:
    x, regions = problem(0, 2, 3)
    regions[1, at] = value
    fields = "group_size: 2 output_dim: 3 spatial_scale: 0.25"
    message = r"net.prototxt:3: layer 'p' \(PSROIPooling\): region 1 is .* \(valid: a sample from 0 to 1"
    with pytest.raises(demitasse.DataError, match=message):
        run(LAYER.format(fields), x=x, rois=regions)
