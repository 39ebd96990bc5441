"""Our CUDA kernels, run on the processor, give what the reference's give: on random requests for every
operation that they serve, in every element type and in both orders of images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agreement import Case, Values, hook, make_request, run
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_on_cpu import ORDERS, check
from test_kernels_agree import CASES, pooling

from demitasse_gpu.device import Device
from demitasse_gpu.kernels import FACTORIES

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


def _pooling_max_backward(v: Values) -> Case:
    """Of maxima: our kernel looks for them in their windows."""
    x, attributes = pooling(v)
    request = make_request("pooling_max", [x], attributes, v.dtype)
    (reference,) = hook("reference")(request)
    _, y, argmax = run(reference, request, [x])
    return [v.real(*y.shape), argmax], {**attributes, "shape": x.shape}


SERVED = {name: case for name, case in CASES.items() if name in FACTORIES}
SERVED["pooling_max_backward"] = _pooling_max_backward


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
