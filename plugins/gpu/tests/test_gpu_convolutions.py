"""Convolutions by cuDNN: their numbers, layouts and limits, and what is left to others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolution_requests import (
    GEOMETRIES,
    TOLERANCE,
    computed,
    device_with,
    geometry,
    operands,
    request,
)
from stand_in_cudnn import StandIn, back_to_data, back_to_weights, convolved

from demitasse import PLAIN, PlanError
from demitasse_gpu.libraries import convolutions, cudnn
from demitasse_gpu.libraries.convolutions import Convolution
from demitasse_gpu.libraries.cudnn import strides_of


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("told", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["convolution", "convolution_relu"])
def test_forward(name: str, bias: bool, fuses: bool, told: dict[str, Any], precision: str) -> None:
    library = StandIn(fuses=fuses)
    x, w, b = operands(told["groups"])
    expected = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    expected = expected + b[:, None, None] if bias else expected
    expected = np.maximum(expected, 0) if name.endswith("relu") else expected
    given = [x, w, b if bias else None]
    (y,) = computed(device_with(library), request(name, given, told, precision), given)
    within = TOLERANCE[precision]
    assert np.allclose(y, expected, rtol=within, atol=within * np.abs(expected).max())
    several = any(len(kinds) > 1 for kinds in library.executed)
    assert several == (fuses and (bias or name.endswith("relu")))


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("told", GEOMETRIES.values(), ids=GEOMETRIES)
def test_gradients(told: dict[str, Any], precision: str) -> None:
    device = device_with(StandIn())
    x, w, _ = operands(told["groups"])
    y = convolved(x, w, *geometry(told))
    dy = np.random.default_rng(4).normal(size=y.shape).astype(np.float32)
    within = TOLERANCE[precision]
    asked = request("convolution_backward_data", [dy, w], {**told, "shape": x.shape}, precision)
    (dx,) = computed(device, asked, [dy, w])
    expected = back_to_data(dy.astype(np.float64), w, x.shape, *geometry(told))
    assert np.allclose(dx, expected, atol=within * np.abs(expected).max())
    asked = request("convolution_backward_weights", [dy, x], {**told, "shape": w.shape}, precision)
    dw, db = computed(device, asked, [dy, x])
    expected = back_to_weights(dy.astype(np.float64), x, w.shape, *geometry(told))
    assert dw.dtype == np.float32
    assert np.allclose(dw, expected, atol=within * np.abs(expected).max())
    assert np.allclose(db, dy.sum((0, 2, 3)), atol=within * np.abs(dy.sum((0, 2, 3))).max())


def test_tensor_cores_read_channels_innermost_and_exact_float32_plain_images() -> None:
    x, w, b = operands(1)
    for precision, order in (("f32", ()), ("tf32", (0, 2, 3, 1)), ("bf16", (0, 2, 3, 1))):
        (offer,) = convolutions.candidates(request("convolution", [x, w, b], {}, precision))
        assert offer.kernel == f"cuDNN {precision}"
        assert {layout.order for layout in offer.input_layouts[:2]} == {order}
        asked = request("convolution_backward_weights", [x, x], {"shape": (4, 4, 1, 1)}, precision)
        (offer,) = convolutions.candidates(asked)
        assert not offer.output_layouts[0].stored, "a parameter's gradient stays float32"
        assert offer.output_layouts[1] == PLAIN


@pytest.mark.parametrize(
    ("precision", "notes", "taken"),
    [
        ("f32", [[cudnn.TENSOR_CORE], [cudnn.DOWN_CONVERTED], []], 1),
        ("tf32", [[cudnn.TENSOR_CORE], [cudnn.NONDETERMINISTIC], [cudnn.REDUCED]], 1),
        ("bf16", [[cudnn.TENSOR_CORE], [cudnn.NONDETERMINISTIC], [9]], 2),
    ],
)
def test_engines_that_are_not_exact_or_not_always_the_same_are_left_out(
    precision: str, notes: list[list[int]], taken: int
) -> None:
    library = StandIn(notes)
    x, w = np.ones((2, 8, 5, 5), np.float32), np.ones((8, 8, 3, 3), np.float32)
    computed(device_with(library), request("convolution", [x, w, None], {}, precision), [x, w, None])
    assert len(library.ran) == taken


@pytest.mark.parametrize("batch", [25, 30, 50, 64, 85, 86])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_what_follows_a_plans_scratch_memory_is_aligned(batch: int, stored: str) -> None:
    """With some of these batches, AlexNet's first convolution reads and writes an odd number of
    lines."""
    x, w, y = (batch, 3, 227, 227), (96, 3, 11, 11), (batch, 96, 55, 55)
    geometry = (4, 4), (0, 0), (1, 1)
    asked = Convolution(cudnn.BACKWARD_WEIGHTS, x, w, y, geometry, stored, False)
    assert asked.limit % 256 == 0
    assert 2 * (np.prod(x) + np.prod(y)) * (2 if stored == "bfloat16" else 4) - asked.limit < 256


def test_a_relu_behind_a_convolution_keeps_what_is_no_number() -> None:
    library = StandIn()
    x, w, b = operands(1)
    asked = request("convolution_relu", [x, w, b], GEOMETRIES["plain"], "f32")
    computed(device_with(library), asked, [x, w, b])
    modes = [each for each in library.descriptors.values() if each["kind"] == cudnn.POINTWISE]
    assert [each.get(2) for each in modes if each[0] == [cudnn.RELU]] == [[cudnn.PROPAGATE]]
    assert [each.get(2) for each in modes if each[0] == [cudnn.ADD]] == [None]


@pytest.mark.parametrize(("version", "told"), [(91700, None), (92799, None), (92800, [1])])
def test_graphs_need_not_keep_what_plans_need_as_the_library_does(version: int, told: Any) -> None:
    library = StandIn(version=version)
    device, (x, w, _) = device_with(library), operands(1)
    computed(device, request("convolution", [x, w, None], {}, "tf32"), [x, w, None])
    (plan,) = library.ran
    assert library.descriptors[plan].get(408) == told
    assert device.opened["cudnn"].known


def test_a_convolution_that_it_has_no_engine_for_says_so() -> None:
    x, w, _ = operands(1)
    asked = request("convolution", [x, w, None], {}, "f32")
    with pytest.raises(
        PlanError, match=r"no engine for a convolution of 3x4x7x6, 6x4x3x2.*libraries = false"
    ):
        computed(device_with(StandIn(notes=[])), asked, [x, w, None])


def test_what_it_does_not_compute_is_left_to_others() -> None:
    x = np.zeros((2, 3, 8), np.float32)
    line = {"stride": (1,), "pad": (0,), "dilation": (1,)}
    asked = request("convolution", [x, np.zeros((4, 3, 2), np.float32), None], line, "f32")
    assert convolutions.candidates(asked) == []
    doubles = replace(asked, inputs=tuple(s and replace(s, dtype="float64") for s in asked.inputs))
    assert convolutions.candidates(doubles) == []


def test_scratch_memory_is_bounded_by_what_is_read_and_written() -> None:
    def limit(samples: int) -> int:
        shape = (samples, 64, 56, 56)
        about = ((1, 1), (1, 1), (1, 1)), "float32", True
        return Convolution(cudnn.FORWARD, shape, (64, 64, 3, 3), shape, *about).limit

    assert limit(1) == convolutions.LEAST
    assert limit(64) == 2 * 2 * 4 * 64 * 64 * 56 * 56
    assert limit(4096) == 2**30


@pytest.mark.parametrize("order", [(), (0, 2, 3, 1), (1, 0, 3, 2)])
def test_strides_are_those_of_an_array_in_that_order(order: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 5)
    physical = np.zeros([shape[d] for d in order or range(4)], np.uint8)
    logical = physical.transpose(np.argsort(order)) if order else physical
    assert logical.shape == shape
    assert strides_of(shape, order) == logical.strides
