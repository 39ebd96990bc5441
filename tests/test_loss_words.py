"""Words of losses: the cpu plugin's kernels against the reference's, and sums of many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import TOLERANCE, Large, Values, check_agreement, hook, labelled, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loss_formulas import cross_entropy


def _pair(v: Any) -> Any:
    x = v.real(*v.shape())
    return [x, v.real(len(x), x.size // len(x))], {}


def _targets(v: Any) -> Any:
    x = v.real(*v.shape()) * v.one_of(1, 40)
    target = v.random.uniform(-1.4, 1.4, x.shape).astype(v.dtype)
    kinds = v.one_of("valid", "full", "batch_size", "none")
    return [x.astype(v.dtype), target], {"ignore_label": v.one_of(None, -1, 0), "normalization": kinds}


def _scores(v: Any) -> Any:
    x = v.real(*v.shape())
    return [x, v.labels(len(x), x.size // len(x))], {"norm": v.one_of("L1", "L2")}


def _shares(v: Any) -> Any:
    (x, label), attributes = _scores(v)
    return [np.maximum(x, 0), label], attributes


def _infogain(v: Any) -> Any:
    x, label, attributes = labelled(v)
    classes, label = x.shape[attributes["axis"]], label.reshape(len(x), -1)
    kinds = v.one_of("valid", "full", "batch_size", "none")
    return [x, label, v.positive(classes, classes)], {**attributes, "normalization": kinds}


def _segments(v: Any) -> Any:
    classes = v.number(1, 9)
    x = v.real(v.number(1, 3), classes, v.number(1, 9), v.number(1, 9))
    x = np.round(x, v.one_of(0, 3)).astype(v.dtype)  # of equals the later class counts
    label = v.random.integers(0, classes, (len(x), 1, *x.shape[2:])).astype(v.dtype)
    ignored = v.one_of((), (255,), (0, 255))
    if ignored:
        label[v.random.uniform(size=label.shape) < 0.2] = 255
    return [x, label], {"ignored": ignored}


def _infogain_backward(v: Any) -> Any:
    (x, label, matrix), attributes = _infogain(v)
    return [v.real(), np.abs(x), label, matrix], attributes


def _contrast(v: Any) -> Any:
    samples, length = v.number(1, 9), v.number(1, 40)
    similar = v.random.integers(0, 2, samples).astype(v.dtype)
    attributes = {"margin": v.one_of(1.0, 5.0), "legacy": v.one_of(True, False)}
    return [v.real(samples, length), v.real(samples, length), similar], attributes


def backward(case: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def with_gradient(v: Any) -> Any:
        inputs, attributes = case(v)
        return [v.real(), *inputs], attributes

    return with_gradient


CASES = {
    "half_squared_distance": _pair,
    "half_squared_distance_backward": backward(_pair),
    "sigmoid_cross_entropy_loss": _targets,
    "sigmoid_cross_entropy_loss_backward": backward(_targets),
    "hinge_loss": _scores,
    "hinge_loss_backward": backward(_scores),
    "negative_log_likelihood": _shares,
    "negative_log_likelihood_backward": backward(_shares),
    "infogain_loss": _infogain,
    "infogain_loss_backward": _infogain_backward,
    "segment_scores": _segments,
    "contrastive_loss": _contrast,
    "contrastive_loss_backward": backward(_contrast),
}


@pytest.mark.parametrize("name", sorted({*CASES} - {"segment_scores"}))
def test_threads_share_what_is_large(name: str) -> None:
    check_agreement(name, *CASES[name](Large({1: 1, 9: 200, 40: 160})), "float64", 1e-11)


@pytest.mark.parametrize("size", [1024, 2048, 2049, 5000])
@pytest.mark.parametrize("normalization", ["valid", "batch_size"])
def test_cross_entropies_of_many_elements_add_up(size: int, normalization: str) -> None:
    """They are added up so many at a time."""
    random = np.random.default_rng(size)
    x, target = random.normal(size=(2, size)), random.integers(-1, 2, (2, size)).astype(float)
    given = {"ignore_label": -1, "normalization": normalization}
    valid = target != -1
    total = cross_entropy(x, target)[valid].sum()
    for dtype, within in (("float32", 1e-6), ("float64", 1e-12)):
        inputs = [x.astype(dtype), target.astype(dtype)]
        request = make_request("sigmoid_cross_entropy_loss", inputs, given, dtype)
        (candidate,) = hook("cpu")(request)
        *_, loss = run(candidate, request, inputs)
        wanted = total / (valid.sum() if normalization == "valid" else 2)
        np.testing.assert_allclose(loss, wanted, rtol=within)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    drawn = CASES[name](Values(data.draw, dtype))
    check_agreement(name, *drawn, dtype, TOLERANCE[dtype])
