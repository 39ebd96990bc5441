"""Our CUDA kernels, run on the processor, give the reference's results: on random requests for every
operation that they serve, in every element type and in both orders of images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agreement import Case, Values
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_on_cpu import ORDERS, check
from served_cases import SERVED

from demitasse_gpu.device import Device

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(EmulatedDriver())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("name", sorted(SERVED))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_cuda_agrees_with_reference(device: Device, name: str, dtype: str, data: st.DataObject) -> None:
    values = Values(data.draw, "float32" if dtype == "bf16" else dtype)
    case: Callable[[Values], Case] = SERVED[name]
    inputs, attributes = case(values)
    order = data.draw(st.sampled_from(ORDERS))
    check(device, name, inputs, attributes, dtype, order)
