"""Winograd's three passes of 3 x 3 and 5 x 5 convolutions against their definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import candidates, winograd, winograd_integers, winograd_kept

Passes = tuple[Any, Any, Any, Any]
Problem = tuple[Any, Any, Any, Any, dict[str, Any]]

ROUNDING = 2.0**-24
GROWTH = {3: 12, 5: 72}
"""By how much a sum's rounding errors may grow in the transforms, by the taps in a line."""
INTEGERS = 2.0**-14
"""The rounding of numbers that become 16-bit integers, of the largest that share a scale."""

BFLOAT16 = Layout("bf16", stored="bfloat16")
needs_products_of_pairs = pytest.mark.skipif(
    not winograd_integers.are_quick(), reason="this processor has no AVX-512 VNNI"
)


@pytest.fixture(scope="module", autouse=True)
def however_few_channels() -> Iterator[None]:
    """The kernels compute with any number of channels; what they are offered for is tested below."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_FEWEST_CHANNELS", 1)
        yield


def ask(
    name: str,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: dict[str, Any],
    threads: int,
    precision: str = "f32",
    fixed: bool = False,
) -> Request:
    """A request in plain layouts, for the shapes of arrays; None where an operand is absent."""

    def described(array: Any) -> TensorSpec | None:
        return None if array is None else TensorSpec(array.shape, array.dtype.name)

    return Request(
        VOCABULARY[name],
        tuple(map(described, operands)),
        tuple(map(described, results)),
        {**VOCABULARY[name].attributes, **attributes},
        Place("test", threads=threads),
        precision,
        fixed,
    )


def is_kept(layout: Layout) -> bool:
    """Whether weights lie transformed, in raw bytes."""
    return layout.stored.startswith("V")


def packed(x: Any, layout: Layout, threads: int) -> Any:
    """What a plan has made of logical numbers, in memory full of rubbish."""
    if not is_kept(layout):
        return layout.pack(x)
    ends = (TensorSpec(x.shape, x.dtype.name),), (TensorSpec(x.shape, x.dtype.name, layout),)
    (candidate,) = candidates(
        Request(VOCABULARY["reorder"], *ends, {}, Place("test", threads=threads), "bf16", True)
    )
    assert candidate.input_layouts == (PLAIN,)
    assert candidate.output_layouts == (layout,)
    (spec,) = ends[1]
    sizes = spec.nbytes, candidate.workspace
    rooms = [np.full(size + 128, 255, np.uint8) for size in sizes]
    starts = [-room.ctypes.data % 64 for room in rooms]
    made, workspace = (
        room[start : start + size] for room, start, size in zip(rooms, starts, sizes, strict=True)
    )
    made = made.view(spec.array_type).reshape(spec.physical)
    candidate.bind([x], [made], workspace)()
    for room, start, size in zip(rooms, starts, sizes, strict=True):
        assert (room[start + size :] == 255).all()
    return made


def compute(request: Request, operands: Sequence[Any], **options: Any) -> list[Any]:
    """What the kernel leaves in memory full of rubbish when it is called twice."""
    factory: Callable[..., Any] = winograd.FACTORIES[request.operation.name]
    (candidate,) = factory(request, **options)
    layouts = candidate.input_layouts
    threads = request.place.threads
    given = [
        None if x is None else packed(x, layout, threads)
        for x, layout in zip(operands, layouts, strict=True)
    ]
    wanted = list(zip(request.outputs, candidate.output_layouts, strict=True))
    left = [
        None if s is None else layout.pack(np.full(s.shape, np.nan, s.dtype)) for s, layout in wanted
    ]
    memory = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -memory.ctypes.data % 64
    work = candidate.bind(given, left, memory[start : start + candidate.workspace])
    work()
    work()
    # The workspace is no larger than was asked for, and what lies behind it was not touched.
    assert (memory[start + candidate.workspace :] == 255).all()
    return [
        None if array is None or s is None else layout.unpack(array, s.shape)
        for array, (s, layout) in zip(left, wanted, strict=True)
    ]


def all_passes(problem: Problem, threads: int = 2, precision: str = "f32") -> list[Any]:
    x, w, b, dy, attributes = problem
    data, weights = {**attributes, "shape": x.shape}, {**attributes, "shape": w.shape}
    forward = ask("convolution", [x, w, b], [dy], attributes, threads, precision)
    to_data = ask("convolution_backward_data", [dy, w], [x], data, threads, precision)
    to_weights = ask("convolution_backward_weights", [dy, x], [w, b], weights, threads, precision)
    return [
        *compute(forward, [x, w, b]),
        *compute(to_data, [dy, w]),
        *compute(to_weights, [dy, x]),
    ]


def defined(problem: Problem) -> Passes:
    """y, dx, dw and db, tap by tap."""
    x, w, b, dy, attributes = problem
    x, w, b, dy = (array.astype(np.float64) for array in (x, w, b, dy))
    (top, left), groups = attributes["pad"], attributes["groups"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    inputs, outputs = w.shape[1], w.shape[0] // groups
    for g in range(groups):
        c, k = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        for i, j in np.ndindex(*w.shape[2:]):
            window = (slice(None), c, slice(i, i + dy.shape[2]), slice(j, j + dy.shape[3]))
            taps = w[k, :, i, j]
            y[:, k] += np.einsum("nchw,kc->nkhw", padded[window], taps, optimize=True)
            dw[k, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, k], padded[window], optimize=True)
            dx[window] += np.einsum("nkhw,kc->nchw", dy[:, k], taps, optimize=True)
    dx = dx[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return y + b[:, None, None], dx, dw, dy.sum((0, 2, 3))


def random_problem(
    seed: int,
    samples: int,
    channels: int,
    outputs: int,
    result: tuple[int, int],
    pad: tuple[int, int] = (1, 1),
    groups: int = 1,
    taps: int = 3,
) -> Problem:
    random = np.random.default_rng(seed)
    image = [max(1, extent + taps - 1 - 2 * p) for extent, p in zip(result, pad, strict=True)]
    result_shape = [extent + 2 * p + 1 - taps for extent, p in zip(image, pad, strict=True)]
    shapes = (
        (samples, channels * groups, *image),
        (outputs * groups, channels, taps, taps),
        (outputs * groups,),
        (samples, outputs * groups, *result_shape),
    )
    x, w, b, dy = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, b, dy, {"pad": pad, "groups": groups}


def stored(problem: Problem) -> Problem:
    """The problem with images as bfloat16 keeps them."""
    x, w, b, dy, attributes = problem
    x, dy = (BFLOAT16.unpack(BFLOAT16.pack(array), array.shape) for array in (x, dy))
    return x, w, b, dy, attributes


@pytest.fixture(params=["float32", pytest.param("integers", marks=needs_products_of_pairs)])
def rounding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Products of images stored as bfloat16, both in float32 and in integers: how those are rounded."""
    monkeypatch.setattr(winograd_integers, "are_quick", lambda: request.param == "integers")
    return INTEGERS if request.param == "integers" else ROUNDING


def check(
    found: Sequence[Any], problem: Problem, precision: str = "f32", rounding: float = ROUNDING
) -> None:
    """Errors stay below what sums of so many terms of random sign make, times the growth; results
    stored as bfloat16 were rounded to 8 bits after that."""
    _, w, _, dy, _ = problem
    result = dy.shape[0] * dy.shape[2] * dy.shape[3]
    taps = w.shape[2] * w.shape[3]
    terms = taps * w.shape[1], taps * w.shape[0], result, result
    steps = (2.0**-8, 2.0**-8, 0, 0) if precision == "bf16" else (0, 0, 0, 0)
    for ours, theirs, count, step in zip(found, defined(problem), terms, steps, strict=True):
        check_sums(ours, theirs, count, w.shape[2], rounding, step)


def check_sums(ours: Any, theirs: Any, terms: int, taps: int, rounding: float, step: float) -> None:
    """Numbers that are sums of so many ``terms``, in the end rounded to a ``step``."""
    scale = max(np.sqrt(terms), float(np.abs(theirs).max()))
    bound = GROWTH[taps] * rounding * scale * max(4, np.log2(terms))
    np.testing.assert_allclose(ours, theirs, rtol=step, atol=bound)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    samples=st.integers(1, 4),
    channels=st.sampled_from([1, 3, 10, 16, 20, 50, 64, 70]),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97]),
    result=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.integers(1, 3),
    threads=st.integers(1, 3),
)
def test_any_geometry(threads: int, **numbers: Any) -> None:
    problem = random_problem(**numbers)
    check(all_passes(problem, threads), problem)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    samples=st.integers(1, 4),
    channels=st.sampled_from([1, 3, 10, 16, 20, 50, 64, 97]),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97]),
    result=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    pad=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    groups=st.integers(1, 3),
    threads=st.integers(1, 3),
)
def test_any_geometry_with_five_taps(threads: int, **numbers: Any) -> None:
    problem = random_problem(**numbers, taps=5)
    check(all_passes(problem, threads), problem)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    taps=st.sampled_from([3, 5]),
    samples=st.integers(1, 4),
    channels=st.sampled_from([3, 10, 16, 20, 50, 97]),
    outputs=st.sampled_from([3, 10, 20, 32, 50, 97]),
    result=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.integers(1, 2),
)
def test_images_stored_as_bfloat16(rounding: float, **numbers: Any) -> None:
    problem = stored(random_problem(4, **numbers))
    check(all_passes(problem, precision="bf16"), problem, "bf16", rounding)


@pytest.mark.parametrize("taps", [3, 5])
def test_kernels_ask_for_images_as_the_precision_stores_them(taps: int) -> None:
    x, w, _, dy, attributes = random_problem(1, 1, 16, 16, (6, 6), taps=taps)
    for precision, kept in (("f32", ""), ("bf16", "bfloat16")):
        request = ask("convolution", [x, w], [dy], attributes, 1, precision)
        (candidate,) = winograd.forward(request)
        assert [layout.stored for layout in candidate.input_layouts] == [kept, ""]
        assert [layout.stored for layout in candidate.output_layouts] == [kept]


@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_numbers_that_are_none_stay_so_when_stored_as_bfloat16(none: float, rounding: float) -> None:
    problem = stored(random_problem(5, 2, 20, 40, (9, 11)))
    x, w, b, dy, attributes = problem
    x[0, 3, 5, 5] = none
    y, _, dw, _ = all_passes((x, w, b, dy, attributes), precision="bf16")[:4]
    assert not np.isfinite(y[0, :, 5, 5]).any()
    assert not np.isnan(y[1]).any()
    dw = all_passes((x, w, b, dy, attributes), precision="bf16")[2]
    assert not np.isfinite(dw[:, 3]).any()
    w[7, 3, 1, 1] = none
    x[0, 3, 5, 5] = 1
    y = all_passes((x, w, b, dy, attributes), precision="bf16")[0]
    assert not np.isfinite(y[:, 7]).any()
    assert np.isfinite(y[:, 8]).all()


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("channels", [(97, 97), (3, 64), (64, 3), (128, 192), (160, 48)])
def test_numbers_of_channels(channels: tuple[int, int], taps: int) -> None:
    problem = random_problem(1, 3, *channels, result=(13, 10), taps=taps)
    check(all_passes(problem), problem)


@pytest.mark.parametrize("samples", [1, 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_more_weights_than_a_cache_keeps(threads: int, samples: int) -> None:
    problem = random_problem(2, samples, 288, 352, result=(14, 13))
    check(all_passes(problem, threads), problem)


@pytest.mark.parametrize("samples", [1, 20])
@pytest.mark.parametrize("channels", [(288, 352), (352, 288), (97, 130), (257, 64)])
def test_many_channels_stored_as_bfloat16(
    channels: tuple[int, int], samples: int, rounding: float
) -> None:
    problem = stored(random_problem(2, samples, *channels, result=(14, 13)))
    check(all_passes(problem, precision="bf16"), problem, "bf16", rounding)


@needs_products_of_pairs
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("threads", [1, 3, 5])
@pytest.mark.parametrize(("channels", "outputs", "taps"), [(20, 50, 5), (130, 290, 5), (300, 288, 3)])
def test_integers_by_threads_and_groups(
    channels: int, outputs: int, taps: int, threads: int, groups: int
) -> None:
    problem = stored(random_problem(8, 2, channels, outputs, (11, 9), groups=groups, taps=taps))
    check(all_passes(problem, threads, "bf16"), problem, "bf16", INTEGERS)


@needs_products_of_pairs
@pytest.mark.parametrize(
    ("taps", "channels", "extents"),
    [(3, 128, (16, 16)), (3, 127, (16, 16)), (3, 384, (16, 16)), (5, 128, (16, 16)), (3, 16, (48, 32))],
)
def test_the_largest_sums_that_there_can_be_fit_their_integers(
    taps: int, channels: int, extents: tuple[int, int]
) -> None:
    """All products of one sign and as large as they get, with as many terms as are summed: 128 channels,
    or 96 tiles of one thread."""
    x, dy = np.ones((1, channels, *extents), np.float32), np.ones((1, 16, *extents), np.float32)
    w = np.ones((16, channels, taps, taps), np.float32)
    problem = x, w, np.zeros(16, np.float32), dy, {"pad": (taps // 2,) * 2, "groups": 1}
    check(all_passes(problem, 1, "bf16"), problem, "bf16", INTEGERS)


def activations(channels: int, taps: int) -> Problem:
    """What a layer of a net meets, and gradients of which a rectifier has left a half."""
    random = np.random.default_rng(4)
    x = np.maximum(random.standard_normal((2, channels, 28, 28)), 0)
    w = random.standard_normal((64, channels, taps, taps)) * np.sqrt(2 / (channels * taps**2))
    dy = random.standard_normal((2, 64, 28, 28)) * (random.random((2, 64, 28, 28)) < 0.5)
    x, w, dy = (array.astype(np.float32) for array in (x, w, dy))
    attributes = {"pad": (taps // 2, taps // 2), "groups": 1}
    return stored((x, w, np.zeros(64, np.float32), dy, attributes))


def deviation(found: Any, right: Any) -> float:
    """Root mean square, of what is right."""
    return float(np.sqrt(np.mean((found - right) ** 2) / np.mean(right**2)))


@needs_products_of_pairs
@pytest.mark.parametrize(
    ("channels", "taps", "most"),
    [(64, 3, (1.2e-3, 1e-3, 6e-4)), (512, 3, (1.2e-3, 1e-3, 6e-4)), (48, 5, (2e-3, 3e-3, 2e-3))],
)
def test_integers_round_about_as_bfloat16_does(
    channels: int, taps: int, most: tuple[float, ...]
) -> None:
    """Results and gradients of data are rounded to bfloat16 after that, which alone makes 1.7e-3."""
    problem = activations(channels, taps)
    passes = zip(all_passes(problem, precision="bf16"), defined(problem), (*most, 1e-5), strict=True)
    for is_image, (found, right, limit) in zip((True, True, False, False), passes, strict=True):
        kept = BFLOAT16.unpack(BFLOAT16.pack(right.astype(np.float32)), right.shape)
        of_storage = deviation(kept, right) if is_image else 0.0
        assert deviation(found, right) ** 2 - of_storage**2 < limit**2


@needs_products_of_pairs
@pytest.mark.parametrize(("times", "most"), [(10, 3e-3), (100, 1e-2)])
def test_what_a_small_channel_loses_beside_a_large_one(times: float, most: float) -> None:
    """In outputs that take nothing from the large one: all channels of a tile share a scale. The
    gradients of weights have one for each channel."""
    x, w, b, dy, attributes = activations(64, 3)
    x[:, 0] *= times
    w[:, 0] = 0
    problem = stored((x, w, b, dy, attributes))
    y, _, dw, _ = zip(all_passes(problem, precision="bf16"), defined(problem), strict=True)
    assert deviation(*y) < most
    assert deviation(dw[0][:, 1:], dw[1][:, 1:]) < 6e-4


@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.parametrize("extent", [1, 2, 3, 5, 6, 13, 14])
def test_images_in_one_tile_or_across_several(extent: int, pad: int) -> None:
    problem = random_problem(7, 12, 20, 33, result=(extent, 15 - extent), pad=(pad, 1))
    check(all_passes(problem), problem)


@pytest.mark.parametrize("channels", [(20, 24), (288, 320)])
def test_results_do_not_depend_on_the_number_of_threads(channels: tuple[int, int]) -> None:
    problem = random_problem(3, 3, *channels, result=(10, 14))
    alone, divided = all_passes(problem, 1), all_passes(problem, 2)
    assert np.array_equal(alone[0], divided[0])
    assert np.array_equal(alone[1], divided[1])


@pytest.mark.parametrize(("channels", "taps", "worst"), [(256, 3, 5e-6), (32, 5, 1e-5), (48, 5, 1e-5)])
def test_activations_and_weights_of_well_known_layers(channels: int, taps: int, worst: float) -> None:
    random = np.random.default_rng(4)
    x = np.maximum(random.standard_normal((1, channels, 28, 28)), 0).astype(np.float32)
    w = random.standard_normal((64, channels, taps, taps)) * np.sqrt(2 / (channels * taps**2))
    w = w.astype(np.float32)
    b, dy = np.zeros(64, np.float32), np.zeros((1, 64, 28, 28), np.float32)
    attributes = {"pad": (taps // 2, taps // 2), "groups": 1}
    y = defined((x, w, b, dy, attributes))[0]
    (found,) = compute(ask("convolution", [x, w, b], [dy], attributes, 2), [x, w, b])
    error = found - y
    assert np.abs(error).max() < worst * np.abs(y).max()
    assert np.sqrt(np.mean(error**2)) < worst / 2 * np.sqrt(np.mean(y**2))


def test_a_rectifier_keeps_what_is_above_zero_and_what_is_no_number() -> None:
    x, w, b, dy, attributes = random_problem(5, 2, 20, 40, (9, 11))
    request = ask("convolution", [x, w, b], [dy], attributes, 2)
    (y,), (rectified,) = compute(request, [x, w, b]), compute(request, [x, w, b], relu=True)
    assert (y < 0).any()
    assert np.array_equal(rectified, np.maximum(y, 0))
    x[0, 3, 5, 5] = np.nan
    (rectified,) = compute(request, [x, w, b], relu=True)
    assert np.isnan(rectified[0, :, 5, 5]).all()
    assert not np.isnan(rectified[1]).any()


def test_biases_and_their_gradients_may_be_absent() -> None:
    problem = random_problem(6, 2, 18, 36, (8, 8), groups=2)
    x, w, b, dy, attributes = problem
    y, _, dw, _ = defined((x, w, b * 0, dy, attributes))
    (found,) = compute(ask("convolution", [x, w, None], [dy], attributes, 2), [x, w, None])
    np.testing.assert_allclose(found, y, atol=1e-4)
    request = ask(
        "convolution_backward_weights", [dy, x], [w, None], {**attributes, "shape": w.shape}, 2
    )
    found, nothing = compute(request, [dy, x])
    assert nothing is None
    np.testing.assert_allclose(found, dw, atol=1e-4)


@pytest.mark.parametrize(("channels", "outputs"), [(7, 64), (64, 7)])
def test_few_channels_are_left_to_other_kernels(
    channels: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, _, dy, attributes = random_problem(1, 1, channels, outputs, (6, 6))
    monkeypatch.setattr(winograd, "_FEWEST_CHANNELS", 8)
    assert not list(winograd.forward(ask("convolution", [x, w], [dy], attributes, 1)))
    monkeypatch.setattr(winograd, "_FEWEST_CHANNELS", 7)
    assert list(winograd.forward(ask("convolution", [x, w], [dy], attributes, 1)))


@pytest.mark.parametrize(
    ("kernel", "attributes", "dtype"),
    [
        ((3, 3), {"stride": (2, 2)}, "float32"),
        ((3, 3), {"stride": (1, 2)}, "float32"),
        ((3, 3), {"dilation": (2, 1)}, "float32"),
        ((3, 3), {"pad": (3, 1)}, "float32"),
        ((5, 5), {"pad": (5, 2)}, "float32"),
        ((5, 3), {}, "float32"),
        ((7, 7), {}, "float32"),
        ((1, 3), {}, "float32"),
        ((3, 3), {}, "float64"),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(
    kernel: tuple[int, int], attributes: dict[str, Any], dtype: str
) -> None:
    x, w = np.zeros((1, 4, 12, 12), dtype), np.zeros((4, 4, *kernel), dtype)
    complete = {**VOCABULARY["convolution"].attributes, **attributes}
    shapes = VOCABULARY["convolution"].shapes({"x": x.shape, "w": w.shape, "b": None}, complete)
    dy = np.zeros(shapes[0], dtype)
    assert not list(winograd.forward(ask("convolution", [x, w], [dy], attributes, 1)))
    request = ask("convolution_backward_data", [dy, w], [x], {**attributes, "shape": x.shape}, 1)
    assert not list(winograd.backward_data(request))
    request = ask("convolution_backward_weights", [dy, x], [w], {**attributes, "shape": w.shape}, 1)
    assert not list(winograd.backward_weights(request))


# Weights that are fixed: transformed once, and kept so.


def kept_forward(
    problem: Problem, threads: int = 2, biased: bool = True, fixed: bool = True, **options: Any
) -> Any:
    """What a net that only runs forward computes; all else only if not ``fixed``."""
    x, w, b, dy, attributes = problem
    operands = [x, w, b if biased else None]
    request = ask("convolution", operands, [dy], attributes, threads, "bf16", fixed)
    (candidate,) = winograd.forward(request, **options)
    assert is_kept(candidate.input_layouts[1]) == fixed
    (y,) = compute(request, operands, **options)
    return y


def check_kept(problem: Problem, threads: int, biased: bool, relu: bool) -> None:
    x, w, b, dy, attributes = problem
    y = kept_forward(problem, threads, biased, relu=relu)
    expected = defined((x, w, b * biased, dy, attributes))[0]
    expected = np.maximum(expected, 0) if relu else expected
    terms = w.shape[1] * w.shape[2] * w.shape[3]
    check_sums(y, expected, terms, w.shape[2], INTEGERS, 2.0**-8)
    same = kept_forward(problem, threads, biased, fixed=False, relu=relu)
    assert y.tobytes() == same.tobytes(), "another kernel transforms the same weights itself"


@needs_products_of_pairs
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    taps=st.sampled_from([3, 5]),
    channels=st.sampled_from([1, 3, 10, 16, 50, 64, 97, 130]),
    outputs=st.sampled_from([1, 3, 10, 20, 32, 50, 97, 130]),
    images=st.one_of(
        st.tuples(st.integers(1, 3), st.tuples(st.integers(9, 20), st.integers(9, 20))),
        st.tuples(st.integers(8, 12), st.tuples(st.integers(1, 8), st.integers(1, 8))),
    ),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    threads=st.sampled_from([1, 2, 5]),
    biased=st.booleans(),
    relu=st.booleans(),
)
def test_any_geometry_with_kept_weights(
    images: tuple[int, tuple[int, int]], threads: int, biased: bool, relu: bool, **numbers: Any
) -> None:
    samples, result = images
    problem = stored(random_problem(samples=samples, result=result, **numbers))
    x, w, _, dy, attributes = problem
    request = ask("convolution", [x, w, None], [dy], attributes, threads, "bf16", True)
    assume(tiles(request) >= 8)
    check_kept(problem, threads, biased, relu)


def tiles(request: Request) -> int:
    x, w, _ = request.inputs
    (y,) = request.outputs
    assert x is not None and w is not None and y is not None
    return int(winograd.sizes_of(request, x, w.shape, y).tiles)


@needs_products_of_pairs
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("channels", [(97, 130), (130, 97), (257, 64), (64, 257), (288, 352)])
def test_kept_weights_of_many_channels(channels: tuple[int, int], taps: int, threads: int) -> None:
    """More than 128, whose products are summed as integers, than a panel, and than a cache keeps."""
    problem = stored(random_problem(2, 2, *channels, result=(14, 13), taps=taps))
    check_kept(problem, threads, biased=True, relu=threads == 2)


@needs_products_of_pairs
@pytest.mark.parametrize("channels", [(20, 24), (257, 130)])
def test_kept_weights_and_results_do_not_depend_on_the_number_of_threads(
    channels: tuple[int, int],
) -> None:
    problem = stored(random_problem(3, 3, *channels, result=(10, 14)))
    x, w, _, dy, attributes = problem
    request = ask("convolution", [x, w, None], [dy], attributes, 1, "bf16", True)
    (candidate,) = winograd.forward(request)
    layout = candidate.input_layouts[1]
    for threads in (2, 5):
        assert kept_forward(problem, 1).tobytes() == kept_forward(problem, threads).tobytes()
        assert packed(w, layout, 1).tobytes() == packed(w, layout, threads).tobytes()


@needs_products_of_pairs
@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_kept_weights_that_are_no_numbers_stay_so(none: float) -> None:
    x, w, b, dy, attributes = stored(random_problem(5, 2, 20, 40, (9, 11)))
    w[7, 3, 1, 1] = none
    y = kept_forward((x, w, b, dy, attributes))
    assert not np.isfinite(y[:, 7]).any()
    assert np.isfinite(np.delete(y, 7, axis=1)).all()


@needs_products_of_pairs
def test_weights_are_kept_only_where_they_are_fixed_many_tiles_use_them_and_integers_are_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forms(
        result: tuple[int, int], groups: int = 1, fixed: bool = True, precision: str = "bf16"
    ) -> list[bool]:
        x, w, b, dy, attributes = random_problem(1, 1, 16, 32, result, groups=groups)
        request = ask("convolution", [x, w, b], [dy], attributes, 2, precision, fixed)
        return [is_kept(candidate.input_layouts[1]) for candidate in winograd.forward(request)]

    eight, seven = (8, 16), (4, 28)
    assert forms(eight) == [True]
    assert forms(seven) == [False]
    assert forms(eight, groups=2) == [False]
    assert forms(eight, fixed=False) == [False]
    assert forms(eight, precision="f32") == [False]
    for module in (winograd_kept, winograd_integers):
        monkeypatch.setattr(module, "are_quick", lambda: False)
    assert forms(eight) == [False]


def weights(
    shape: tuple[int, ...], layout: Layout, dtype: str = "float32", given: Layout = PLAIN
) -> Request:
    """A change of weights to a layout."""
    specs = TensorSpec(shape, dtype, given), TensorSpec(shape, dtype, layout)
    about = {}, Place("test", threads=2), "bf16", True
    return Request(VOCABULARY["reorder"], specs[:1], specs[1:], *about)


@needs_products_of_pairs
def test_only_their_own_layout_is_made_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (32, 16, 3, 3)
    x, w, b, dy, attributes = random_problem(1, 1, 16, 32, (8, 16))
    assert w.shape == shape
    (candidate,) = winograd.forward(ask("convolution", [x, w, b], [dy], attributes, 2, "bf16", True))
    kept = candidate.input_layouts[1]
    assert list(winograd_kept.transformation(weights(shape, kept)))
    larger = Layout(kept.name, stored=f"V{int(kept.stored[1:]) + 1}")
    turned = Layout("HWIO", (2, 3, 1, 0))
    for request in (
        weights(shape, larger),
        weights(shape, Layout(kept.name, stored="V4")),
        weights(shape, Layout(kept.name, turned.order, stored=kept.stored)),
        weights(shape, BFLOAT16),
        weights(shape, PLAIN),
        weights(shape, kept, dtype="float64"),
        weights(shape[:3], kept),
        weights((32, 16, 5, 5), kept),
    ):
        assert not list(winograd_kept.transformation(request))
        if request.outputs[0].layout.stored.startswith("V"):
            assert not list(candidates(request))
    monkeypatch.setattr(winograd_kept, "are_quick", lambda: False)
    assert not list(winograd_kept.transformation(weights(shape, kept)))


@needs_products_of_pairs
@pytest.mark.parametrize(
    "given",
    [Layout("HWIO", (2, 3, 1, 0)), Layout("acdb64a2b", (0, 2, 3, 1), ((0, 64), (1, 2))), BFLOAT16],
)
def test_weights_that_lie_otherwise_are_kept_alike(given: Layout) -> None:
    """As another layer has them that shares the parameter."""
    x, w, b, dy, attributes = random_problem(1, 1, 18, 40, (8, 16))
    w = BFLOAT16.unpack(BFLOAT16.pack(w), w.shape)
    (forward,) = winograd.forward(ask("convolution", [x, w, b], [dy], attributes, 2, "bf16", True))
    kept, found = forward.input_layouts[1], []
    for layout in (PLAIN, given):
        (candidate,) = candidates(weights(w.shape, kept, given=layout))
        target = np.zeros(kept.physical(w.shape), kept.stored)
        room = np.full(candidate.workspace + 64, 255, np.uint8)
        start = -room.ctypes.data % 64
        candidate.bind([layout.pack(w)], [target], room[start : start + candidate.workspace])()
        found.append(target.tobytes())
    assert found[0] == found[1]
    assert any(found[0])
