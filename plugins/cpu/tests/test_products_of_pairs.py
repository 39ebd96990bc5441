"""Kernels of pairs of bfloat16 against NumPy's products, in float64, of what was rounded."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from demitasse import Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import (
    candidates,
    pixel_products,
    planes,
    spread_products,
    wide_weights,
    windows,
    winograd,
    winograd_integers,
    winograd_kept,
)
from demitasse_cpu.kernels.requests import spec
from demitasse_cpu.onednn.inner_product import has_pairs

ROUNDING = 2.0**-8
BFLOAT16 = Layout("bf16", stored="bfloat16")


def ask(
    name: str,
    operands: Sequence[tuple[int, ...]],
    result: tuple[int, ...],
    attributes: dict[str, Any],
    threads: int,
    precision: str = "bf16",
    layouts: Sequence[Layout] = (),
) -> Request:
    """A request for float32 operands; the first lie in ``layouts``, the others plain."""
    plain = Layout("plain")
    specs = [
        TensorSpec(shape, "float32", layouts[i] if i < len(layouts) else plain)
        for i, shape in enumerate(operands)
    ]
    outputs = (TensorSpec(result, "float32"),)
    given = {**VOCABULARY[name].attributes, **attributes}
    return Request(
        VOCABULARY[name], tuple(specs), outputs, given, Place("test", threads=threads), precision
    )


@pytest.fixture(scope="module", autouse=True)
def a_processor_with_pairs() -> None:
    if not has_pairs(ask("inner_product", [(8, 32), (32, 32)], (8, 32), {}, 1)):
        pytest.skip("this processor has no AVX512-BF16, or a matrix unit that is quicker; or no oneDNN")


@pytest.fixture(scope="module", autouse=True)
def however_few_weights() -> Iterator[None]:
    """Weights are rounded on the way however few they are, for fewer than that is offered for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_weights, "_FEWEST_WEIGHTS", 1)
        yield


def rounded(array: Any) -> Any:
    """The nearest numbers of bfloat16, in float64."""
    return BFLOAT16.unpack(BFLOAT16.pack(array), array.shape).astype(np.float64)


def compute(candidate: Candidate, request: Request, operands: Sequence[Any]) -> Any:
    """What the kernel leaves in memory full of rubbish, which in float32 and bfloat16 is no number."""
    layouts = candidate.input_layouts
    sources = [layout.pack(x).copy() for layout, x in zip(layouts, operands, strict=True)]
    (layout,), (spec,) = candidate.output_layouts, request.outputs
    assert spec is not None
    target = np.full(layout.physical(spec.shape), 0xFFFF, np.uint16)
    room = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, [target], room[start : start + candidate.workspace])
    work()
    work()
    return layout.unpack(target, spec.shape)


def near(found: Any, expected: Any, terms: Any) -> None:
    """Within the rounding of the result, and of sums in float32 of ``terms``' size."""
    bound = ROUNDING * np.abs(expected) + 1e-5 * np.max(terms, initial=1.0)
    assert np.all(np.abs(found - expected) <= bound)


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=25, deadline=None)
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


def windows_of(x: Any, result: Sequence[int], taps: Sequence[int], about: dict[str, Any]) -> Any:
    """The windows of padded images: images, channels, rows, columns, taps down and across."""
    (top, left), (down, across) = about["pad"], about["stride"]
    more = [
        max(0, (n - 1) * s + t - extent - p)
        for n, s, t, extent, p in zip(
            result, (down, across), taps, x.shape[2:], (top, left), strict=True
        )
    ]
    padded = np.pad(x, ((0, 0), (0, 0), (top, more[0]), (left, more[1])))
    seen = np.lib.stride_tricks.sliding_window_view(padded, tuple(taps), (2, 3))
    return seen[:, :, ::down, ::across][:, :, : result[0], : result[1]]


def made_for_windows(numbers: dict[str, Any]) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """Images of numbers, the shape of the results and the attributes."""
    extents = [
        max(1, (r - 1) * s + t - 2 * p + min(more, s - 1))
        for r, s, t, p, more in zip(
            *(numbers[each] for each in ("result", "stride", "taps", "pad", "beyond")), strict=True
        )
    ]
    random = np.random.default_rng(numbers["channels"])
    x = random.standard_normal((numbers["images"], numbers["channels"], *extents)).astype(np.float32)
    shape = (numbers["images"], numbers["outputs"], *numbers["result"])
    return x, shape, {name: numbers[name] for name in ("stride", "pad")}


@settings(max_examples=40, deadline=None)
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
    """Five taps of one channel, or three of three, are an odd number."""
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


@settings(max_examples=60, deadline=None)
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


def at_the_end_of_memory(array: Any) -> Any:
    """A copy behind which nothing may be read: the next page is not there for this process."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    size = -(-array.nbytes // page) * page
    pages = mmap.mmap(-1, size + page)
    memory = np.frombuffer(pages, np.uint8)
    nothing = ctypes.c_void_p(memory.ctypes.data + size)
    assert libc.mprotect(nothing, ctypes.c_size_t(page), 0) == 0
    copy = memory[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.skipif(os.name != "posix", reason="pages are protected by mprotect")
@pytest.mark.parametrize("outputs", [1, 10, 32, 50])
@pytest.mark.parametrize("taps", [1, 3])
def test_nothing_behind_images_is_read(outputs: int, taps: int) -> None:
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
    assert made or outputs % 32
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


def test_fixed_weights_are_kept_in_16_bits() -> None:
    asked = ask("inner_product", [(8, 320), (320, 320), (320,)], (8, 320), {}, 2)
    stored = [
        {candidate.input_layouts[1].stored for candidate in candidates(replace(asked, fixed=fixed))}
        for fixed in (False, True)
    ]
    assert stored == [{"", "bfloat16"}, {"bfloat16"}]


@pytest.mark.parametrize("integers", [False, True])
def test_few_tiles_do_not_wait_for_many_weights(integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that become integers are kept transformed, so that fewer tiles are enough."""
    for module in (winograd_integers, winograd_kept):
        monkeypatch.setattr(module, "are_quick", lambda: integers)

    def kernels(image: int, channels: int, **more: Any) -> set[str]:
        x, w = (1, channels, image, image), (channels, channels, 3, 3)
        asked = ask("convolution", [x, w], x, {"pad": (1, 1)}, 2, **more)
        return {candidate.kernel.split()[0] for candidate in candidates(replace(asked, fixed=True))}

    both = {"oneDNN", "Winograd"}
    assert kernels(7, 512) == {"oneDNN"}
    assert kernels(14, 256) == (both if integers else {"oneDNN"})
    assert kernels(56, 256) == kernels(14, 64) == both
    assert kernels(14, 256, precision="f32") == both
