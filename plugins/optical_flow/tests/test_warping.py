"""FlowWarp and PWC-Net's Warp compared with loops written from their definition and, if available, with
PyTorch's grid_sample; their slopes, and mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_optical_flow.warping import Warped

PROPERTY = settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)
LAYER = "layer {{ name: 'w' type: '{}' bottom: 'x' bottom: 'flow' top: 'w' {} }}"


def slow(x: np.ndarray, flow: np.ndarray, corners: bool, fill: float) -> np.ndarray:
    """Warp pixel by pixel."""
    made = np.full(x.shape, fill)
    height, width = x.shape[2:]
    for n, c, i, j in np.ndindex(x.shape):
        column, row = j + flow[n, 0, i, j], i + flow[n, 1, i, j]
        inside = (
            0 <= column <= width - 1 and 0 <= row <= height - 1
            if corners
            else 0 <= column < width and 0 <= row < height
        )
        if not inside:
            continue
        left, top = math.floor(column), math.floor(row)
        right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
        a, b = column - left, row - top
        made[n, c, i, j] = (
            (1 - a) * (1 - b) * x[n, c, top, left]
            + a * (1 - b) * x[n, c, top, right]
            + (1 - a) * b * x[n, c, bottom, left]
            + a * b * x[n, c, bottom, right]
        )
    return made


def problem(seed: int, whole: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return a problem in which some pixels come from integer positions, some from outside, and some
    from just beyond the last pixel."""
    dice = np.random.default_rng(seed)
    x, flow = dice.normal(size=(2, 3, 5, 7)), dice.normal(size=(2, 2, 5, 7)) * 2
    if whole:
        some = dice.uniform(size=flow.shape) < 0.4
        flow = np.where(some, np.round(flow), flow)
    return x, flow


@given(st.integers(0, 999))
@PROPERTY
def test_flow_warp_is_that_of_the_definition(run: Any, seed: int) -> None:
    x, flow = problem(seed)
    zero = run(LAYER.format("FlowWarp", ""), x=x, flow=flow)["w"]
    np.testing.assert_allclose(zero, slow(x, flow, False, 0.0), rtol=1e-12, atol=1e-13)
    fields = "flow_warp_param { fill_value: NOT_A_NUMBER }"
    told = run(LAYER.format("FlowWarp", fields), x=x, flow=flow)["w"]
    np.testing.assert_allclose(told, slow(x, flow, False, math.nan), rtol=1e-12, atol=1e-13)


@given(st.integers(0, 999))
@PROPERTY
def test_warp_is_that_of_the_definition(run: Any, seed: int) -> None:
    x, flow = problem(seed)
    made = run(LAYER.format("Warp", ""), x=x, flow=flow)["w"]
    np.testing.assert_allclose(made, slow(x, flow, True, 0.0), rtol=1e-12, atol=1e-13)


def test_just_beyond_the_last_pixel_the_one_goes_on_and_the_other_is_0(run: Any) -> None:
    x, flow = np.arange(6.0).reshape(1, 1, 2, 3), np.zeros((1, 2, 2, 3))
    flow[0, 0, :, 2] = [0.5, 1.0]
    assert run(LAYER.format("FlowWarp", ""), x=x, flow=flow)["w"][0, 0, :, 2].tolist() == [2, 0]
    assert run(LAYER.format("Warp", ""), x=x, flow=flow)["w"][0, 0, :, 2].tolist() == [0, 0]


def test_a_flow_that_is_no_number_is_outside(run: Any) -> None:
    x, flow = problem(0)
    flow[0, 1, 2, 3], flow[1, 0, 1, 1] = math.nan, math.inf
    made = run(LAYER.format("FlowWarp", ""), x=x, flow=flow)["w"]
    assert not made[0, :, 2, 3].any() and not made[1, :, 1, 1].any()
    warped = Warped(x, flow, {"to_corners": False, "fill": 0.0})
    dy = np.ones(x.shape)
    assert np.isfinite(warped.to_image(dy)).all() and np.isfinite(warped.to_flow(dy)).all()


def test_it_is_grid_sample_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    x, flow = problem(3, whole=False)
    rows, columns = (np.arange(extent, dtype=float) for extent in x.shape[2:])
    at = np.stack([columns + flow[:, 0], rows[:, None] + flow[:, 1]], -1)
    ends = np.array([x.shape[3] - 1, x.shape[2] - 1])
    inside = ((at >= 0) & (at <= ends)).all(-1)[:, None]
    given = torch.tensor(x, requires_grad=True), torch.tensor(2 * at / ends - 1, requires_grad=True)
    theirs = torch.nn.functional.grid_sample(*given, align_corners=True)
    dy = np.random.default_rng(1).normal(size=x.shape) * inside
    theirs.backward(torch.tensor(dy))
    warped = Warped(x, flow, {"to_corners": True, "fill": 0.0})
    np.testing.assert_allclose(warped.image() * inside, theirs.detach().numpy() * inside, atol=1e-12)
    np.testing.assert_allclose(warped.to_image(dy), given[0].grad.numpy(), atol=1e-12)
    across = np.moveaxis(given[1].grad.numpy() * 2 / ends, -1, 1)
    np.testing.assert_allclose(warped.to_flow(dy), across, atol=1e-12)


@given(st.integers(0, 999), st.booleans())
@PROPERTY
def test_gradients_are_the_slopes(seed: int, corners: bool) -> None:
    """The gradient of the image is checked by linearity, that of the flow by small steps at positions
    between pixels."""
    x, flow = problem(seed)
    about = {"to_corners": corners, "fill": 0.0}
    dice = np.random.default_rng(seed + 1)
    dy, move = dice.normal(size=(2, *x.shape))
    slope = (Warped(x, flow, about).to_image(dy) * move).sum()
    assert slope == pytest.approx((dy * slow(move, flow, corners, 0.0)).sum(), abs=1e-10)
    x, flow = problem(seed, whole=False)
    made, h = Warped(x, flow, about).to_flow(dy), 1e-7
    for _ in range(8):
        n, k, i, j = (int(dice.integers(extent)) for extent in flow.shape)
        one = np.zeros_like(flow)
        one[n, k, i, j] = h
        near = flow[n, k, i, j] - round(flow[n, k, i, j])
        if abs(near) < 1e-5:
            continue
        up, low = ((dy * slow(x, flow + s * one, corners, 0.0)).sum() for s in (1, -1))
        assert made[n, k, i, j] == pytest.approx((up - low) / (2 * h), abs=1e-5)


def test_at_a_whole_place_warp_has_the_mean_of_both_slopes_and_flow_warp_that_behind() -> None:
    x = np.array([1.0, 4, 9, 16]).reshape(1, 1, 1, 4).repeat(3, 2) + np.array([0.0, 1, 3])[:, None]
    flow, dy = np.zeros((1, 2, 3, 4)), np.ones((1, 1, 3, 4))
    both = Warped(x, flow, {"to_corners": True, "fill": 0.0}).to_flow(dy)
    assert both[0, 0, 0].tolist() == [1.5, 4, 6, 3.5]  # at an end the slope outside is 0
    assert both[0, 1, :, 0].tolist() == [0.5, 1.5, 1]
    behind = Warped(x, flow, {"to_corners": False, "fill": 0.0}).to_flow(dy)
    assert behind[0, 0, 0].tolist() == [3, 5, 7, 0]
    assert behind[0, 1, :, 0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_flow_without_two_channels_is_told(run: Any, channels: int) -> None:
    x = np.zeros((1, 3, 4, 5))
    with pytest.raises(
        demitasse.ModelError, match="does not have two channels, across and down"
    ) as caught:
        run(LAYER.format("FlowWarp", ""), x=x, flow=np.zeros((1, channels, 4, 5)))
    assert "net.prototxt:3" in str(caught.value)
