"""Launches in a row that one launch does the work of: the same bits, with less of them read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from fused_words import shapes, word
from kernels_on_cpu import GPU

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec
from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import candidates
from demitasse_gpu.kernels.layouts import NHWC
from demitasse_gpu.launch import in_order

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

SHAPE = (3, 8, 5, 4)


def offered(
    name: str, inputs: list[np.ndarray], given: dict[str, Any], how: tuple[str, Any]
) -> Candidate:
    """The offer for a word on images that lie in an order, in a precision."""
    dtype, order = how
    operation, layout = word(name), Layout("NHWC", order) if order else PLAIN
    attributes = {**operation.attributes, **given}
    real = inputs[0].dtype.name
    specs = tuple(TensorSpec(x.shape, real, layout if x.ndim == 4 else PLAIN) for x in inputs)
    made = operation.shapes(shapes(operation, inputs), attributes)
    about = attributes, GPU, "bf16" if dtype == "bf16" else "f32"
    outputs = tuple(TensorSpec(shape, real) for shape in made)
    (candidate,) = candidates(Request(operation, specs, outputs, *about))
    return candidate


def on_device(device: Device, values: np.ndarray, candidate: Candidate, place: int) -> DeviceArray:
    layout = candidate.input_layouts[place]
    packed = layout.pack(values)
    made = empty(device, packed.shape, packed.dtype)
    made[...] = packed
    return made


def step(dtype: str, order: tuple[int, ...], coefficients: Any, terms: int, united: bool) -> Any:
    """What a residual block's backward pass begins with gives: the gradient at its ReLU, and that of its
    last normalisation; and the kernels that were launched."""
    real = "float64" if dtype == "float64" else "float32"
    random = np.random.default_rng(7)
    device = Device(EmulatedDriver(), graphs=False)
    summands = [random.standard_normal(SHAPE).astype(real) for _ in range(terms)]
    mask, x = (random.standard_normal(SHAPE).astype(real) for _ in range(2))
    channel = [random.uniform(0.5, 2, SHAPE[1]).astype(real) for _ in range(4)]
    sums = offered(
        "sum_relu_backward", [*summands, mask], {"coefficients": coefficients}, (dtype, order)
    )
    norm = offered("batch_norm_backward", [mask, x, *channel], {}, (dtype, order))
    given = [on_device(device, v, sums, i) for i, v in enumerate([*summands, mask])]
    spec = replace(TensorSpec(SHAPE, real), layout=sums.output_layouts[0])
    made = empty(device, spec.physical, spec.array_type)
    rest = [on_device(device, v, norm, i + 1) for i, v in enumerate([x, *channel])]
    dx = empty(device, spec.physical, spec.array_type)
    slopes = [empty(device, (SHAPE[1],), real) for _ in range(2)]
    room = empty(device, (max(1, norm.workspace),), "uint8")
    works = [sums.bind(given, [made], None), norm.bind([made, *rest], [dx, *slopes], room)]
    if united:
        works = [in_order(works)]
    for work in works:
        work()
    driver: Any = device.driver
    return [np.asarray(each).copy() for each in (made, dx, *slopes)], driver.launches


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
def test_a_sums_gradient_is_summed_as_it_is_made(dtype: str, order: tuple[int, ...]) -> None:
    alone, launched = step(dtype, order, None, 2, united=False)
    together, united = step(dtype, order, None, 2, united=True)
    assert {"weighted_sum", "gradient_sums"} <= set(launched)
    assert "made_gradient_sums" in united
    assert not {"weighted_sum", "gradient_sums"} & set(united)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
        assert np.isfinite(one.astype(np.float64)).all() and one.any()


@pytest.mark.parametrize(("coefficients", "terms"), [([1.0, 0.5], 2), (None, 3)])
def test_other_sums_are_made_apart(coefficients: Any, terms: int) -> None:
    alone, launched = step("float32", (), coefficients, terms, united=False)
    together, same = step("float32", (), coefficients, terms, united=True)
    assert launched == same
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
