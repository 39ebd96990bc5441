"""Kernels on images with channels innermost, in blocks, and stored as bfloat16, compared with the
reference plugin's kernels on the same logical numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import hook
from drawn_examples import examples
from fused_words import FUSED, composed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Layout, Request
from demitasse_cpu.kernels import FACTORIES
from demitasse_cpu.kernels.layouts import NHWC, NHWC_BF16, PLAIN_BF16

Lying = Callable[..., tuple[Request, list[Any]]]
Case = tuple[list[Any], dict[str, Any]]

BLOCKED = Layout("nChw8c", blocks=((1, 8),))
CHANNELS = (3, 10, 20, 50, 97)
COUNTERS = (np.array([7], np.uint64), np.array([2**33], np.uint64))
HALF_STEP = 2.0**-8
"""The error of bfloat16 relative to the operands' scale: two roundings."""


def rounded(x: Any) -> Any:
    """Return what is left of x in bfloat16."""
    return PLAIN_BF16.unpack(PLAIN_BF16.pack(x), x.shape) if x.dtype == np.float32 else x


def reference(request: Request, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of the reference kernel, computed and stored in float64. For a fused operation,
    run the reference's kernels one after the other."""
    name = request.operation.name
    if name in FUSED:
        updated = sum(operand.updated for operand in request.operation.inputs)
        return composed(name, inputs, request.attributes)[updated:]
    (candidate,) = hook("reference")(request)
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
    outputs = [
        None if s is None else np.zeros(s.shape, "float64" if s.dtype[0] == "f" else s.dtype)
        for s in request.outputs
    ]
    candidate.bind(wide, outputs, None)()
    return outputs


def cases(shape: tuple[int, ...], kind: str, halve: bool = False) -> dict[str, Case]:
    """Return every operation on activations of a shape."""
    random = np.random.default_rng(shape[1])

    def real(*extents: int) -> Any:
        x = random.standard_normal(extents or shape).astype(kind)
        return rounded(x) if halve else x

    images, channels, *plane = shape
    whole = (images, channels + 8, *plane)
    pieces = ((images, 5, *plane), shape, (images, 3, *plane))
    windows = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 0)}
    pooled = (images, channels, plane[0] // 2 + 1, plane[1] // 2)
    kept = [np.abs(real(extent)) + 1 for extent in (channels, channels, 1)]
    norm = {"size": 5, "alpha": 0.3, "k": 2.0}
    x, positions = real(), np.prod(plane)
    padded = np.pad(x.astype(float) ** 2, [(0, 0), (2, 2), (0, 0), (0, 0)])
    scale = 2 + 0.06 * sum(padded[:, i : i + channels] for i in range(5))
    y = (x * scale**-0.75).astype(kind)
    return {
        "relu": ([x], {"negative_slope": 0.25}),
        "relu_backward": ([real(), real()], {}),
        "dropout": ([x, *COUNTERS], {"ratio": 0.3, "seed": 5, "stream": 2}),
        "dropout_backward": ([x, random.integers(0, 2, shape).astype(np.uint8)], {}),
        "sum": ([x, real(), real()], {"coefficients": (1.0, -2.0, 0.5)}),
        "sum_relu": ([x, real(), real(), real()], {}),
        "sum_relu_backward": ([x, real(), np.maximum(real(), 0)], {"coefficients": (1.0, -2.0)}),
        "batch_norm_inference_sum_relu": ([x, *kept, real(channels), real(channels), real()], {}),
        "sum_backward": ([x], {"coefficients": (1.0, -0.5), "shapes": (shape, shape)}),
        "concat": ([real(*piece) for piece in pieces], {"axis": 1}),
        "concat_backward": ([real(*whole[:1], channels + 8, *plane)], {"axis": 1, "shapes": pieces}),
        "lrn_across_channels": ([x], norm),
        "lrn_across_channels_backward": ([real(), x, y, scale.astype(kind)], norm),
        "lrn_within_channel": ([x], {**norm, "size": 3}),
        "pooling_max": ([x], windows),
        "pooling_max_backward": (
            [real(*pooled), random.integers(0, positions, pooled).astype(np.int32)],
            {**windows, "shape": shape},
        ),
        "pooling_average": ([x], windows),
        "pooling_average_backward": ([real(*pooled)], {**windows, "shape": shape}),
        "softmax": ([x], {}),
        "softmax_backward": ([real(), real()], {}),
    }


def agree(request: Request, found: Sequence[Any], inputs: Sequence[Any], tolerance: float) -> None:
    largest = max(np.abs(x.astype(float)).max() for x in inputs if x.dtype.kind == "f")
    for spec, mine, wanted in zip(request.outputs, found, reference(request, inputs), strict=True):
        assert spec is not None
        if spec.dtype[0] == "f":
            np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance * largest)
        else:
            assert np.array_equal(mine, wanted)


def real_windows(inputs: Sequence[Any], attributes: dict[str, Any], name: str) -> None:
    """Set places of maxima that are in their windows, as a forward pass leaves them."""
    if name == "pooling_max_backward":
        index, width = inputs[1], attributes["shape"][3]
        for i, j in np.ndindex(index.shape[2:]):
            row = np.clip(2 * i - 1 + index[:, :, i, j] % 3, 0, attributes["shape"][2] - 1)
            column = np.clip(2 * j + index[:, :, i, j] // 3 % 3, 0, width - 1)
            index[:, :, i, j] = row * width + column


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("layout", [PLAIN, NHWC, BLOCKED], ids=lambda layout: layout.name)
@pytest.mark.parametrize("precision", ["f32", "bf16", pytest.param("f64", marks=pytest.mark.slow)])
def test_every_kernel_in_every_layout(
    lying: Lying, precision: str, layout: Layout, channels: int
) -> None:
    kind = "float64" if precision == "f64" else "float32"
    tolerance = {"f32": 3e-6, "bf16": HALF_STEP, "f64": 1e-13}[precision]
    for name, (inputs, attributes) in cases((2, channels, 7, 9), kind, precision == "bf16").items():
        real_windows(inputs, attributes, name)
        given = [layout if x.ndim == 4 else PLAIN for x in inputs]
        request, found = lying(name, inputs, attributes, given, precision)
        try:
            agree(request, found, inputs, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_results_do_not_depend_on_threads(lying: Lying, precision: str) -> None:
    for name, (inputs, attributes) in cases((6, 20, 31, 33), "float32").items():
        real_windows(inputs, attributes, name)
        given = [NHWC if x.ndim == 4 else PLAIN for x in inputs]
        runs = [lying(name, inputs, attributes, given, precision, threads)[1] for threads in (1, 2, 5)]
        for other in runs[1:]:
            for mine, theirs in zip(runs[0], other, strict=True):
                assert mine.tobytes() == theirs.tobytes(), name


@pytest.mark.parametrize(
    "name", ["relu", "pooling_max", "lrn_across_channels", "concat", "sum_relu", "sum_relu_backward"]
)
def test_kernels_stay_in_the_layout_and_precision_of_their_input(lying: Lying, name: str) -> None:
    inputs, attributes = cases((2, 10, 7, 9), "float32")[name]
    for precision, wanted in (("f32", NHWC), ("bf16", NHWC_BF16)):
        request, _ = lying(name, inputs, attributes, [NHWC] * len(inputs), precision)
        (candidate,) = FACTORIES[name](request)
        assert set(candidate.input_layouts) == {wanted}
        assert candidate.output_layouts[0] == wanted


@pytest.mark.parametrize("beta", [0.75, 0.5])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("channels", [1, 2, 4, 33])
def test_windows_over_channels_of_any_size(lying: Lying, channels: int, size: int, beta: float) -> None:
    x = np.random.default_rng(1).standard_normal((2, channels, 3, 5)).astype(np.float32)
    norm = {"size": size, "alpha": 0.5, "beta": beta}
    request, (y, scale) = lying("lrn_across_channels", [x], norm, [NHWC])
    agree(request, (y, scale), [x], 2e-6)
    request, (alone, nothing) = lying("lrn_across_channels", [x], norm, [NHWC], absent=[1])
    assert nothing is None
    assert np.array_equal(alone, y)
    wide = reference(lying("lrn_across_channels", [x], norm, [NHWC])[0], [x])
    backward = [x[:, ::-1].copy(), x, *(array.astype(np.float32) for array in wide)]
    request, found = lying("lrn_across_channels_backward", backward, norm, [NHWC] * 4)
    agree(request, found, backward, 4e-6)


@pytest.mark.parametrize("layout", [PLAIN, NHWC], ids=lambda layout: layout.name)
def test_large_and_small_scales_do_not_overflow(lying: Lying, layout: Layout) -> None:
    x = np.exp2(np.linspace(-55, 55, 4 * 9)).astype(np.float32).reshape(1, 4, 3, 3)
    given = {"size": 1, "alpha": 1.0, "k": 1e-30}
    request, (y, _) = lying("lrn_across_channels", [x], given, [layout])
    (wanted, _) = reference(request, [x])
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), channels=st.sampled_from((1, 3, 17, 32)), halve=st.booleans())
def test_windows_of_any_geometry(lying: Lying, data: Any, channels: int, halve: bool) -> None:
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    attributes = {
        "kernel": kernel,
        "stride": tuple(data.draw(st.integers(1, k)) for k in kernel),
        "pad": tuple(data.draw(st.integers(0, k - 1)) for k in kernel),
        "rounding": data.draw(st.sampled_from(["ceil", "floor"])),
    }
    shape = (2, channels, *(k + data.draw(st.integers(0, 9)) for k in kernel))
    random, precision = np.random.default_rng(3), "bf16" if halve else "f32"
    # Few distinct values, so that the first of equal ones must be found.
    x = random.integers(-2, 3, shape).astype(np.float32)
    x[random.random(shape) < 0.02] = -np.inf
    request, (y, argmax) = lying("pooling_max", [x], attributes, [NHWC], precision)
    wanted, places = reference(request, [x])
    assert np.array_equal(y, wanted)
    assert np.array_equal(argmax, places)
    _, (alone, _) = lying("pooling_max", [x], attributes, [NHWC], precision, absent=[1])
    assert np.array_equal(alone, y)
    tolerance = HALF_STEP if halve else 1e-6
    back, dy = {**attributes, "shape": shape}, random.integers(-9, 9, y.shape).astype(np.float32)
    for name, inputs in (
        ("pooling_max_backward", [dy, places]),
        ("pooling_average_backward", [dy]),
        ("pooling_average", [random.standard_normal(shape).astype(np.float32)]),
    ):
        inputs = list(map(rounded, inputs)) if halve else inputs
        given = attributes if name == "pooling_average" else back
        request, found = lying(name, inputs, given, [NHWC] * len(inputs), precision)
        agree(request, found, inputs, tolerance)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_nan_is_passed_on(lying: Lying, kernel: int, precision: str) -> None:
    x = np.zeros((1, 20, 9, 9), np.float32)
    x[0, 3, 3, 4] = x[0, 3, 4, 4] = np.nan
    given = {"kernel": (kernel,) * 2, "stride": (2, 2)}
    request, (y, argmax) = lying("pooling_max", [x], given, [NHWC], precision)
    wanted, places = reference(request, [x])
    assert np.isnan(wanted).any()
    assert np.array_equal(y, wanted, equal_nan=True)
    assert np.array_equal(argmax, places)


def test_a_large_plane_has_places_beyond_16_bits(lying: Lying) -> None:
    x = np.zeros((1, 2, 200, 200), np.float32)
    x[:, :, 199, 198] = 1
    given = {"kernel": (3, 3), "stride": (2, 2)}
    _, (_, argmax) = lying("pooling_max", [x], given, [NHWC])
    assert argmax[0, 1, 99, 98] == 199 * 200 + 198


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", [PLAIN, NHWC], ids=lambda layout: layout.name)
def test_joins_along_any_axis(lying: Lying, layout: Layout, axis: int) -> None:
    shapes = [tuple(e if d == axis else 3 for d in range(4)) for e in (2, 5, 1)]
    xs = [np.random.default_rng(e).standard_normal(shape) for e, shape in enumerate(shapes)]
    _, (y,) = lying("concat", xs, {"axis": axis}, [layout] * 3)
    assert np.array_equal(y, np.concatenate(xs, axis))
    given = {"axis": axis, "shapes": tuple(shapes)}
    _, (first, nothing, last) = lying("concat_backward", [y], given, [layout], absent=[1])
    assert nothing is None
    assert np.array_equal(first, xs[0])
    assert np.array_equal(last, xs[2])


def test_the_gradient_of_a_loss_is_stored_as_activations_are(lying: Lying) -> None:
    random = np.random.default_rng(2)
    probability, label = random.random((6, 10)).astype(np.float32), random.integers(0, 10, 6)
    inputs = [np.ones((), np.float32), probability, label]
    request, (dx,) = lying("softmax_loss_backward", inputs, {}, [PLAIN], "bf16")
    (candidate,) = FACTORIES["softmax_loss_backward"](request)
    assert candidate.output_layouts == (PLAIN_BF16,)
    assert candidate.input_layouts == ()
    np.testing.assert_allclose(dx, reference(request, inputs)[0], rtol=HALF_STEP)


LAYOUTS = (
    *(PLAIN, NHWC, PLAIN_BF16, NHWC_BF16, BLOCKED),
    Layout("CHWN", (1, 2, 3, 0)),
    Layout("nChw16c bf16", blocks=((1, 16),), stored="bfloat16"),
    Layout("OIhw16i8o4i", blocks=((1, 16), (0, 8), (1, 4))),
)


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(*(st.integers(1, e) for e in (3, 70, 8, 8))),
    source=st.sampled_from(LAYOUTS),
    target=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(["float32", "float64", "int32"]),
)
def test_reorders_between_any_two_layouts(
    shape: tuple[int, ...], source: Layout, target: Layout, kind: str
) -> None:
    if kind != "float32":
        source, target = replace(source, stored=""), replace(target, stored="")
    x = (np.random.default_rng(4).standard_normal(shape) * 100).astype(kind)
    moved(x, source, target)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 70), st.integers(1, 70)),
    stored=st.sampled_from([("", ""), ("", "bfloat16"), ("bfloat16", ""), ("bfloat16", "bfloat16")]),
    kind=st.sampled_from(["float32", "float64"]),
)
def test_images_of_few_channels_become_pixels(
    shape: tuple[int, ...], stored: tuple[str, str], kind: str
) -> None:
    before, after = stored if kind == "float32" else ("", "")
    x = (np.random.default_rng(8).standard_normal(shape) * 100).astype(kind)
    moved(x, replace(PLAIN, stored=before), replace(NHWC, stored=after))


@pytest.mark.parametrize("shape", [(), (5,), (40, 30), (3, 4, 5), (2, 3, 2, 3, 2)])
def test_reorders_of_any_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    turned = Layout("turned", tuple(reversed(range(len(shape)))))
    for source, target in ((PLAIN, turned), (turned, PLAIN_BF16), (turned, turned)):
        moved(x, source, target)


@pytest.mark.parametrize("shape", [(500, 800), (10, 97), (1, 3)])
def test_rows_side_by_side(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    rows = Layout("ab16b64a", blocks=((1, 16), (0, 64)))
    pairs = Layout("ab8b64a2b", blocks=((1, 8), (0, 64), (1, 2)))
    for target in (pairs, replace(pairs, stored="bfloat16")):
        moved(x, rows, target)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    taps=st.sampled_from([(1, 1), (3, 3), (1, 5)]),
    widths=st.tuples(*[st.sampled_from([16, 32, 48, 64])] * 2),
    stored=st.sampled_from(["", "bfloat16"]),
)
def test_weights_in_pairs(
    outputs: int, inputs: int, taps: tuple[int, int], widths: tuple[int, int], stored: str
) -> None:
    """These are the layouts of a convolution's kernels, forward and to the data, and of their gradients.
    The loops use vectors, and write zeros in blocks that are not full."""
    x = np.random.default_rng(9).standard_normal((16 * outputs, 16 * inputs, *taps)).astype(np.float32)
    forward = Layout("acdb64a2b", (0, 2, 3, 1), ((0, widths[0]), (1, 2)))
    to_data = Layout("bcda64b2a", (1, 2, 3, 0), ((1, widths[1]), (0, 2)), "bfloat16")
    squares = Layout("abcd16b16a", blocks=((1, 16), (0, 16)))
    in_line = {"numba loop over pairs"}
    assert (moved(x, replace(forward, stored=stored), to_data) in in_line) == (inputs % 2 == 0)
    assert moved(x, squares, forward) in in_line
    assert (moved(x, PLAIN, forward) in in_line) == (inputs % 2 == 0 and taps == (1, 1))


def test_weights_that_are_no_whole_tiles_are_moved_one_by_one() -> None:
    x = np.random.default_rng(10).standard_normal((24, 40, 1, 1)).astype(np.float32)
    forward = Layout("acdb64a2b", (0, 2, 3, 1), ((0, 64), (1, 2)))
    to_data = Layout("bcda64b2a", (1, 2, 3, 0), ((1, 64), (0, 2)), "bfloat16")
    squares = Layout("abcd16b16a", blocks=((1, 16), (0, 16)))
    for source, target in ((forward, to_data), (squares, forward), (PLAIN, forward)):
        assert moved(x, source, target) == "numba gather"


def test_places_are_widened_when_they_leave_their_layout() -> None:
    x = np.random.default_rng(6).integers(0, 2**15, (2, 5, 4, 3)).astype(np.int32)
    moved(x, Layout("NHWC int16", NHWC.order, stored="int16"), PLAIN)


def test_roundings_to_bfloat16() -> None:
    bits = [0, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0x7F7FFFFF]
    bits += [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x00000001, 0x00018000, 0x007FFFFF]
    x = np.array(bits * 9, np.uint32).view(np.float32)
    moved(np.concatenate([x, -x]), PLAIN, PLAIN_BF16)


def moved(x: Any, source: Layout, target: Layout) -> str:
    """Check that a reorder of x leaves in memory what packing does, and return the kernel's name."""
    from demitasse import Place, TensorSpec
    from demitasse.operations import VOCABULARY

    specs = [TensorSpec(x.shape, x.dtype.name, layout) for layout in (source, target)]
    request = Request(VOCABULARY["reorder"], (specs[0],), (specs[1],), {}, Place("test", threads=2))
    (candidate,) = FACTORIES["reorder"](request)
    assert candidate.input_layouts == (source,)
    assert candidate.output_layouts == (target,)
    given, found = source.pack(x), np.full(specs[1].physical, 77, specs[1].array_type)
    candidate.bind([given], [found], None)()
    wanted = target.pack(source.unpack(given, x.shape)).astype(specs[1].array_type)
    assert found.tobytes() == wanted.tobytes()
    return candidate.kernel
