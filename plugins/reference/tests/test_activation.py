"""Activations on values computed by hand; dropout as a sample of its distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Apply = Callable[..., Any]


def counter(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


def test_relu_keeps_what_is_positive(apply: Apply) -> None:
    assert apply("relu", np.array([-2.0, 0.0, 3.0])).tolist() == [0, 0, 3]


def test_a_leaky_relu_scales_what_is_not(apply: Apply) -> None:
    y = apply("relu", np.array([-2.0, 0.0, 3.0]), negative_slope=0.25)
    assert y.tolist() == [-0.5, 0, 3]


def test_relu_passes_a_nan_on(apply: Apply) -> None:
    assert math.isnan(apply("relu", np.array([math.nan]))[0])


def test_softmax_is_the_share_of_exponentials(apply: Apply) -> None:
    x = np.log([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]])
    assert np.allclose(apply("softmax", x), [[1 / 8, 2 / 8, 5 / 8], [1 / 3] * 3], rtol=1e-14)


def test_softmax_of_large_numbers_is_finite(apply: Apply) -> None:
    y = apply("softmax", np.array([[1e4, 1e4, -1e4]], np.float32))
    assert y.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.9])
def test_dropout_drops_its_ratio_and_keeps_the_mean(apply: Apply, ratio: float) -> None:
    x = np.ones((40, 2500))
    y, mask = apply("dropout", x, counter(0), counter(0), ratio=ratio, seed=3, stream=1)
    assert mask.dtype == np.uint8
    assert set(np.unique(mask)) <= {0, 1}
    deviation = math.sqrt(ratio * (1 - ratio) / x.size)
    assert abs(mask.mean() - (1 - ratio)) <= 5 * deviation
    assert abs(y.mean() - 1) <= 5 * deviation / (1 - ratio)
    assert np.allclose(y[mask == 1], 1 / (1 - ratio), rtol=1e-15)
    assert not y[mask == 0].any()


def test_dropout_is_drawn_anew_by_iteration_stream_and_seed(apply: Apply) -> None:
    x = np.ones((8, 100))
    masks = [
        apply("dropout", x, counter(iteration), counter(0), seed=seed, stream=stream)[1]
        for iteration, seed, stream in [(0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2)]
    ]
    assert len({mask.tobytes() for mask in masks}) == 4
    again = apply("dropout", x, counter(0), counter(0), seed=1, stream=1)[1]
    assert np.array_equal(again, masks[0])


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_workers_together_drop_what_one_worker_drops(apply: Apply, workers: int) -> None:
    x = np.random.default_rng(0).normal(size=(7, 3, 5))
    options = {"ratio": 0.4, "seed": 11, "stream": 4}
    whole, mask = apply("dropout", x, counter(9), counter(100), **options)
    shares = np.array_split(np.arange(7), workers)
    parts = [
        apply("dropout", x[share], counter(9), counter(100 + int(share[0])), **options)
        for share in shares
    ]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), whole)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), mask)


def test_dropout_reads_the_iteration_when_it_is_called(apply: Apply) -> None:
    from demitasse import Place, Request, TensorSpec
    from demitasse.operations import VOCABULARY
    from demitasse_reference import plugin

    spec, one = TensorSpec((4, 50), "float32"), TensorSpec((1,), "uint64")
    mask = TensorSpec((4, 50), "uint8")
    attributes = {"ratio": 0.5, "seed": 1, "stream": 1}
    (candidate,) = plugin.kernels(
        Request(VOCABULARY["dropout"], (spec, one, one), (spec, mask), attributes, Place("m"))
    )
    iteration, out = counter(0), np.zeros((4, 50), np.uint8)
    y = np.zeros((4, 50), np.float32)
    work = candidate.bind([np.ones((4, 50), np.float32), iteration, counter(0)], [y, out], None)
    work()
    first = out.copy()
    iteration[0] = 1
    work()
    expected = apply("dropout", np.ones((4, 50)), counter(1), counter(0), **attributes)[1]
    assert not np.array_equal(first, out)
    assert np.array_equal(out, expected)
