"""Kernels that add to what they normalise or convolve, or mask what they add up, compared with the
definitions of their parts in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from combined import in_pairs
from drawn_examples import examples
from fused_words import composed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Candidate, Layout, Request
from demitasse_cpu.kernels import FACTORIES, candidates
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16, PLAIN_BF16
from demitasse_cpu.onednn import convolution as onednn
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library, problem

Ask = Callable[..., Request]

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
"""Relative to each number and to the largest, for statistics over up to 20,000 pixels."""
BFLOAT16 = 2.0**-8
"""The maximum change by rounding to eight bits."""
SHAPES = [(2, 3, 5, 7), (1, 1, 1, 1), (3, 10, 1, 1), (5, 10, 9, 11), (3, 97, 13, 13), (16, 16, 32, 32)]
NORMALISATIONS = ("batch_norm", "batch_norm_inference")
FORMS = ["alone", "w", "b", "w b", "w b relu", "relu"]

needs_onednn = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")


def memory(array: Any) -> Any:
    """Return a copy on a cache line, as a plan provides memory."""
    room = np.full(array.nbytes + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run(
    request: Request, candidate: Candidate, inputs: Sequence[Any], in_place: int | None = None
) -> list[Any]:
    """Return, in logical order, the inputs that the operation updates, and its outputs. The first result
    is in the memory of input number ``in_place``."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    lying = candidate.output_layouts or (PLAIN,) * len(request.outputs)
    given = [
        None if x is None else memory(layout.pack(x)) for layout, x in zip(taken, inputs, strict=True)
    ]
    specs = [
        None if s is None else replace(s, layout=layout)
        for s, layout in zip(request.outputs, lying, strict=False)
    ]
    made = [None if s is None else memory(np.full(s.physical, 77, s.array_type)) for s in specs]
    if in_place is not None:
        assert candidate.in_place
        assert taken[in_place] == lying[0]
        made[0] = given[in_place]
    room = memory(np.full(candidate.workspace, 255, np.uint8)) if candidate.workspace else None
    candidate.bind(given, made, room)()
    updated = [x for x, operand in zip(given, request.operation.inputs, strict=False) if operand.updated]
    return updated + [
        None if s is None else s.layout.unpack(y, s.shape) for s, y in zip(specs, made, strict=True)
    ]


def only(request: Request) -> Candidate:
    (candidate,) = FACTORIES[request.operation.name](request)
    return candidate


def draw(shape: tuple[int, ...], dtype: str, count: int, mean: float = 0.0) -> list[Any]:
    random = np.random.default_rng(sum(shape))
    return [random.normal(mean, 2, shape).astype(dtype) for _ in range(count)]


def stored(x: Any) -> Any:
    """Return what is left of x in bfloat16."""
    return PLAIN_BF16.unpack(PLAIN_BF16.pack(x), x.shape)


def normalisation(shape: tuple[int, ...], dtype: str, form: str) -> list[Any]:
    """Return x, its statistics, w and b as far as the form names them, and what is to be added."""
    random = np.random.default_rng(1)
    x, other = draw(shape, dtype, 2, mean=3)
    mean, variance = random.uniform(1, 2, (2, shape[1])).astype(dtype)
    both = random.choice([-1.5, 0.5, 1.0], shape[1]), random.normal(size=shape[1])
    learned = [v.astype(dtype) if name in form else None for name, v in zip("wb", both, strict=True)]
    return [x, mean, variance, np.array([1.5], dtype), *learned, other]


def close(found: Any, expected: Any, limit: float, times: float = 1.0) -> None:
    """``times`` is the factor for the limit relative to the largest number."""
    size = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * size * times)


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "form"), in_pairs(SHAPES, [PLAIN, NHWC], sorted(TOLERANCE), FORMS)
)
def test_a_normalisation_and_a_sum(
    requested: Ask, shape: tuple[int, ...], layout: Layout, dtype: str, form: str
) -> None:
    inputs = normalisation(shape, dtype, form)
    layouts = [layout, *[PLAIN] * 5, layout]
    for word in NORMALISATIONS:
        attributes = {"epsilon": 0.3, "relu": "relu" in form}
        for name in (f"{word}_sum", f"{word}_sum_relu"):
            expected = composed(name, inputs, attributes)
            for threads in (1, 2, 3):
                request = requested(name, inputs, attributes, threads, (), layouts)
                candidate = only(request)
                assert candidate.input_layouts[0] == candidate.input_layouts[6] == layout
                assert candidate.output_layouts[0] == layout
                found = run(request, candidate, inputs)
                for ours, theirs in zip(found, expected, strict=True):
                    assert ours.dtype == dtype
                    close(ours, theirs, TOLERANCE[dtype])
                same = run(request, candidate, inputs, in_place=0)
                for ours, theirs in zip(same, found, strict=True):
                    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("word", NORMALISATIONS)
def test_statistics_that_nobody_reads_may_be_absent(requested: Ask, word: str) -> None:
    inputs, absent = normalisation((3, 10, 6, 5), "float32", "w b"), (1, 2)
    for layout in (PLAIN, NHWC):
        layouts = [layout, *[PLAIN] * 5, layout]
        whole = requested(f"{word}_sum_relu", inputs, {}, 2, (), layouts)
        some = requested(f"{word}_sum_relu", inputs, {}, 2, absent, layouts)
        (*kept, y), found = run(some, only(some), inputs), run(whole, only(whole), inputs)
        if word == "batch_norm":
            *kept, y, average, inverse = *kept, y
            assert average is None
            assert inverse is None
        for ours, theirs in zip((*kept, y), found, strict=False):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (5, 10, 9, 11), (3, 97, 13, 13)])
@pytest.mark.parametrize("word", NORMALISATIONS)
def test_a_normalisation_and_a_sum_stored_as_bfloat16(
    requested: Ask, word: str, shape: tuple[int, ...], form: str
) -> None:
    """Terms are added before they are rounded, once."""
    inputs = normalisation(shape, "float32", form)
    inputs[0], inputs[6] = stored(inputs[0]), stored(inputs[6])
    attributes = {"epsilon": 0.3, "relu": "relu" in form}
    for name in (f"{word}_sum", f"{word}_sum_relu"):
        expected = composed(name, inputs, attributes)
        at = len(expected) - (3 if word == "batch_norm" else 1)
        for threads in (1, 2, 3):
            layouts = [NHWC_BF16, *[PLAIN] * 5, NHWC_BF16]
            request = requested(name, inputs, attributes, threads, (), layouts, "bf16")
            candidate = only(request)
            assert candidate.input_layouts[0] == candidate.input_layouts[6] == NHWC_BF16
            for i, (ours, theirs) in enumerate(
                zip(run(request, candidate, inputs), expected, strict=True)
            ):
                if i == at:
                    error = TOLERANCE["float32"] * max(1.0, float(np.abs(theirs).max()))
                    np.testing.assert_allclose(ours, theirs, rtol=BFLOAT16, atol=error)
                else:
                    close(ours, theirs, TOLERANCE["float32"])


@pytest.mark.parametrize("layout", [PLAIN, NHWC], ids=lambda layout: layout.name)
@pytest.mark.parametrize("word", NORMALISATIONS)
def test_what_is_no_number_in_what_is_added_stays_where_it_is(
    requested: Ask, word: str, layout: Layout
) -> None:
    inputs = normalisation((4, 5, 6, 6), "float32", "w b")
    inputs[6][1, 2, 3, 4] = np.nan
    inputs[6][2, 2, 3, 4] = -np.inf
    request = requested(f"{word}_sum_relu", inputs, {}, 2, (), [layout, *[PLAIN] * 5, layout])
    y = run(request, only(request), inputs)[3 if word == "batch_norm" else 0]
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 2, 3, 4]]
    assert y[2, 2, 3, 4] == 0


def test_a_normalisation_takes_one_sum_only(requested: Ask) -> None:
    inputs = normalisation((2, 3, 4, 5), "float32", "w b")
    for word in NORMALISATIONS:
        request = requested(f"{word}_sum", [*inputs, inputs[0]], {}, 2, ())
        assert not list(candidates(request))


# Gradients from several sources, behind a ReLU.

COEFFICIENTS = (1.0, -2.0, 0.5, 3.0, -1.0, 0.25)


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", range(1, 7))
def test_a_sum_behind_a_rectifier(requested: Ask, count: int, weighted: bool, precision: str) -> None:
    dtype = "float64" if precision == "float64" else "float32"
    halve = stored if precision == "bf16" else np.asarray
    step = 2.0 ** (-53 if precision == "float64" else -24)
    for shape in ((2, 3, 5, 7), (3, 97, 13, 13), (4, 10, 64, 64)):
        terms = [halve(x) for x in draw(shape, dtype, count)]
        r = halve(np.maximum(draw(shape, dtype, count + 1)[count], 0))
        assert (r == 0).any() and (r > 0).any()
        factors = COEFFICIENTS[:count] if weighted else ()
        (expected,) = composed("sum_relu_backward", [*terms, r], {"coefficients": factors})
        # A product and an addition are rounded for each term and, in bfloat16, also what is stored in
        # between.
        worst = count * (2 * step + BFLOAT16 * (precision == "bf16"))
        size = sum(abs(c * x) for c, x in zip(factors or [1.0] * count, terms, strict=True))
        for layout in (PLAIN, NHWC):
            lying = replace(layout, stored="bfloat16") if precision == "bf16" else layout
            about = (), [lying] * (count + 1), "bf16" if precision == "bf16" else "f32"
            for threads in (1, 2, 3):
                name, attributes = "sum_relu_backward", {"coefficients": factors}
                request = requested(name, [*terms, r], attributes, threads, *about)
                candidate = only(request)
                assert set(candidate.input_layouts) == {*candidate.output_layouts} == {lying}
                (y,) = run(request, candidate, [*terms, r])
                assert (np.abs(y - expected) <= worst * size).all()
                assert (y[r == 0] == 0).all()
                for place in range(threads - 1, count, 3):  # each with one of the numbers of threads
                    (same,) = run(request, candidate, [*terms, r], in_place=place)
                    assert (np.abs(same - expected) <= worst * size).all()


@pytest.mark.parametrize("count", range(1, 7))
def test_what_is_no_number_arrives_behind_a_rectifier(requested: Ask, count: int) -> None:
    terms = draw((2, 3, 8, 8), "float32", count)
    r = np.ones((2, 3, 8, 8), np.float32)
    r[1] = 0
    terms[-1][:, 1, 2, 3] = np.nan
    terms[-1][:, 2, 4, 5] = np.inf
    request = requested("sum_relu_backward", [*terms, r], {}, 2, ())
    (y,) = run(request, only(request), [*terms, r])
    (expected,) = composed("sum_relu_backward", [*terms, r], {})
    assert np.argwhere(np.isnan(y[0])).tolist() == [[1, 2, 3]]
    assert np.argwhere(np.isinf(y[0])).tolist() == [[2, 4, 5]]
    assert np.array_equal(np.isnan(y), np.isnan(expected))


def test_a_result_that_is_no_number_lets_nothing_pass(requested: Ask) -> None:
    """This is what relu_backward does: NaN is not above 0."""
    terms, r = draw((1, 2, 4, 4), "float32", 2), np.ones((1, 2, 4, 4), np.float32)
    r[0, 1, 2, 3] = np.nan
    request = requested("sum_relu_backward", [*terms, r], {}, 1, ())
    (y,) = run(request, only(request), [*terms, r])
    assert np.argwhere(y == 0).tolist() == [[0, 1, 2, 3]]


# Convolutions of one tap, and what is added to them.


def convolution(
    x: tuple[int, ...], outputs: int, stride: int = 1, seed: int = 0, biased: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Return inputs, followed by what is to be added, and attributes."""
    random = np.random.default_rng(seed)
    result = (x[0], outputs, *(-(-extent // stride) for extent in x[2:]))
    shapes = x, (outputs, x[1], 1, 1), (outputs,), result
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays[2:3] = arrays[2:3] if biased else [None]
    return arrays, {"stride": (stride, stride)}


def check_convolution(
    requested: Ask,
    inputs: Sequence[Any],
    attributes: dict[str, Any],
    precision: str = "f32",
    threads: int = 2,
) -> Candidate:
    """Products of float32 are summed in float32. In bfloat16, the weights are also rounded, and the
    results twice if the sum is taken afterwards."""
    if precision == "bf16":
        inputs = [x if x is None or x.ndim != 4 else stored(x) for x in inputs]
    lying = NHWC_BF16 if precision == "bf16" else NHWC
    layouts = [lying, PLAIN, PLAIN, lying]
    x, w, b, other = inputs
    (apart,) = composed("convolution", [x, w, b], attributes)
    (size,) = composed("convolution", [abs(x), abs(w), None if b is None else abs(b)], attributes)
    for name in ("convolution_sum", "convolution_sum_relu"):
        request = requested(name, inputs, attributes, threads, (), layouts, precision)
        (candidate,) = candidates(request)
        assert candidate.input_layouts[0] == candidate.input_layouts[3] == lying
        assert candidate.output_layouts == (lying,)
        (found,) = run(request, candidate, inputs)
        (expected,) = composed(name, inputs, attributes)
        bound = 2.0**-24 * (w.shape[1] + 2) * (size + abs(other))
        if precision == "bf16":
            bound += BFLOAT16 * (abs(expected) + abs(apart) * ("loop" in candidate.kernel))
            bound *= 1 + 2.0**-7  # the error of rounding the rounded sum
        assert (np.abs(found - expected) <= bound).all()
        assert name == "convolution_sum" or (found >= 0).all()
    return candidate


GEOMETRIES = st.fixed_dictionaries(
    {
        "x": st.tuples(
            st.integers(1, 5),
            st.sampled_from([3, 10, 16, 64, 97]),
            st.integers(2, 11),
            st.integers(2, 11),
        ),
        "outputs": st.sampled_from([3, 10, 32, 97, 130]),
        "stride": st.sampled_from([1, 1, 2]),
        "seed": st.integers(0, 99),
        "biased": st.booleans(),
    }
)


def precisions() -> list[Any]:
    none = library() is None or not bfloat16_kernel(library())
    reason = "oneDNN has no kernels for bfloat16 on this processor"
    return ["f32", pytest.param("bf16", marks=pytest.mark.skipif(none, reason=reason))]


@needs_onednn
@pytest.mark.parametrize("precision", precisions())
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(numbers=GEOMETRIES, threads=st.integers(1, 3))
def test_a_convolution_and_a_sum(
    requested: Ask, precision: str, numbers: dict[str, Any], threads: int
) -> None:
    check_convolution(requested, *convolution(**numbers), precision, threads)


@needs_onednn
@pytest.mark.parametrize("precision", precisions())
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(numbers=GEOMETRIES, threads=st.integers(1, 3), near=st.sampled_from([1, 1000, 20_000, 100_000]))
def test_a_convolution_and_a_sum_a_few_images_at_a_time(
    requested: Ask, precision: str, numbers: dict[str, Any], threads: int, near: int
) -> None:
    """The same path as for large results, but with small ones."""
    inputs, attributes = convolution(**numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "_NEAR_BYTES", near)
        candidate = check_convolution(requested, inputs, attributes, precision, threads)
    images = len(inputs[3])
    size = inputs[3].nbytes // images // (2 if precision == "bf16" else 1)
    assert ("loop" in candidate.kernel) == (images > 1 and images * size > near)


@needs_onednn
@pytest.mark.parametrize("precision", precisions())
@pytest.mark.parametrize(
    ("images", "plane", "stride", "in_turn", "biased"),
    [
        (1, 28, 1, False, True),
        (8, 28, 1, False, False),
        (16, 56, 1, True, True),
        (13, 56, 1, True, False),
        (13, 56, 2, False, True),
    ],
)
def test_results_below_and_above_what_is_in_the_caches(
    requested: Ask, images: int, plane: int, stride: int, in_turn: bool, biased: bool, precision: str
) -> None:
    """2 MiB, also for a prime number of images, which are taken one by one."""
    inputs, attributes = convolution((images, 20, plane, plane), 50, stride, biased=biased)
    assert (inputs[3].nbytes // (2 if precision == "bf16" else 1) > 2**21) == in_turn
    candidate = check_convolution(requested, inputs, attributes, precision)
    assert ("loop" in candidate.kernel) == in_turn


@needs_onednn
def test_one_image_that_is_too_large_for_the_caches_is_added_to_at_once(requested: Ask) -> None:
    inputs, attributes = convolution((1, 10, 112, 112), 64)
    assert inputs[3].nbytes > 2**21
    assert "loop" not in check_convolution(requested, inputs, attributes).kernel


@needs_onednn
@pytest.mark.parametrize("near", [2**21, 1])
def test_what_is_no_number_in_an_addend_stays_where_it_is(
    requested: Ask, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "_NEAR_BYTES", near)
    inputs, attributes = convolution((4, 10, 6, 6), 20)
    inputs[3][1, 2, 3, 4] = np.nan
    request = requested("convolution_sum", inputs, attributes, 2, (), [NHWC, PLAIN, PLAIN, NHWC])
    (candidate,) = candidates(request)
    (y,) = run(request, candidate, inputs)
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 2, 3, 4]]


@needs_onednn
@pytest.mark.parametrize("name", ["convolution_sum", "convolution_sum_relu"])
def test_other_convolutions_and_sums_are_computed_apart(requested: Ask, name: str) -> None:
    (x, w, b, other), attributes = convolution((2, 16, 8, 8), 32)
    usual = requested(name, [x, w, b, other], attributes, 2, ())
    assert list(candidates(usual))
    several = requested(name, [x, w, b, other, other], attributes, 2, ())
    taps = requested(name, [x, np.zeros((32, 16, 3, 3), np.float32), b, other], {"pad": (1, 1)}, 2, ())
    line = requested(name, [x, np.zeros((32, 16, 1, 3), np.float32), b, other], {"pad": (0, 1)}, 2, ())
    grouped = requested(name, [x, w[:, :8].copy(), b, other], {"groups": 2}, 2, ())
    wide = [array.astype(np.float64) for array in (x, w, b, other)]
    exact = requested(name, wide, attributes, 2, (), (), "f64")
    for request in (several, taps, line, grouped, exact):
        assert request.outputs[0] is not None
        assert request.outputs[0].shape == other.shape
        assert not list(candidates(request))
