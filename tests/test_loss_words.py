"""Words of losses: the cpu plugin's kernels against the reference's, and sums of many elements."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import TOLERANCE, Large, Values, check_agreement, hook, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loss_cases import CASES
from loss_formulas import cross_entropy


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
