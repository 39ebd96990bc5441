"""L1Loss of FlowNet's fork, LpqLoss and Downsample compared with loops written from their definition,
their slopes, unknown places, and mistakes."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest

import demitasse
from demitasse_optical_flow.losses import downsampled, loss, loss_backward

LAYER = "layer {{ name: 'l' type: '{}' bottom: 'a' bottom: 'b' top: 'l' {} }}"


class Fields(NamedTuple):
    """The fields of an l1_loss_param."""

    l2_per_location: bool
    l2_prescale_by_channels: bool
    normalize_by_num_entries: bool
    epsilon: float
    plateau: float

    @property
    def text(self) -> str:
        given = " ".join(f"{name}: {str(value).lower()}" for name, value in self._asdict().items())
        return f"l1_loss_param {{ {given} }}"


def slow(a: np.ndarray, b: np.ndarray, f: Fields) -> float:
    """Compute the loss place by place, as the fork does."""
    samples, channels, height, width = a.shape
    total, entries = 0.0, 0.0
    for n, i, j in np.ndindex(samples, height, width):
        squares = 0.0
        for c in range(channels):
            d = a[n, c, i, j] - b[n, c, i, j]
            entries += not math.isnan(d)
            if math.isnan(d) or (not f.l2_per_location and abs(d) < f.plateau):
                d = 0.0
            squares += d * d / (channels if f.l2_prescale_by_channels else 1)
            total += 0 if f.l2_per_location else abs(d)
        if f.l2_per_location:
            total += math.sqrt((squares if squares >= f.plateau**2 else 0) + f.epsilon)
    return total / (max(entries / channels, 1) if f.normalize_by_num_entries else samples)


def flows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    a, b = dice.normal(size=(2, 2, 2, 3, 4))
    b[:, :, dice.uniform(size=(3, 4)) < 0.3] = math.nan
    b[0, 1, 0, 0] = math.nan
    return a, b


BOTH = (False, True)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("plateau", [0.0, 0.5, 1.5])
@pytest.mark.parametrize(("long", "prescale", "entries"), [*itertools.product(BOTH, repeat=3)])
def test_l1_loss_is_that_of_the_definition(
    run: Any, seed: int, plateau: float, long: bool, prescale: bool, entries: bool
) -> None:
    a, b = flows(seed)
    f = Fields(long, prescale, entries, 0.0625, plateau)
    made = run(LAYER.format("L1Loss", f.text), a=a, b=b)["l"]
    assert float(made) == pytest.approx(slow(a, b, f), rel=1e-12)


def about_of(**given: Any) -> dict[str, Any]:
    return {
        **{"starts": (0,), "p": (1.0,), "q": (1.0,), "p_epsilon": 0.0, "q_epsilon": 0.0},
        **{"prescale": False, "plateau": 0.0, "by_location": False, "normalization": "batch_size"},
        **given,
    }


@pytest.mark.parametrize(
    "about",
    [
        about_of(),
        about_of(plateau=0.5),
        about_of(
            p=(2.0,), q=(0.5,), q_epsilon=0.01, by_location=True, plateau=0.7, normalization="valid"
        ),
        about_of(q=(0.4,), q_epsilon=0.01),  # PWC-Net's
        about_of(p=(1.5,), q=(0.7,), p_epsilon=0.1, q_epsilon=0.2, prescale=True, normalization="valid"),
        about_of(starts=(0, 5, 9), p=(1.0, 2.0, 1.0), q=(1.0, 0.5, 0.4), q_epsilon=0.01),
    ],
)
def test_gradients_are_the_slopes(about: dict[str, Any]) -> None:
    a, b = flows(1)
    iteration, h = np.array([6], np.uint64), 1e-6
    made = loss_backward(np.array(3.0), a, b, iteration, about)
    numeric = np.zeros_like(a)
    for place in np.ndindex(a.shape):
        one = np.zeros_like(a)
        one[place] = h
        up, low = (loss(a + s * one, b, iteration, about)[0] for s in (1, -1))
        numeric[place] = 3 * (up - low) / (2 * h)
    np.testing.assert_allclose(made, numeric, atol=1e-7)
    assert not made[np.isnan(b)].any() and made.any()


def test_lpq_loss_changes_its_powers_at_iterations() -> None:
    a, b = flows(2)
    about = about_of(starts=(0, 5, 9), p=(1.0, 2.0, 1.0), q=(1.0, 0.5, 0.4), q_epsilon=0.01)
    for at, p, q in ((0, 1, 1), (4, 1, 1), (5, 2, 0.5), (8, 2, 0.5), (9, 1, 0.4), (99, 1, 0.4)):
        one = about_of(p=(float(p),), q=(float(q),), q_epsilon=0.01)
        at_once = loss(a, b, np.array([0]), one)
        assert loss(a, b, np.array([at], np.uint64), about) == at_once


def test_pwc_nets_loss_by_hand(run: Any) -> None:
    a, b = np.array([[[[3.0]], [[-4.0]]]]), np.zeros((1, 2, 1, 1))
    fields = "lpq_loss_param { p: 1 q: 0.4 q_epsilon: 0.01 }"
    made = float(run(LAYER.format("LpqLoss", fields), a=a, b=b)["l"])
    assert made == pytest.approx(7.01**0.4, rel=1e-6)


def test_equal_numbers_have_the_forks_slope_and_powers_below_1_none() -> None:
    zero = np.zeros((1, 2, 1, 1))
    iteration = np.array([0], np.uint64)
    assert (loss_backward(np.array(1.0), zero, zero, iteration, about_of()) == -1).all()
    no_epsilon = about_of(p=(2.0,), q=(0.5,))
    assert not loss_backward(np.array(1.0), zero, zero, iteration, no_epsilon).any()


def test_where_nothing_is_known_nothing_is_learned() -> None:
    a, b = np.ones((1, 2, 2, 2)), np.full((1, 2, 2, 2), math.nan)
    about = about_of(normalization="valid")
    assert loss(a, b, np.array([0]), about) == (0, 0)
    assert not loss_backward(np.array(1.0), a, b, np.array([0]), about).any()


def slow_smaller(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Compute each place from the pixels around it, weighted by their distance."""
    height, width = x.shape[2:]
    down, across = (height - 1) / (rows - 1), (width - 1) / (columns - 1)
    made = np.empty((*x.shape[:2], rows, columns))
    for n, c, i, j in np.ndindex(made.shape):
        total = weights = unknown = 0.0
        for y, z in np.ndindex(height, width):
            weight = max(0, 1 - abs(y - i * down) / down) * max(0, 1 - abs(z - j * across) / across)
            if math.isnan(x[n, c, y, z]):
                unknown += weight
            else:
                total, weights = total + weight * x[n, c, y, z], weights + weight
        known = weights > 0 and unknown / weights <= 0.5
        made[n, c, i, j] = total / weights if known else math.nan
    return made


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (2, 2), (5, 8), (7, 30)])
def test_downsample_is_that_of_the_definition(run: Any, rows: int, columns: int) -> None:
    x = np.random.default_rng(rows).normal(size=(2, 2, 13, 17))
    x[:, :, 2:6, 3:9], x[0, 0, 12, 16] = math.nan, math.nan
    layer = "layer {{ name: 'd' type: 'Downsample' bottom: 'x' top: 'd' downsample_param {{ {} }} }}"
    made = run(layer.format(f"top_height: {rows} top_width: {columns}"), x=x)["d"]
    assert not np.isnan(made).all() and (np.isnan(made).any() or rows == 2)
    np.testing.assert_allclose(made, slow_smaller(x, rows, columns), atol=2e-6)


def test_to_its_own_size_an_image_stays_as_it_is(run: Any) -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 5))
    x[0, 0, 1, 2] = math.nan
    np.testing.assert_array_equal(downsampled(x, {"size": (4, 5)}), x)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("L1Loss", "l1_loss_param { epsilon: -1 }", r"{ epsilon: -1 } is not 0 or more"),
        ("L1Loss", "l1_loss_param { plateau: -1 }", r"{ plateau: -1 } is not 0 or more"),
        ("LpqLoss", "", "has 0 pq_episode_starts_at_iter, 0 p and 0 q"),
        ("LpqLoss", "lpq_loss_param { p: 1 p: 2 q: 1 }", "2 p and 1 q; give as many of each"),
        (
            "LpqLoss",
            "lpq_loss_param { p: 1 p: 2 q: 1 q: 1 pq_episode_starts_at_iter: [0, 0] }",
            "must rise from 0",
        ),
        ("LpqLoss", "lpq_loss_param { p: 1 q: 0 }", "p and q must be powers above 0"),
        ("LpqLoss", "lpq_loss_param { p: 1 q: 1 q_epsilon: -2 }", r"{ q_epsilon: -2 } is not 0 or more"),
        (
            "LpqLoss",
            "lpq_loss_param { p: nan q: 1 }",
            r"lpq_loss_param { p: nan } is not a finite number",
        ),
    ],
)
def test_a_wrong_field_is_told_with_its_layer(run: Any, kind: str, fields: str, message: str) -> None:
    a, _ = flows(0)
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(LAYER.format(kind, fields), a=a, b=a)
    assert "net.prototxt:3" in str(caught.value)


def test_a_side_of_one_place_is_told(run: Any) -> None:
    layer = "layer { name: 'd' type: 'Downsample' bottom: 'x' top: 'd' downsample_param { %s } }"
    with pytest.raises(demitasse.ModelError, match="has a side below 2"):
        run(layer % "top_height: 1 top_width: 2", x=np.zeros((1, 1, 5, 5)))


def test_what_is_not_known_may_be_given_and_a_nan_elsewhere_not(run: Any) -> None:
    a, b = flows(0)
    fields = "l1_loss_param { l2_per_location: true }"
    assert math.isfinite(run(LAYER.format("L1Loss", fields), a=a, b=b)["l"])
    with pytest.raises(demitasse.ModelError, match="input 'b': sample 0 has nan"):
        run(LAYER.format("L1Loss", ""), a=a, b=b)  # NVIDIA's
    relu = LAYER.format("L1Loss", fields) + "layer { name: 'r' type: 'ReLU' bottom: 'b' top: 'r' }"
    with pytest.raises(demitasse.ModelError, match="input 'b': sample 0 has nan"):
        run(relu, a=a, b=b)
