"""Winograd's three passes of 3 x 3 and 5 x 5 convolutions compared with their definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from winograd_problems import (
    BFLOAT16,
    INTEGERS,
    ROUNDING,
    Problem,
    all_passes,
    ask,
    check,
    compute,
    defined,
    needs_products_of_pairs,
    random_problem,
    stored,
)

from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import winograd, winograd_integers

pytestmark = pytest.mark.usefixtures("however_few_channels")


NOT_CHOSEN_HERE = [pytest.mark.slow] if winograd_integers.are_quick() else []
"""Each way takes a quarter of a minute to compile; the one that this processor never uses is slow."""


@pytest.fixture(
    params=[
        pytest.param("float32", marks=NOT_CHOSEN_HERE),
        pytest.param("integers", marks=needs_products_of_pairs),
    ]
)
def rounding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Compute products of images stored as bfloat16 in float32, then in integers; return the rounding
    error to expect."""
    monkeypatch.setattr(winograd_integers, "are_quick", lambda: request.param == "integers")
    return INTEGERS if request.param == "integers" else ROUNDING


@settings(max_examples=examples(60))
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


@settings(max_examples=examples(60))
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


@pytest.mark.parametrize("taps", [3, pytest.param(5, marks=pytest.mark.slow)])
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 4),
    channels=st.sampled_from([3, 10, 16, 20, 50, 97]),
    outputs=st.sampled_from([3, 10, 20, 32, 50, 97]),
    result=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.integers(1, 2),
)
def test_images_stored_as_bfloat16(rounding: float, taps: int, **numbers: Any) -> None:
    problem = stored(random_problem(4, taps=taps, **numbers))
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


@pytest.mark.parametrize("samples", [1, 8])
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
    """All products have one sign and are as large as possible, with as many terms as are summed: 128
    channels, or 96 tiles of one thread."""
    x, dy = np.ones((1, channels, *extents), np.float32), np.ones((1, 16, *extents), np.float32)
    w = np.ones((16, channels, taps, taps), np.float32)
    problem = x, w, np.zeros(16, np.float32), dy, {"pad": (taps // 2,) * 2, "groups": 1}
    check(all_passes(problem, 1, "bf16"), problem, "bf16", INTEGERS)


def transposed(request: Any) -> bool:
    """Whether the gradient to the data is the forward algorithm reversed."""
    (candidate,) = winograd.backward_data(request)
    return candidate.kernel.endswith("transposed")


@needs_products_of_pairs
@settings(max_examples=examples(40))
@given(
    taps=st.sampled_from([3, 5]),
    samples=st.integers(1, 12),
    channels=st.sampled_from([3, 10, 16, 20, 50, 97]),
    outputs=st.sampled_from([3, 10, 20, 32, 50, 97, 150]),
    result=st.sampled_from([(1, 1), (4, 8), (8, 8), (7, 3), (12, 4), (8, 12)]),
    pad=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    groups=st.integers(1, 2),
    threads=st.integers(1, 3),
)
def test_gradients_to_the_data_by_the_forward_pass_turned_round(threads: int, **numbers: Any) -> None:
    problem = stored(random_problem(4, **numbers))
    check(all_passes(problem, threads, precision="bf16"), problem, "bf16", INTEGERS)


@needs_products_of_pairs
@pytest.mark.parametrize(("taps", "extents"), [(5, (8, 8)), (5, (16, 24)), (3, (4, 4)), (3, (8, 8))])
def test_without_padding_the_forward_pass_has_fewer_tiles(taps: int, extents: tuple[int, int]) -> None:
    for pad in (0, taps // 2):
        x, w, _, dy, attributes = random_problem(1, 4, 16, 16, extents, (pad, pad), taps=taps)
        request = ask("convolution_backward_data", [dy, w], [x], attributes, 1, "bf16")
        assert transposed(request) == (pad == 0)


def activations(channels: int, taps: int, image: int = 28, pad: int | None = None) -> Problem:
    """Return activations as in a layer of a net, and gradients of which a ReLU has left half."""
    random = np.random.default_rng(4)
    pad = taps // 2 if pad is None else pad
    result = (2, 64, *(image + 2 * pad + 1 - taps,) * 2)
    x = np.maximum(random.standard_normal((2, channels, image, image)), 0)
    w = random.standard_normal((64, channels, taps, taps)) * np.sqrt(2 / (channels * taps**2))
    dy = random.standard_normal(result) * (random.random(result) < 0.5)
    x, w, dy = (array.astype(np.float32) for array in (x, w, dy))
    return stored((x, w, np.zeros(64, np.float32), dy, {"pad": (pad, pad), "groups": 1}))


def deviation(found: Any, right: Any) -> float:
    """Return the root mean square error, relative to the right result."""
    return float(np.sqrt(np.mean((found - right) ** 2) / np.mean(right**2)))


@needs_products_of_pairs
@pytest.mark.parametrize(
    ("channels", "taps", "most"),
    [(64, 3, (1.2e-3, 1e-3, 6e-4)), (512, 3, (1.2e-3, 1e-3, 6e-4)), (48, 5, (2e-3, 3e-3, 2e-3))],
)
def test_integers_round_about_as_bfloat16_does(
    channels: int, taps: int, most: tuple[float, ...]
) -> None:
    """Results and gradients of data are then rounded to bfloat16, which alone makes an error of
    1.7e-3."""
    problem = activations(channels, taps)
    passes = zip(all_passes(problem, precision="bf16"), defined(problem), (*most, 1e-5), strict=True)
    for is_image, (found, right, limit) in zip((True, True, False, False), passes, strict=True):
        kept = BFLOAT16.unpack(BFLOAT16.pack(right.astype(np.float32)), right.shape)
        of_storage = deviation(kept, right) if is_image else 0.0
        assert deviation(found, right) ** 2 - of_storage**2 < limit**2


@needs_products_of_pairs
@pytest.mark.parametrize(
    ("channels", "taps", "image", "most"), [(20, 5, 12, 3e-3), (48, 5, 20, 3e-3), (64, 3, 6, 1e-3)]
)
def test_the_forward_pass_turned_round_rounds_no_worse(
    channels: int, taps: int, image: int, most: float
) -> None:
    problem = activations(channels, taps, image, pad=0)
    x, w, _, dy, attributes = problem
    request = ask("convolution_backward_data", [dy, w], [x], {**attributes, "shape": x.shape}, 2, "bf16")
    assert transposed(request)
    right = defined(problem)[1]
    kept = BFLOAT16.unpack(BFLOAT16.pack(right.astype(np.float32)), right.shape)
    (found,) = compute(request, [dy, w])
    assert deviation(found, right) ** 2 - deviation(kept, right) ** 2 < most**2


@needs_products_of_pairs
@pytest.mark.parametrize(("times", "most"), [(10, 3e-3), (100, 1e-2)])
def test_what_a_small_channel_loses_beside_a_large_one(times: float, most: float) -> None:
    """This is in outputs that take nothing from the large channel: all channels of a tile share a scale.
    The gradients of weights have a scale for each channel."""
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
