"""Kernels of a processor's matrix unit compared with NumPy's products of the rounded numbers in
float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import assume, given, settings
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

from demitasse import Candidate, Layout, Request, TensorSpec
from demitasse_cpu.kernels import candidates, unit_gradient, unit_products, wide_weights
from demitasse_cpu.onednn.inner_product import has_matrix_unit

PLAIN = Layout("plain")
PAIRS = [
    PLAIN,
    Layout("pairs", (0, 2, 3, 1), ((1, 16), (0, 64), (1, 2))),
    Layout("pairs", (0, 2, 3, 1), ((0, 32), (1, 2))),
    Layout("blocks", (0, 3, 2, 1), ((0, 16),)),
]
WINDOWS = {
    "images": st.integers(1, 3),
    "channels": st.sampled_from([1, 3, 7, 8, 16, 20, 32, 64]),
    "outputs": st.sampled_from([8, 16, 20, 32, 50, 97]),
    "result": st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 7, 16, 33])),
    "taps": st.tuples(st.integers(1, 5), st.integers(2, 5)),
    "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "pad": st.tuples(st.integers(0, 4), st.integers(0, 4)),
    "beyond": st.tuples(st.integers(0, 2), st.integers(0, 2)),
    "threads": st.integers(1, 4),
    "biased": st.booleans(),
}


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_a_matrix_unit() -> None:
    if not has_matrix_unit(ask("inner_product", [(8, 32), (32, 32)], (8, 32), {}, 1)):
        pytest.skip("this processor has no matrix unit (AMX), or there is no oneDNN")


@pytest.fixture(scope="module", autouse=True)
def however_few_weights() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_weights, "_FEWEST_WEIGHTS", 1)
        yield


def gradient_of(
    y: tuple[int, ...],
    x: tuple[int, ...],
    w: tuple[int, ...],
    about: dict[str, Any],
    threads: int = 2,
    bias: bool = False,
    layout: Layout = PLAIN,
) -> Request:
    asked = ask("convolution_backward_weights", [y, x], w, {**about, "shape": w}, threads)
    biases = [TensorSpec(w[:1], "float32")] * bias
    return replace(asked, outputs=(TensorSpec(w, "float32", layout), *biases))


def computed(candidate: Candidate, request: Request, dy: Any, x: Any) -> list[Any]:
    """Return dw and db, computed in memory full of garbage. Whatever follows that memory must not
    change."""
    sources = [layout.pack(a) for layout, a in zip(candidate.input_layouts, (dy, x), strict=True)]
    both = zip(candidate.output_layouts, request.outputs, strict=True)
    targets = [np.full(layout.physical(s.shape), np.nan, np.float32) for layout, s in both if s]
    room = np.full(candidate.workspace + 128, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, targets, room[start : start + candidate.workspace])
    work()
    work()
    assert (room[start + candidate.workspace :] == 255).all()
    assert all(np.isfinite(target).all() for target in targets)
    both = zip(candidate.output_layouts, targets, request.outputs, strict=True)
    return [layout.unpack(target, s.shape) for layout, target, s in both if s]


def is_right(found: list[Any], dy: Any, x: Any, about: dict[str, Any]) -> None:
    w, groups = found[0].shape, about.get("groups", 1)
    seen = windows_of(rounded(x), dy.shape[2:], w[2:], about)
    parts = [np.array_split(array, groups, 1) for array in (rounded(dy), seen)]
    expected, size = (
        np.concatenate(
            [
                np.einsum("noyx,ncyxij->ocij", change(a), change(b), optimize=True)
                for a, b in zip(*parts, strict=True)
            ]
        )
        for change in (np.asarray, np.abs)
    )
    assert np.all(np.abs(found[0] - expected) <= 1e-6 * size + 1e-9)
    for db in found[1:]:
        np.testing.assert_allclose(db, rounded(dy).sum((0, 2, 3)), atol=1e-6 * dy.size)


@settings(max_examples=examples(60))
@given(
    numbers=st.fixed_dictionaries(
        {**WINDOWS, "dilation": st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 2)}
    ),
    layout=st.sampled_from(PAIRS),
    near_memory=st.sampled_from([1, 2**14, 2**20]),
    worth=st.sampled_from([0, unit_gradient._WORTH, 100]),
)
def test_gradients_of_weights(
    numbers: dict[str, Any], layout: Layout, near_memory: int, worth: float
) -> None:
    """Also as if the caches were small, so that there are many stretches and outputs are divided; by
    pixels and by windows' rows."""
    x, shape, about = made_for_windows(numbers)
    assume(x.shape[1] >= 8 or about["dilation"][1] == 1)
    dy = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    w = (shape[1], x.shape[1], *numbers["taps"])
    request = gradient_of(dy.shape, x.shape, w, about, numbers["threads"], numbers["biased"], layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_gradient, "_SUMS", near_memory)
        patch.setattr(unit_gradient, "_STRETCH", near_memory)
        patch.setattr(unit_gradient, "_LEAST", 64)
        patch.setattr(unit_gradient, "_WORTH", worth)
        (candidate,) = unit_gradient.backward_weights(request)
    is_right(computed(candidate, request, dy, x), dy, x, about)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize(
    ("x", "outputs", "taps", "about"),
    [
        ((4, 64, 14, 14), 64, 1, {}),
        ((2, 128, 14, 14), 64, 1, {"stride": (2, 2)}),
        ((2, 512, 7, 7), 64, 3, {"pad": (1, 1)}),
        ((3, 96, 13, 13), 64, 5, {"pad": (2, 2), "groups": 2}),
        ((2, 3, 57, 57), 96, 11, {"stride": (4, 4)}),
        ((3, 20, 12, 12), 50, 5, {}),
    ],
)
def test_gradients_of_layers_of_nets(
    x: tuple[int, ...], outputs: int, taps: int, about: dict[str, Any], layout: Layout, threads: int
) -> None:
    stride, pad = about.get("stride", (1, 1))[0], about.get("pad", (0, 0))[0]
    size = (x[2] + 2 * pad - taps) // stride + 1
    random = np.random.default_rng(taps)
    dy, images = (random.standard_normal(s).astype(np.float32) for s in ((x[0], outputs, size, size), x))
    w = (outputs, x[1] // about.get("groups", 1), taps, taps)
    request = gradient_of(dy.shape, x, w, about, threads, layout=layout)
    (candidate,) = unit_gradient.backward_weights(request)
    about = {"stride": (1, 1), "pad": (0, 0), **about}
    is_right(computed(candidate, request, dy, images), dy, images, about)


@pytest.mark.parametrize(
    ("channels", "taps", "size", "across", "windows"),
    [
        (20, 5, 8, 1, True),  # LeNet's conv2: 20 channels of 32 rows of tiles, or 100 numbers of 112
        (64, 3, 28, 1, False),
        (64, 3, 8, 1, True),  # four zeros after each row of pixels, none after a window's
        (20, 5, 8, 2, False),
        (3, 11, 8, 1, True),
    ],
)
def test_they_are_read_as_more_of_the_tiles_is_filled(
    channels: int, taps: int, size: int, across: int, windows: bool
) -> None:
    w, y = (50, channels, taps, taps), (2, 50, size, size)
    x = (2, channels, size + taps - 1, size + (taps - 1) * across)
    about = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, across)}
    reading = unit_gradient._reading(gradient_of(y, x, w, about), x, w, y)
    assert reading is not None
    assert reading.windows == windows


@settings(max_examples=examples(25))
@given(
    samples=st.sampled_from([8, 16, 24, 64]),
    blocks=st.integers(1, 40),
    outputs=st.sampled_from([32, 50, 64, 97, 160, 500]),
    threads=st.integers(1, 3),
    bias=st.booleans(),
    rectified=st.booleans(),
)
def test_inner_products(
    samples: int, blocks: int, outputs: int, threads: int, bias: bool, rectified: bool
) -> None:
    inputs, random = 32 * blocks, np.random.default_rng(blocks)
    x, w, b, dy = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((samples, inputs), (outputs, inputs), (outputs,), (samples, outputs))
    )
    operands = [x, w, b] if bias else [x, w]
    request = ask("inner_product", [array.shape for array in operands], dy.shape, {}, threads)
    if rectified:
        request = replace(request, operation=replace(request.operation, name="inner_product_relu"))
    offered = list(unit_products.forward(request))
    assume(offered)
    expected = rounded(x) @ rounded(w).T + (b if bias else 0)
    size = np.abs(rounded(x)) @ np.abs(rounded(w)).T
    near(
        compute(offered[0], request, operands), np.maximum(expected, 0) if rectified else expected, size
    )

    layouts, about = [PLAIN, offered[0].input_layouts[1]], {"shape": x.shape}
    shapes = [dy.shape, w.shape]
    back = ask("inner_product_backward_data", shapes, x.shape, about, threads, layouts=layouts)
    (candidate,) = unit_products.backward_data(back)
    size = np.abs(rounded(dy)) @ np.abs(rounded(w))
    near(compute(candidate, back, [dy, w]), rounded(dy) @ rounded(w), size)


def test_inner_products_of_nets_are_served() -> None:
    for samples, inputs, outputs in ((8, 25088, 4096), (32, 9216, 4096), (64, 800, 500)):
        shapes = [(samples, inputs), (outputs, inputs)]
        request = ask("inner_product", shapes, (samples, outputs), {}, 2)
        assert [each.kernel for each in candidates(request)] == [wide_weights.KERNEL]
        assert list(unit_products.forward(replace(request, fixed=True))) == []
    for samples, inputs in ((7, 64), (128, 64), (8, 48)):
        shapes = [(samples, inputs), (64, inputs)]
        assert not list(unit_products.forward(ask("inner_product", shapes, (samples, 64), {}, 2)))


def test_where_onednn_has_none_the_unit_serves_alone() -> None:
    """For the one pixel left over from pairs, oneDNN would read past the image."""
    request = gradient_of((1, 10, 1, 1), (1, 1, 1, 2), (10, 1, 1, 2), {"stride": (1, 2)})
    assert [each.kernel for each in candidates(request)] == [unit_gradient.KERNEL]
    plain = gradient_of((1, 16, 4, 4), (1, 16, 6, 6), (16, 16, 3, 3), {})
    names = [each.kernel for each in candidates(plain)]
    assert names[0] == unit_gradient.KERNEL and any(name.startswith("oneDNN") for name in names[1:])


def test_what_tiles_would_mostly_have_zeros_of_is_left_to_others() -> None:
    shapes = (2, 32, 8, 8), (2, 32, 8, 8)
    for outputs, channels, taps, groups, is_served in (
        (32, 32, 3, 1, True),
        (32, 2, 3, 1, True),
        (4, 32, 3, 1, False),
        (32, 4, 1, 1, False),
        (32, 4, 3, 8, False),
    ):
        y, x = (2, outputs, 8, 8), (2, channels * groups, 7 + taps, 7 + taps)
        request = gradient_of(y, x, (outputs, channels, taps, taps), {"groups": groups})
        assert bool(list(unit_gradient.backward_weights(request))) == is_served
    other = gradient_of(*shapes, (32, 32, 3, 3), {"pad": (1, 1)})
    assert not list(unit_gradient.backward_weights(replace(other, precision="f32")))


@pytest.mark.skipif(os.name != "posix", reason="pages are protected by mprotect")
@pytest.mark.parametrize(("channels", "taps"), [(20, 3), (32, 1), (3, 5), (1, 2)])
def test_nothing_behind_images_is_read(channels: int, taps: int) -> None:
    x = np.ones((2, channels, 4 + taps, 1 + taps), np.float32)
    dy = np.ones((2, 10, 5, 2), np.float32)
    request = gradient_of(dy.shape, x.shape, (10, channels, taps, taps), {})
    (candidate,) = unit_gradient.backward_weights(request)
    operands = zip(candidate.input_layouts, (dy, x), strict=True)
    sources = [at_the_end_of_memory(layout.pack(a)) for layout, a in operands]
    target = at_the_end_of_memory(np.zeros((10, channels, taps, taps), np.float32))
    room = np.zeros(candidate.workspace + 64, np.uint8)
    start = -room.ctypes.data % 64
    candidate.bind(sources, [target], room[start : start + candidate.workspace])()
    assert np.all(target == 20)


@pytest.mark.parametrize("name", ["weights", "results", "data"])
def test_tiles_are_left_as_they_were(name: str) -> None:
    """Other kernels on the same thread may assume the configuration of tiles that they set."""
    from demitasse_cpu.loops.compiled import numba
    from demitasse_cpu.loops.matrix_unit import configured, words

    @numba.njit
    def exchange(wanted: Any, before: Any) -> None:
        configured(wanted, before)

    x, w, dy = (
        np.ones((16, 64), np.float32),
        np.ones((64, 64), np.float32),
        np.ones((16, 64), np.float32),
    )
    request = ask("inner_product", [x.shape, w.shape], dy.shape, {}, 1)
    (forward,) = unit_products.forward(request)
    layouts = [PLAIN, forward.input_layouts[1]]
    back = ask(
        "inner_product_backward_data",
        [dy.shape, w.shape],
        x.shape,
        {"shape": x.shape},
        1,
        layouts=layouts,
    )
    images = gradient_of((1, 8, 4, 4), (1, 8, 4, 4), (8, 8, 1, 1), {}, 1)
    theirs, found = words(8)[:32], np.zeros(32, np.uint16)
    exchange(theirs, found)
    try:
        if name == "weights":
            (candidate,) = unit_gradient.backward_weights(images)
            computed(candidate, images, *[np.ones((1, 8, 4, 4), np.float32)] * 2)
        elif name == "results":
            compute(forward, request, [x, w])
        else:
            (candidate,) = unit_products.backward_data(back)
            compute(candidate, back, [dy, w])
    finally:
        exchange(np.zeros(32, np.uint16), found)
    assert np.array_equal(found, theirs)
