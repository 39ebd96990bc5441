"""Our CUDA kernels for the words that Caffe's layers add, and for solvers' updates, give the reference's
results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import WORDS, Case, Values
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_on_cpu import ORDERS, check
from word_cases import CASES

from demitasse.operations import VOCABULARY
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import FACTORIES

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(EmulatedDriver())


UPDATES: dict[str, dict[str, float]] = {
    "momentum_update": {"momentum": 0.9},
    "nesterov_update": {"momentum": 0.9},
    "adagrad_update": {"delta": 1e-3},
    "rmsprop_update": {"rms_decay": 0.9, "delta": 1e-3},
    "adadelta_update": {"momentum": 0.9, "delta": 1e-3},
    "adam_update": {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-3},
    "larc_update": {"momentum": 0.9, "trust": 0.01, "clip": 1.0},
    "lars_update": {"momentum": 0.9, "trust": 0.01},
    "squares": {},
}


def test_every_word_that_is_served_has_a_case() -> None:
    """Those of the core are in test_gpu_kernels_agree.py, or are fused, or change layouts."""
    fused = {f"{word.name}_{name}" for word in VOCABULARY.values() for name in word.fuses}
    assert set(FACTORIES) - set(VOCABULARY) - fused == {*CASES, *UPDATES} - {"momentum_update"}


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_cuda_agrees_with_reference(device: Device, name: str, dtype: str, data: st.DataObject) -> None:
    inputs, attributes = CASES[name](Values(data.draw, "float32"))
    order = data.draw(st.sampled_from(ORDERS))
    check(device, name, inputs, attributes, dtype, order)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(UPDATES))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_updates_agree_with_reference(
    device: Device, name: str, dtype: str, data: st.DataObject
) -> None:
    """With few segments, with more than one launch takes, and with some larger than a block's chunk."""
    sizes = data.draw(
        st.one_of(
            st.lists(st.integers(1, 40), min_size=1, max_size=4),
            st.just([1] * 70),
            st.just([3, 20_000, 5]),
        )
    )
    inputs, attributes = update_case(name, sizes, dtype, data.draw)
    check(device, name, inputs, attributes, dtype)


def update_case(name: str, sizes: list[int], dtype: str, draw: Callable[[Any], Any]) -> Case:
    edges = np.cumsum([0, *sizes]).tolist()
    multipliers = st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 1.0, 3.0]))
    pair = draw(multipliers)
    segments = tuple((a, b, *pair) for a, b in itertools.pairwise(edges))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kept = name in ("momentum_update", "nesterov_update", "larc_update", "lars_update", "adam_update")
    values: dict[str, Any] = {
        operand: random.standard_normal(edges[-1]).astype(dtype)
        for operand in ("parameter", "gradient", "history", "second")
    }
    if not kept:
        values["history"] = np.abs(values["history"])
    values["second"] = np.abs(values["second"])
    values["rate"] = np.array([draw(st.sampled_from([0.0, 0.01, 1.0]))])
    values["iteration"] = np.array([draw(st.integers(0, 10**6))], np.uint64)
    values["scale"] = draw(st.sampled_from([None, np.array([0.25])]))
    values["squares"] = random.uniform(0, 2, 2 * len(segments)).round(1)
    values["total"] = np.full(2 * len(segments), np.nan)
    attributes: dict[str, Any] = {
        **UPDATES[name],
        **({"clip": draw(st.booleans())} if name == "larc_update" else {}),
        "decay": draw(st.sampled_from([0.0, 0.004])),
        "regularization": draw(st.sampled_from(["L1", "L2"])),
        "segments": segments,
    }
    return [values[operand.name] for operand in WORDS[name].inputs], attributes
