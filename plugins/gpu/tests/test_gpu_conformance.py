"""The plugin on a stand-in for a GPU keeps the promises of its roles, by the public conformance kit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cuda_on_cpu.driver import EmulatedDriver
from threaded_driver import ThreadedDriver

from demitasse_conformance.inquiry import KEPT, Inquiry
from demitasse_conformance.roles import HELD


def held(role: str, driver: Any, *precisions: str) -> dict[str, str]:
    """Return what is reported about each subject of a role that breaks a promise, and the summary."""
    plugins = ("gpu", "caffe", "datasets", "training", "reference")
    asked = Inquiry("gpu", plugins, options={"driver": driver}, precisions=precisions)
    outcomes = list(HELD[role](asked))
    assert outcomes
    wrong = [each for each in outcomes if each.status != KEPT]
    assert not wrong, wrong
    return {each.subject: each.detail for each in outcomes}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["f32", "tf32", "bf16", "f64"])
def test_every_kernel_in_a_precision(precision: str) -> None:
    """Other tests try each kernel on shapes of its own. Here all are requested as by plans, between
    guards, twice, in place and in parts."""
    told = held("kernels", EmulatedDriver, precision)
    found = re.match(r"computes (\d+) of the (\d+) operations", told["in all"])
    assert found is not None
    served, asked = map(int, found.groups())
    assert served >= 98 > 0.85 * asked
    assert f"a net trained in {precision}" in told


def test_memory_and_streams() -> None:
    assert held("allocator", EmulatedDriver) == {"gpu:0": "blocks, and arrays over them"}
    assert held("stream_engine", ThreadedDriver) == {"gpu": "each sentence of the protocol, in gpu:0"}
