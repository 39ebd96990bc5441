"""Convolutions of few channels by pairs of bfloat16, compared with NumPy's products of the rounded
numbers in float64. Kernels also read nothing after the images."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_problems import (
    ask,
    at_the_end_of_memory,
    compute,
    made_for_windows,
    near,
    rounded,
    windows_of,
)

from demitasse import TensorSpec
from demitasse_cpu.kernels import pixel_products, planes, windows, winograd
from demitasse_cpu.kernels.requests import spec
from demitasse_cpu.onednn.inner_product import has_pairs


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_pairs() -> None:
    if not has_pairs(ask("inner_product", [(8, 32), (32, 32)], (8, 32), {}, 1)):
        pytest.skip("this processor has no AVX512-BF16, or a matrix unit that is quicker; or no oneDNN")


WINDOWS = {
    "images": st.integers(1, 3),
    "channels": st.sampled_from([1, 3, 10, 20]),
    "outputs": st.sampled_from([1, 10, 32, 50]),
    "result": st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 4, 6, 10, 16, 18])),
    "taps": st.tuples(st.integers(1, 5), st.integers(2, 5)),
    "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "pad": st.tuples(st.integers(0, 2), st.integers(0, 2)),
    "beyond": st.tuples(st.integers(0, 2), st.integers(0, 2)),
    "threads": st.integers(1, 3),
    "biased": st.booleans(),
}


@settings(max_examples=examples(40))
@given(numbers=st.fixed_dictionaries(WINDOWS), rectified=st.booleans())
def test_windows_times_weights(numbers: dict[str, Any], rectified: bool) -> None:
    x, shape, attributes = made_for_windows(numbers)
    random = np.random.default_rng(1)
    w = random.standard_normal((shape[1], x.shape[1], *numbers["taps"])).astype(np.float32)
    b = random.standard_normal(shape[1]).astype(np.float32)
    operands = [x, w, b][: 2 + numbers["biased"]]
    shapes = [each.shape for each in operands]
    request = ask("convolution", shapes, shape, attributes, numbers["threads"])
    if rectified:
        request = replace(request, operation=replace(request.operation, name="convolution_relu"))
    (candidate,) = windows.forward(request)
    seen = windows_of(rounded(x), shape[2:], w.shape[2:], attributes)
    expected, size = (
        np.einsum("ncyxij,ocij->noyx", *each, optimize=True)
        for each in ((seen, rounded(w)), (np.abs(seen), np.abs(rounded(w))))
    )
    expected += b[:, None, None] if numbers["biased"] else 0
    near(compute(candidate, request, operands), np.maximum(expected, 0) if rectified else expected, size)


@pytest.mark.parametrize("none", [np.nan, np.inf])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_no_number_reaches_its_windows_alone(channels: int, none: float) -> None:
    """Five taps of one channel, or three taps of three, are an odd number of values."""
    taps = 5 if channels == 1 else 3
    x = np.ones((1, channels, 12, 12), np.float32)
    x[0, -1, 6, 6] = none
    w = np.ones((32, channels, taps, taps), np.float32)
    shape = (1, 32, 13 - taps, 13 - taps)
    request = ask("convolution", [x.shape, w.shape], shape, {"pad": (0, 0)}, 1)
    (candidate,) = windows.forward(request)
    y = compute(candidate, request, [x, w])
    reached = np.zeros(shape[2:], bool)
    reached[7 - taps : 7, 7 - taps : 7] = True
    assert np.array_equal(~np.isfinite(y[0, 0]), reached[: shape[2], : shape[3]])


@settings(max_examples=examples(60))
@given(
    numbers=st.fixed_dictionaries(
        WINDOWS
        | {
            "channels": st.integers(1, 4),
            "outputs": st.sampled_from([16, 20, 32, 50, 97]),
            "result": st.tuples(st.integers(1, 9), st.integers(1, 40)),
            "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
            "taps": st.tuples(st.integers(1, 7), st.integers(2, 7)),
            "pad": st.tuples(st.integers(0, 6), st.integers(0, 6)),
        }
    )
)
def test_gradients_by_planes(numbers: dict[str, Any]) -> None:
    x, shape, attributes = made_for_windows(numbers)
    dy = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    w = (shape[1], x.shape[1], *numbers["taps"])
    about = {**attributes, "shape": w}
    asked = ask("convolution_backward_weights", [dy.shape, x.shape], w, about, numbers["threads"])
    if numbers["biased"]:
        asked = replace(asked, outputs=(*asked.outputs, TensorSpec(w[:1], "float32")))
    (candidate,) = planes.backward_weights(asked)
    sources = [layout.pack(a) for layout, a in zip(candidate.input_layouts, (dy, x), strict=True)]
    targets = [np.full(s.shape, np.nan, np.float32) for s in asked.outputs if s is not None]
    room = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, targets, room[start : start + candidate.workspace])
    work()
    work()
    assert (room[start + candidate.workspace :] == 255).all()
    seen = windows_of(rounded(x), shape[2:], w[2:], attributes)
    expected, size = (
        np.einsum("noyx,ncyxij->ocij", *each, optimize=True)
        for each in ((rounded(dy), seen), (np.abs(rounded(dy)), np.abs(seen)))
    )
    assert np.all(np.abs(targets[0] - expected) <= 1e-6 * size + 1e-9)
    for db in targets[1:]:
        np.testing.assert_allclose(db, rounded(dy).sum((0, 2, 3)), atol=1e-6 * dy.size)


@pytest.mark.parametrize("about", [{"dilation": (2, 2)}, {"groups": 2}, {"few": True}, {"many": True}])
def test_gradients_by_planes_are_of_few_channels_for_a_vector_of_outputs(about: dict[str, Any]) -> None:
    channels, outputs = (8 if about.pop("many", 0) else 2), (8 if about.pop("few", 0) else 32)
    w = (outputs, channels // about.get("groups", 1), 3, 3)
    reach = 2 * about.get("dilation", (1, 1))[0]
    x, y = (2, channels, 8 + reach, 8 + reach), (2, outputs, 8, 8)
    asked = ask("convolution_backward_weights", [y, x], w, {**about, "shape": w}, 1)
    assert not list(planes.backward_weights(asked))


@pytest.mark.skipif(os.name != "posix", reason="pages are protected by mprotect")
@pytest.mark.parametrize(("taps", "outputs"), [(1, 32), (3, 1), (3, 10), (3, 32), (3, 50)])
def test_nothing_behind_images_is_read(taps: int, outputs: int) -> None:
    channels, result = (32 if taps == 1 else 3), (5, 2)
    x = np.ones((1, channels, *(r + taps - 1 for r in result)), np.float32)
    dy = np.ones((1, outputs, *result), np.float32)
    w = np.ones((outputs, channels, taps, taps), np.float32)
    about = {"pad": (0, 0)}
    forward = ask("convolution", [x.shape, w.shape], dy.shape, about, 1)
    backward = ask("convolution_backward_weights", [dy.shape, x.shape], w.shape, about, 1)
    made = [(each, [x, w]) for each in windows.forward(forward)]
    made += [
        (each, [dy, x])
        for offer in (pixel_products.backward_weights, planes.backward_weights)
        for each in offer(backward)
    ]
    assert made
    for candidate, operands in made:
        sources = [
            at_the_end_of_memory(layout.pack(a))
            for layout, a in zip(candidate.input_layouts, operands, strict=True)
        ]
        shape = dy.shape if operands[0] is x else w.shape
        layout = candidate.output_layouts[0]
        target = np.zeros(layout.physical(shape), np.uint16 if layout.stored else np.float32)
        room = np.zeros(candidate.workspace + 64, np.uint8)
        start = -room.ctypes.data % 64
        candidate.bind(sources, [target], room[start : start + candidate.workspace])()
        terms = channels * taps * taps if operands[0] is x else result[0] * result[1]
        assert np.all(layout.unpack(target, shape) == terms)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected by mprotect")
@pytest.mark.parametrize("outputs", [10, 32, 50])
@pytest.mark.parametrize("taps", [3, 5])
def test_nothing_behind_images_is_read_by_tiles(outputs: int, taps: int) -> None:
    channels, result = 10, (4, 8)
    x = np.ones((1, channels, *(r + taps - 1 for r in result)), np.float32)
    dy = np.ones((1, outputs, *result), np.float32)
    w = np.ones((outputs, channels, taps, taps), np.float32)
    about = {"pad": (0, 0)}
    asked = [
        (winograd.forward, ask("convolution", [x.shape, w.shape], dy.shape, about, 1), [x, w]),
        (
            winograd.backward_data,
            ask("convolution_backward_data", [dy.shape, w.shape], x.shape, about, 1),
            [dy, w],
        ),
        (
            winograd.backward_weights,
            ask("convolution_backward_weights", [dy.shape, x.shape], w.shape, about, 1),
            [dy, x],
        ),
    ]
    for offer, request, operands in asked:
        (candidate,) = offer(request)
        sources = [
            at_the_end_of_memory(layout.pack(a))
            for layout, a in zip(candidate.input_layouts, operands, strict=True)
        ]
        shape, layout = spec(request.outputs[0]).shape, candidate.output_layouts[0]
        written = np.uint16 if layout.stored else np.float32
        target = at_the_end_of_memory(np.zeros(layout.physical(shape), written))
        room = np.zeros(candidate.workspace + 64, np.uint8)
        start = -room.ctypes.data % 64
        candidate.bind(sources, [target], room[start : start + candidate.workspace])()
        assert np.all(layout.unpack(target, shape) > 0)


def test_many_channels_are_left_to_others() -> None:
    x, w, y = (2, 64, 8, 8), (8, 64, 3, 3), (2, 8, 6, 6)
    assert not list(windows.forward(ask("convolution", [x, w], y, {}, 1)))
