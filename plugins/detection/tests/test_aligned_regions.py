"""ROIAlign compared with a slow implementation, point by point; its gradient; mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_detection.aligned import aligned, aligned_backward

PROPERTY = settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
LAYER = (
    "layer {{ name: 'a' type: 'ROIAlign' bottom: 'x' bottom: 'rois' top: 'a' "
    "roi_pooling_param {{ {} }} }}"
)


def between(plane: np.ndarray, row: float, column: float) -> float:
    """Interpolate linearly between the four places around a point that is not beyond the plane."""
    row, column = (min(max(v, 0.0), n - 1.0) for v, n in zip((row, column), plane.shape, strict=True))
    top, left = math.floor(row), math.floor(column)
    bottom, right = math.ceil(row), math.ceil(column)
    above = plane[top, left] * (1 - (column - left)) + plane[top, right] * (column - left)
    below = plane[bottom, left] * (1 - (column - left)) + plane[bottom, right] * (column - left)
    return float(above * (1 - (row - top)) + below * (row - top))


def slow(x: np.ndarray, regions: np.ndarray, size: tuple[int, int], scale: float, grown: float) -> Any:
    y = np.zeros((len(regions), x.shape[1], size[0] + 1, size[1] + 1))
    for r, (sample, x1, y1, x2, y2) in enumerate(regions.reshape(-1, 5)):
        wide, tall = (x2 - x1 + 1) * grown, (y2 - y1 + 1) * grown
        left, right = (x1 - wide) * scale - 0.5, (x2 + wide) * scale - 0.5
        top, bottom = (y1 - tall) * scale - 0.5, (y2 + tall) * scale - 0.5
        if right <= left or bottom <= top:
            continue
        for c, i, j in np.ndindex(*y.shape[1:]):
            row = top + i * (bottom - top) / size[0]
            column = left + j * (right - left) / size[1]
            if -0.5 <= row <= x.shape[2] - 0.5 and -0.5 <= column <= x.shape[3] - 0.5:
                y[r, c, i, j] = between(x[int(sample), c], row, column)
    return y


def problem(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a problem in which some regions extend beyond the planes, and some have their corners in
    the wrong order."""
    dice = np.random.default_rng(seed)
    sample, corners = dice.integers(0, 2, (count, 1)), dice.integers(-40, 140, (count, 4)) / 2
    corners[: count // 2, 2:] = corners[: count // 2, :2] + dice.integers(1, 60, (count // 2, 2))
    return dice.normal(size=(2, 3, 7, 9)), np.concatenate([sample, corners], 1)


@given(
    st.integers(0, 999),
    st.sampled_from([(1, 1), (3, 2), (5, 5)]),
    st.integers(1, 6),
    st.sampled_from([1 / 16, 0.125, 0.25]),
    st.sampled_from([0.0, 0.25]),
)
@PROPERTY
def test_points_are_between_places_and_the_gradient_is_their_slope(
    run: Any, seed: int, size: tuple[int, int], count: int, scale: float, grown: float
) -> None:
    x, regions = problem(seed, count)
    fields = f"pooled_h: {size[0]} pooled_w: {size[1]} spatial_scale: {scale} pad_ratio: {grown}"
    made = run(LAYER.format(fields), x=x, rois=regions[:, :, None, None])["a"]
    np.testing.assert_allclose(made, slow(x, regions, size, scale, grown), rtol=1e-9, atol=1e-12)
    about = {"size": size, "scale": scale, "grown": grown, "source": ""}
    dy = np.random.default_rng(seed).normal(size=made.shape)
    gradient = aligned_backward(dy, regions, x.shape, about)
    turned = np.random.default_rng(seed + 1).normal(size=x.shape)  # the operations are linear in x
    assert (gradient * turned).sum() == pytest.approx(
        (dy * aligned(turned, regions, about)).sum(), abs=1e-9
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("pooled_h: 2 pooled_w: 2 spatial_scale: 0", r"{ spatial_scale } is not given, or not above 0"),
        ("pooled_w: 2 spatial_scale: 1", r"{ pooled_h } is not given, or not above 0"),
        ("pooled_h: 2 pooled_w: 2 pad_ratio: -1", "pad_ratio -1 is not 0 or more"),
        (
            "pooled_h: 2 pooled_w: 2 } propagate_down: true #",
            "a propagate_down for each of 2 bottoms, false for",
        ),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, fields: str, message: str) -> None:
    x, regions = problem(0, 3)
    text = LAYER.format(fields).replace("# } }", "}")
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(text, x=x, rois=regions)
    assert "net.prototxt:3" in str(caught.value)


def test_what_is_no_region_is_an_error(run: Any) -> None:
    x, regions = problem(0, 3)
    regions[1, 0] = 2
    message = r"net.prototxt:3: layer 'a' \(ROIAlign\): region 1 is .* \(valid: a sample from 0 to 1"
    with pytest.raises(demitasse.DataError, match=message):
        run(LAYER.format("pooled_h: 2 pooled_w: 2 spatial_scale: 0.25"), x=x, rois=regions)
