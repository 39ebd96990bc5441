"""Fillers against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from demitasse import RandomStream
from demitasse_caffe.fillers import filler
from demitasse_caffe.schema import schema

SHAPE = (40, 30, 5, 5)


def made(shape: tuple[int, ...] = SHAPE, seed: int = 1, **fields: Any) -> np.ndarray:
    message = schema({}).message("FillerParameter")
    for name, value in fields.items():
        if name == "variance_norm":
            value = message.VarianceNorm.Value(value)
        setattr(message, name, value)
    array = filler(message, shape)(shape, RandomStream(seed, 3))
    assert array.dtype == np.float64
    assert array.shape == shape
    return array


def test_a_constant_is_zero_unless_said() -> None:
    assert not made().any()
    assert (made(type="constant", value=0.1) == 0.1).all()


def test_uniform_fills_its_interval() -> None:
    array = made(type="uniform", min=-2, max=4)
    assert array.min() >= -2 and array.max() < 4
    assert array.mean() == pytest.approx(1, abs=0.05)
    assert array.var() == pytest.approx(36 / 12, rel=0.05)


def test_gaussian_has_its_mean_and_deviation() -> None:
    array = made(type="gaussian", mean=3, std=0.5)
    assert array.mean() == pytest.approx(3, abs=0.02)
    assert array.std() == pytest.approx(0.5, rel=0.02)


def test_sparse_gaussian_keeps_so_many_of_the_outputs_for_each_input() -> None:
    array = made((50, 2000), type="gaussian", sparse=10)
    assert (array != 0).mean() == pytest.approx(10 / 50, abs=0.005)
    kept = array[array != 0]
    assert kept.std() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize(
    ("norm", "fan"),
    [("FAN_IN", 30 * 25), ("FAN_OUT", 40 * 25), ("AVERAGE", (30 * 25 + 40 * 25) / 2)],
)
def test_xavier_and_msra_scale_by_the_fan(norm: str, fan: float) -> None:
    xavier = made(type="xavier", variance_norm=norm)
    assert np.abs(xavier).max() <= math.sqrt(3 / fan)
    assert xavier.var() == pytest.approx(1 / fan, rel=0.03)
    assert made(type="msra", variance_norm=norm).var() == pytest.approx(2 / fan, rel=0.03)


def test_the_fan_of_a_vector_is_1_in_and_all_of_it_out() -> None:
    assert np.abs(made((1000,), type="xavier")).max() <= math.sqrt(3)
    assert made((100000,), type="xavier").var() == pytest.approx(1, rel=0.03)


def test_positive_unitball_rows_sum_to_one() -> None:
    array = made(type="positive_unitball")
    assert (array >= 0).all()
    assert np.allclose(array.reshape(40, -1).sum(axis=1), 1)


def test_bilinear_is_the_interpolation_kernel() -> None:
    array = made((2, 1, 4, 4), type="bilinear")
    line = np.array([0.25, 0.75, 0.75, 0.25])
    assert np.allclose(array, np.outer(line, line))
    odd = made((1, 1, 3, 3), type="bilinear")
    assert np.allclose(odd[0, 0], np.outer([0.5, 1, 0.5], [0.5, 1, 0.5]))


def test_bilinear_refuses_kernels_that_are_not_square() -> None:
    with pytest.raises(ValueError, match=r"square kernels in 4 dimensions, not for \(2, 1, 4, 3\)"):
        made((2, 1, 4, 3), type="bilinear")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "uniform", "min": 2, "max": 1}, "uniform has a min of 2.0 above its max of 1.0"),
        ({"type": "gaussian", "std": -0.5}, "gaussian has a std of -0.5; 0 or more is needed"),
    ],
)
def test_a_filler_of_impossible_numbers_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**fields)


@pytest.mark.parametrize(
    "kind", ["constant", "gaussian", "msra", "positive_unitball", "uniform", "xavier"]
)
def test_a_single_number_is_filled_as_a_blob_of_1_by_1_by_1_by_1(kind: str) -> None:
    """Such numbers are a Scale with num_axes 0, and a PReLU's slope shared by all channels."""
    about = {"type": kind, **({"sparse": 1} if kind == "gaussian" else {})}
    assert made((), **about) == made((1, 1, 1, 1), **about)


def test_the_same_stream_fills_the_same_and_another_differs() -> None:
    assert (made(type="msra") == made(type="msra")).all()
    assert (made(type="msra") != made(type="msra", seed=2)).all()


def test_an_unknown_filler_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown filler 'xaver'; did you mean 'xavier'\?"):
        made(type="xaver")


def test_a_filler_prints_its_numbers() -> None:
    message = schema({}).message("FillerParameter")
    message.type, message.std = "gaussian", 0.01
    assert repr(filler(message, (3,))) == "Gaussian(mean=0.0, std=0.01, sparse=-1)"
