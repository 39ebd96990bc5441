"""Kernels of pairs of bfloat16 compared with NumPy's products of the rounded numbers in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pair_problems import ask, compute, near, rounded

from demitasse import Layout, TensorSpec
from demitasse_cpu.kernels import (
    candidates,
    pixel_products,
    spread_products,
    wide_weights,
    winograd_integers,
    winograd_kept,
)
from demitasse_cpu.onednn import inner_product
from demitasse_cpu.onednn.inner_product import has_pairs


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_pairs() -> None:
    if not has_pairs(ask("inner_product", [(8, 32), (32, 32)], (8, 32), {}, 1)):
        pytest.skip("this processor has no AVX512-BF16, or a matrix unit that is quicker; or no oneDNN")


@pytest.fixture(scope="module", autouse=True)
def however_few_weights() -> Iterator[None]:
    """Round weights on the way however few they are, fewer than those for which that is offered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_weights, "_FEWEST_WEIGHTS", 1)
        yield


@settings(max_examples=examples(25))
@given(
    samples=st.sampled_from([8, 16, 64]),
    blocks=st.integers(1, 40),
    outputs=st.sampled_from([32, 50, 64, 97, 160, 500]),
    threads=st.integers(1, 3),
    bias=st.booleans(),
)
def test_inner_products_of_rounded_weights(
    samples: int, blocks: int, outputs: int, threads: int, bias: bool
) -> None:
    inputs, random = 16 * blocks, np.random.default_rng(blocks)
    x, w, b, dy = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((samples, inputs), (outputs, inputs), (outputs,), (samples, outputs))
    )
    operands = [x, w, b] if bias else [x, w]
    shapes = [array.shape for array in operands]
    request = ask("inner_product", shapes, dy.shape, {}, threads)
    candidates = list(wide_weights.forward(request))
    assume(candidates)
    expected = rounded(x) @ rounded(w).T + (b if bias else 0)
    size = np.abs(rounded(x)) @ np.abs(rounded(w)).T
    near(compute(candidates[0], request, operands), expected, size)

    layout = candidates[0].input_layouts[1]
    attributes = {"shape": x.shape}
    back = ask(
        "inner_product_backward_data",
        [dy.shape, w.shape],
        x.shape,
        attributes,
        threads,
        layouts=[Layout("plain"), layout],
    )
    offered = list(wide_weights.backward_data(back))
    assert len(offered) == (outputs % 2 == 0)
    for candidate in offered:
        size = np.abs(rounded(dy)) @ np.abs(rounded(w))
        near(compute(candidate, back, [dy, w]), rounded(dy) @ rounded(w), size)


def test_none_where_numba_compiles_for_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(8, 48), (64, 48)]
    request = ask("inner_product", shapes, (8, 64), {}, 2)
    assert list(wide_weights.forward(request))
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx2")
    assert not list(wide_weights.forward(request))


@pytest.mark.parametrize(("llvmlite", "offered"), [("0.44.0", False), ("0.45.1rc1", True)])
def test_none_where_llvm_has_another_idea_of_pairs(
    monkeypatch: pytest.MonkeyPatch, llvmlite: str, offered: bool
) -> None:
    monkeypatch.setattr(inner_product, "version", lambda name: llvmlite)
    inner_product._takes_bfloat.cache_clear()
    try:
        request = ask("inner_product", [(8, 48), (64, 48)], (8, 64), {}, 2)
        assert bool(list(wide_weights.forward(request))) == offered
    finally:
        inner_product._takes_bfloat.cache_clear()


def test_few_weights_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(64, 800), (500, 800)]
    request = ask("inner_product", shapes, (64, 500), {}, 2)
    for fewest, is_offered in ((400_000, True), (400_001, False)):
        monkeypatch.setattr(wide_weights, "_FEWEST_WEIGHTS", fewest)
        assert bool(list(wide_weights.forward(request))) == is_offered


def test_where_tiles_serve_nothing_is_multiplied_by_the_definition() -> None:
    for channels, is_served in ((20, True), (4, False)):
        x, w, y = (8, channels, 12, 12), (50, channels, 5, 5), (8, 50, 8, 8)
        back = ask("convolution_backward_data", [y, w], x, {"shape": x}, 2)
        names = {each.kernel for each in candidates(back)}
        assert any(name.startswith("Winograd") for name in names) == is_served
        assert (spread_products.KERNEL in names) != is_served


def test_some_shapes_are_served() -> None:
    for samples, inputs, outputs in ((8, 48, 64), (32, 9216, 4096), (64, 800, 500)):
        shapes = [(samples, inputs), (outputs, inputs)]
        assert list(wide_weights.forward(ask("inner_product", shapes, (samples, outputs), {}, 2)))


@pytest.mark.parametrize(
    ("samples", "inputs", "precision", "transpose"),
    [(7, 64, "bf16", False), (128, 64, "bf16", False), (8, 50, "bf16", False), (8, 64, "f32", False)],
)
def test_others_are_not(samples: int, inputs: int, precision: str, transpose: bool) -> None:
    shapes = [(samples, inputs), (64, inputs)]
    attributes = {"transpose": transpose}
    request = ask("inner_product", shapes, (samples, 64), attributes, 1, precision)
    assert not list(wide_weights.forward(request))


@settings(max_examples=examples(25))
@given(
    images=st.integers(1, 5),
    channels=st.sampled_from([1, 3, 10, 20, 50, 97]),
    outputs=st.sampled_from([2, 10, 20, 50]),
    rows=st.integers(1, 4),
    taps=st.tuples(st.integers(1, 5), st.integers(2, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    beyond=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    threads=st.integers(1, 3),
)
def test_products_are_added_where_windows_lie(
    images: int,
    channels: int,
    outputs: int,
    rows: int,
    taps: tuple[int, int],
    stride: tuple[int, int],
    beyond: tuple[int, int],
    threads: int,
) -> None:
    result = (rows, 8)
    extents = [
        (r - 1) * s + t + min(more, s - 1)
        for r, s, t, more in zip(result, stride, taps, beyond, strict=True)
    ]
    random = np.random.default_rng(channels)
    w = random.standard_normal((outputs, channels, *taps)).astype(np.float32)
    dy = random.standard_normal((images, outputs, *result)).astype(np.float32)
    shape = (images, channels, *extents)
    attributes = {"stride": stride, "shape": shape}
    request = ask("convolution_backward_data", [dy.shape, w.shape], shape, attributes, threads)
    (candidate,) = spread_products.backward_data(request)
    expected, size = np.zeros(shape), np.zeros(shape)
    dy64, w64 = rounded(dy), rounded(w)
    for i in range(taps[0]):
        for j in range(taps[1]):
            down = slice(i, i + (result[0] - 1) * stride[0] + 1, stride[0])
            across = slice(j, j + (result[1] - 1) * stride[1] + 1, stride[1])
            for total, a, b in ((expected, dy64, w64), (size, np.abs(dy64), np.abs(w64))):
                total[:, :, down, across] += np.einsum("noyx,oc->ncyx", a, b[:, :, i, j])
    near(compute(candidate, request, [dy, w]), expected, size)


@pytest.mark.parametrize(
    "attributes", [{"pad": (1, 1)}, {"dilation": (2, 2)}, {"groups": 2}, {"odd": True}]
)
def test_what_products_cannot_be_added_up_to_is_left_to_others(attributes: dict[str, Any]) -> None:
    outputs = 5 if attributes.pop("odd", False) else 4
    shape = (2, 4 // attributes.get("groups", 1), 3, 3)
    operands = [(2, outputs, 8, 8), (outputs, *shape[1:])]
    given = {**attributes, "shape": (2, 4, 10, 10)}
    request = ask("convolution_backward_data", operands, (2, 4, 10, 10), given, 1)
    assert not list(spread_products.backward_data(request))


@settings(max_examples=examples(25))
@given(
    images=st.integers(1, 4),
    channels=st.sampled_from([32, 96, 128]),
    outputs=st.sampled_from([32, 64, 160]),
    extents=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    threads=st.integers(1, 3),
)
def test_pixels_are_multiplied_two_by_two(
    images: int, channels: int, outputs: int, extents: tuple[int, int], threads: int
) -> None:
    random = np.random.default_rng(channels)
    x, dy = (
        random.standard_normal((images, n, *extents)).astype(np.float32) for n in (channels, outputs)
    )
    shape = (outputs, channels, 1, 1)
    asked = ask("convolution_backward_weights", [dy.shape, x.shape], shape, {"shape": shape}, threads)
    (candidate,) = pixel_products.backward_weights(asked)
    sources = [layout.pack(a) for layout, a in zip(candidate.input_layouts, (dy, x), strict=True)]
    dw, room = np.full(shape, np.nan, np.float32), np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, [dw], room[start : start + candidate.workspace])
    work()
    work()
    terms = rounded(dy), rounded(x)
    expected, size = (
        np.einsum("noyx,ncyx->oc", *each)[:, :, None, None]
        for each in (terms, [np.abs(term) for term in terms])
    )
    assert np.all(np.abs(dw - expected) <= 1e-6 * size)


def test_pixels_that_are_not_multiplied_so_are_left_to_others() -> None:
    x, dy = (2, 64, 8, 8), (2, 32, 8, 8)
    for w, attributes in (
        ((32, 64, 3, 3), {"pad": (1, 1)}),
        ((32, 32, 1, 1), {"groups": 2}),
        ((32, 64, 1, 1), {"stride": (2, 2)}),
    ):
        asked = ask("convolution_backward_weights", [dy, x], w, {"shape": w, **attributes}, 1)
        assert not list(pixel_products.backward_weights(asked))
    w = (32, 64, 1, 1)
    asked = ask("convolution_backward_weights", [dy, x], w, {"shape": w}, 1)
    biased = replace(asked, outputs=(*asked.outputs, TensorSpec((32,), "float32")))
    assert not list(pixel_products.backward_weights(biased))
    assert not list(pixel_products.backward_weights(replace(asked, precision="f32")))


@pytest.mark.parametrize(
    ("samples", "fixed", "kept"),
    [(8, True, {"bfloat16"}), (9, True, {"bfloat16"}), (9, False, {"", "bfloat16"}), (8, False, {""})],
)
def test_weights_are_copied_to_16_bits_once_or_where_they_cannot_be_rounded_on_the_way(
    samples: int, fixed: bool, kept: set[str]
) -> None:
    asked = ask("inner_product", [(samples, 320), (320, 320), (320,)], (samples, 320), {}, 2)
    offered = candidates(replace(asked, fixed=fixed))
    assert {candidate.input_layouts[1].stored for candidate in offered} == kept


@pytest.mark.parametrize("integers", [False, True])
def test_few_tiles_do_not_wait_for_many_weights(integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that become integers are kept transformed, for which fewer tiles are enough."""
    for module in (winograd_integers, winograd_kept):
        monkeypatch.setattr(module, "are_quick", lambda: integers)

    def kernels(image: int, channels: int, **more: Any) -> set[str]:
        x, w = (1, channels, image, image), (channels, channels, 3, 3)
        asked = ask("convolution", [x, w], x, {"pad": (1, 1)}, 2, **more)
        return {candidate.kernel.split()[0] for candidate in candidates(replace(asked, fixed=True))}

    both = {"oneDNN", "Winograd"}
    assert kernels(3, 512) == {"oneDNN"}
    assert kernels(7, 512) == kernels(14, 256) == (both if integers else {"oneDNN"})
    assert kernels(56, 256) == kernels(14, 64) == both
    assert kernels(14, 256, precision="f32") == both
