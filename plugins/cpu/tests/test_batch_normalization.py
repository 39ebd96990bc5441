"""Batch normalisation and scales, in planes and with channels innermost, compared with NumPy in
float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import make_request, run
from combined import in_pairs

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import FACTORIES

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = replace(NHWC, stored="bfloat16")
LAYOUTS = [PLAIN, NHWC]
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}

# Odd numbers of channels, fewer pixels than a line has, one part for each thread, and more.
SHAPES = [
    (2, 3, 5, 7),
    (1, 1, 1, 1),
    (3, 10, 1, 1),
    (4, 20, 8, 8),
    (5, 50, 9, 11),
    (3, 97, 13, 13),
    (2, 600, 6, 5),
    (16, 16, 32, 32),
    (7, 128, 15, 13),
]
VECTORS = [(1, 3), (33, 97), (600, 50)]
Lying = tuple[tuple[int, ...], Layout]
PLACES: list[Lying] = [(shape, layout) for shape in SHAPES for layout in LAYOUTS]
PLACES += [(shape, PLAIN) for shape in VECTORS]
FORMS = ["alone", "w", "w b", "w b relu", "relu"]


def call(
    name: str,
    inputs: Sequence[Any],
    layout: Layout = PLAIN,
    absent: Sequence[int] = (),
    in_place: bool = False,
    precision: str = "f32",
    **attributes: Any,
) -> list[Any]:
    """Return the updated inputs and the outputs of an operation whose tensors with the shape of the
    first have ``layout``, with a workspace and outputs full of garbage. A name may end in ``_relu``."""
    operation = VOCABULARY[name.removesuffix("_relu")]
    complete = {**operation.attributes, **attributes}
    shape, dtype = inputs[0].shape, inputs[0].dtype.name
    shapes = {o.name: x if x is None else x.shape for o, x in zip(operation.inputs, inputs, strict=True)}

    def specified(each: tuple[int, ...]) -> TensorSpec:
        return TensorSpec(each, dtype, layout if each == shape else PLAIN)

    made = [specified(tuple(each)) for each in operation.shapes(shapes, complete)]
    request = Request(
        replace(operation, name=name),
        tuple(x if x is None else specified(x.shape) for x in inputs),
        tuple(None if i in absent else each for i, each in enumerate(made)),
        complete,
        Place("test", threads=3),
        precision,
    )
    (candidate,) = FACTORIES[name](request)
    taken = [each for each, _ in zip(candidate.input_layouts, inputs, strict=True)]
    assert {each for each, x in zip(taken, inputs, strict=True) if x is inputs[0]} == {layout}
    given = [x if x is None else each.pack(x).copy() for each, x in zip(taken, inputs, strict=True)]
    specs = [replace(each, layout=to) for each, to in zip(made, candidate.output_layouts, strict=True)]
    outputs: list[Any] = [
        None if i in absent else np.full(each.physical, 77, each.array_type)
        for i, each in enumerate(specs)
    ]
    if in_place:
        assert candidate.in_place
        assert operation.aliases
        outputs[0] = given[0]
    workspace = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -workspace.ctypes.data % 64
    room = workspace[start : start + candidate.workspace] if candidate.workspace else None
    candidate.bind(given, outputs, room)()
    updated = [x for x, o in zip(given, operation.inputs, strict=True) if o.updated]
    return updated + [
        y if y is None else each.layout.unpack(y, each.shape)
        for y, each in zip(outputs, specs, strict=True)
    ]


def axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def along(values: Any, x: Any) -> Any:
    return values.reshape(-1, *[1] * (x.ndim - 2)).astype(np.float64)


def draw(shape: tuple[int, ...], dtype: str, count: int, mean: float = 0) -> list[Any]:
    random = np.random.default_rng(sum(shape))
    return [random.normal(mean, 2, shape).astype(dtype) for _ in range(count)]


def close(found: Any, expected: Any, dtype: str, times: float = 1) -> None:
    limit = times * TOLERANCE[dtype]
    assert found.dtype == dtype
    size = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * size)


def learned(form: str, channels: int, dtype: str) -> list[Any]:
    """Return w and b, as far as the form names them."""
    random = np.random.default_rng(1)
    both = random.choice([-1.5, 0.5, 1.0], channels), random.normal(size=channels)
    return [v.astype(dtype) if name in form else None for name, v in zip("wb", both, strict=True)]


def affine(centred: Any, inverse: Any, w: Any, b: Any) -> tuple[Any, Any]:
    """Return, in float64, the values before a ReLU for values minus their mean, and the slope."""
    slope = along(inverse, centred) * (1 if w is None else along(w, centred))
    return centred * slope + (0 if b is None else along(b, centred)), slope


def statistics(channels: int, dtype: str) -> tuple[Any, Any]:
    mean, variance = np.random.default_rng(2).uniform(1, 2, (2, channels))
    return mean.astype(dtype), variance.astype(dtype)


def away_from_kink(dy: Any, z: Any) -> Any:
    """Return dy, with 0 where rounding could put z on the other side of 0."""
    return np.where(np.abs(z) < 1e-4, 0, dy).astype(dy.dtype)


@pytest.mark.parametrize(("place", "dtype", "form"), in_pairs(PLACES, sorted(TOLERANCE), FORMS))
def test_a_batch_is_normalised(place: Lying, dtype: str, form: str) -> None:
    shape, layout = place
    (x,) = draw(shape, dtype, 1, mean=3)
    mean, variance = statistics(shape[1], dtype)
    inputs = [x, mean, variance, np.array([1.5], dtype), *learned(form, shape[1], dtype)]
    given = {"keep": 0.9, "epsilon": 0.01, "relu": "relu" in form}
    x64, n = x.astype(np.float64), x.size // shape[1]
    average, spread = x64.mean(axis=axes(x)), x64.var(axis=axes(x))
    inverse = 1 / np.sqrt(spread + 0.01)
    unbiased = spread * n / max(1, n - 1)
    expected, _ = affine(x64 - along(average, x), inverse, *inputs[4:])
    if "relu" in form:
        expected = np.maximum(expected, 0)
    found = call("batch_norm", inputs, layout, **given)
    kept = [0.9 * mean + average, 0.9 * variance + unbiased, [2.35]]
    for ours, theirs in zip(found, [*kept, expected, average, inverse], strict=True):
        close(ours, np.asarray(theirs), dtype)
    alone = call("batch_norm", inputs, layout, absent=[1, 2], in_place=True, **given)
    assert alone[4:] == [None, None]
    for ours, same in zip(alone[:4], found[:4], strict=True):
        assert np.array_equal(ours, same)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize(("shape", "layout"), PLACES)
def test_what_is_averaged_is_a_moving_average_of_batches(
    shape: tuple[int, ...], layout: Layout, dtype: str
) -> None:
    (x,) = draw(shape, dtype, 1, mean=3)
    mean, variance = statistics(shape[1], dtype)
    inputs = [x, mean, variance, np.ones(1, dtype), None, None]
    found = call("batch_norm", inputs, layout, keep=0.9, epsilon=0.01, averaged=True)
    x64 = x.astype(np.float64)
    average, spread = x64.mean(axis=axes(x)), x64.var(axis=axes(x))
    kept = [0.9 * mean + 0.1 * average, 0.9 * variance + 0.1 * spread, [1.0]]
    for ours, theirs in zip(found, kept, strict=False):
        close(ours, np.asarray(theirs), dtype)


@pytest.mark.parametrize(("place", "dtype", "form"), in_pairs(PLACES, sorted(TOLERANCE), FORMS))
def test_the_gradient_through_a_batchs_statistics(place: Lying, dtype: str, form: str) -> None:
    shape, layout = place
    dy, x = draw(shape, dtype, 2, mean=0.5)
    average, inverse = statistics(shape[1], dtype)
    w, b = learned(form, shape[1], dtype)
    centred = x.astype(np.float64) - along(average, x)
    z, slope = affine(centred, inverse, w, b)
    dy = away_from_kink(dy, z)
    dz = np.where((z > 0) | ("relu" not in form), dy, 0).astype(np.float64)
    xhat = centred * along(inverse, x)
    level, tilt = (v.mean(axis=axes(x), keepdims=True) for v in (dz, dz * xhat))
    dx = slope * (dz - level - xhat * tilt)
    inputs, options = [dy, x, w, b, average, inverse], {"relu": "relu" in form}
    found = call("batch_norm_backward", inputs, layout, **options)
    expected = [dx, (dz * xhat).sum(axis=axes(x)), dz.sum(axis=axes(x))]
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs, dtype)
    for absent in ([1, 2], [0]):
        options |= {"absent": absent, "in_place": 0 not in absent}
        some = call("batch_norm_backward", inputs, layout, **options)
        for i, (ours, same) in enumerate(zip(some, found, strict=True)):
            assert ours is None if i in absent else np.array_equal(ours, same)


@pytest.mark.parametrize(
    ("place", "dtype", "factor", "form"), in_pairs(PLACES, sorted(TOLERANCE), [2.5, 0.0], FORMS)
)
def test_kept_statistics(place: Lying, dtype: str, factor: float, form: str) -> None:
    shape, layout = place
    x, dy = draw(shape, dtype, 2, mean=3)
    mean, variance = statistics(shape[1], dtype)
    w, b = learned(form, shape[1], dtype)
    count, share = np.array([factor], dtype), 1 / factor if factor else 0.0
    inverse = 1 / np.sqrt(share * variance.astype(np.float64) + 0.3)
    centred = x.astype(np.float64) - share * along(mean, x)
    z, slope = affine(centred, inverse, w, b)
    dy = away_from_kink(dy, z)
    options = {"epsilon": 0.3, "relu": "relu" in form}
    dz = np.where((z > 0) | ("relu" not in form), dy, 0).astype(np.float64)
    dw = (dz * centred * along(inverse, x)).sum(axis=axes(x))
    expected = [dz * slope, dw, dz.sum(axis=axes(x))]
    for in_place in (False, True):
        (y,) = call(
            "batch_norm_inference",
            [x, mean, variance, count, w, b],
            layout,
            in_place=in_place,
            **options,
        )
        close(y, np.maximum(z, 0) if "relu" in form else z, dtype)
        for absent in ([], [1, 2], [0, 2], [0, 1])[: 4 - 2 * in_place]:
            found = call(
                "batch_norm_inference_backward",
                [dy, x, mean, variance, count, w, b],
                layout,
                absent=absent,
                in_place=in_place,
                **options,
            )
            for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                if i in absent:
                    assert ours is None
                else:
                    close(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize(("shape", "layout"), PLACES)
def test_a_scale_and_its_gradients(shape: tuple[int, ...], layout: Layout, dtype: str) -> None:
    x, dy = draw(shape, dtype, 2, mean=0.3)
    w, b = (v.astype(dtype) for v in np.random.default_rng(1).normal(size=(2, shape[1])))
    x64, dy64 = x.astype(np.float64), dy.astype(np.float64)
    expected = x64 * along(w, x) + along(b, x)
    (y,) = call("scale", [x, w, b], layout)
    close(y, expected, dtype)
    close(call("scale", [x, w, None], layout)[0], x64 * along(w, x), dtype)
    assert np.array_equal(call("scale", [x, w, b], layout, in_place=True)[0], y)
    assert np.array_equal(call("scale_relu", [x, w, b], layout)[0], np.maximum(y, 0))

    wanted = [dy64 * along(w, x), (dy64 * x64).sum(axis=axes(x)), dy64.sum(axis=axes(x))]
    found = call("scale_backward", [dy, x, w], layout)
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs, dtype)
    for absent in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        for in_place in (False, True)[: 1 + (0 not in absent)]:
            some = call("scale_backward", [dy, x, w], layout, absent=absent, in_place=in_place)
            for i, (ours, same) in enumerate(zip(some, found, strict=True)):
                assert ours is None if i in absent else np.array_equal(ours, same)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize(
    ("shape", "axis", "extents"),
    [
        ((4, 5, 6, 7), 1, 2),
        ((4, 5, 6, 7), 0, 2),
        ((4, 5, 6, 7), 2, 1),
        ((3, 8, 9), 0, 3),
        ((5, 6), 1, 0),
    ],
)
def test_a_scale_may_stand_along_any_axes(
    shape: tuple[int, ...], axis: int, extents: int, dtype: str
) -> None:
    x, dy = draw(shape, dtype, 2)
    among = shape[axis : axis + extents]
    (w,), (b,) = draw(among, dtype, 1), draw(among, dtype, 1, mean=1)
    after = [1] * (len(shape) - axis - extents)
    factor, level = (v.reshape(*among, *after).astype(np.float64) for v in (w, b))
    close(call("scale", [x, w, b], axis=axis)[0], x * factor + level, dtype)
    others = (*range(axis), *range(axis + extents, len(shape)))
    dx, dw, db = call("scale_backward", [dy, x, w], axis=axis)
    close(dx, dy * factor, dtype)
    close(dw, (dy.astype(np.float64) * x).sum(axis=others), dtype)
    close(db, dy.astype(np.float64).sum(axis=others), dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_mean_far_from_0_costs_no_digits(layout: Layout) -> None:
    """float32 has 24 bits: at 4,096, a deviation of 1 is kept to 2^-12 for each number, and so are the
    sums."""
    x = (4096 + np.random.default_rng(3).normal(size=(8, 20, 28, 28))).astype(np.float32)
    kept = [np.zeros(20, np.float32), np.zeros(20, np.float32), np.zeros(1, np.float32)]
    x64 = x.astype(np.float64)
    *_, y, average, inverse = call("batch_norm", [x, *kept, None, None], layout)
    np.testing.assert_allclose(average, x64.mean(axis=axes(x)), rtol=1e-7)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(x64.var(axis=axes(x)) + 1e-5), rtol=1e-6)
    expected = (x64 - along(x64.mean(axis=axes(x)), x)) * along(inverse, x)
    np.testing.assert_allclose(y, expected, atol=5e-4)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (8, 97, 13, 13), (7, 64, 15, 13)])
def test_images_may_be_stored_as_bfloat16(shape: tuple[int, ...]) -> None:
    """Statistics and gradients of parameters stay float32; 8 bits are lost only at the very end."""
    x, dy = (NHWC_BF16.unpack(NHWC_BF16.pack(v), shape) for v in draw(shape, "float32", 2, mean=1))
    w, b = (v.astype(np.float32) for v in np.random.default_rng(1).normal(size=(2, shape[1])))
    kept = [np.zeros_like(w), np.zeros_like(w), np.zeros(1, np.float32)]
    options = {"precision": "bf16"}
    *found, y, average, inverse = call("batch_norm", [x, *kept, w, b], NHWC_BF16, relu=True, **options)
    *expected, exact, centre, same = call("batch_norm", [x, *kept, w, b], NHWC, relu=True)
    for ours, theirs in zip((*found, average, inverse), (*expected, centre, same), strict=True):
        assert np.array_equal(ours, theirs)
    np.testing.assert_allclose(y, exact, rtol=2**-8)
    counted = [w, np.abs(w), np.ones(1, np.float32)]
    for name, inputs in {
        "batch_norm_backward": [dy, x, w, b, average, inverse],
        "batch_norm_inference": [x, *counted, w, b],
        "batch_norm_inference_backward": [dy, x, *counted, w, b],
        "scale": [x, w, b],
        "scale_backward": [dy, x, w],
    }.items():
        more = {} if name.startswith("scale") else {"relu": True}
        whole = call(name, inputs, NHWC, **more)
        halved = call(name, inputs, NHWC_BF16, **options, **more)
        np.testing.assert_allclose(halved[0], whole[0], rtol=2**-8)
        for ours, theirs in zip(halved[1:], whole[1:], strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_is_no_number_stays_in_its_channel(layout: Layout) -> None:
    (x,) = draw((4, 5, 6, 6), "float32", 1)
    x[1, 2, 3, 4] = np.nan
    kept = [np.zeros(5, np.float32), np.zeros(5, np.float32), np.zeros(1, np.float32)]
    y = call("batch_norm", [x, *kept, None, None], layout, relu=True)[3]
    assert np.isnan(y).all(axis=(0, 2, 3)).tolist() == [False, False, True, False, False]
    assert np.isfinite(np.delete(y, 2, axis=1)).all()
    ones = np.ones(5, np.float32)
    assert np.array_equal(np.isnan(call("scale_relu", [x, ones, ones], layout)[0]), np.isnan(x))


LIMITS = (0.0, 6.0)
NEAR = [float(np.nextafter(np.float32(at), np.float32(to))) for at in LIMITS for to in (-99, 99)]


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("layout", [PLAIN, NHWC])
def test_the_gradient_of_a_clip_passes_at_its_limits(layout: Layout, precision: str) -> None:
    """This is what the operation clip does, which the plan uses if the two are separate."""
    dtype = "float64" if precision == "f64" else "float32"
    at = np.array([*LIMITS, *NEAR, -0.0, -3.0, 3.0, 9.0], np.float32).astype(dtype)
    if precision == "bf16":
        at = NHWC_BF16.unpack(NHWC_BF16.pack(at.reshape(1, 1, 1, -1)), (1, 1, 1, at.size)).reshape(-1)
    x = np.tile(at, 2 * 40 * 8).reshape(2, 40, 8, 10)
    dy = np.random.default_rng(1).integers(1, 9, x.shape).astype(dtype)
    one, nothing = np.ones(40, dtype), np.zeros(40, dtype)
    operands = [dy, x, None, None, nothing, one]
    request = make_request("batch_norm_clip_backward", operands, {"most": 6.0}, dtype)
    lying = tuple(spec and replace(spec, layout=layout) for spec in request.inputs[:2])
    request = replace(request, inputs=(*lying, *request.inputs[2:]), precision=precision)
    (candidate,) = FACTORIES["batch_norm_clip_backward"](request)
    dx, dw, db = run(candidate, request, operands)[len(operands) :]
    dz = np.where((x >= 0) & (x <= 6), dy, 0).astype(np.float64)
    assert np.array_equal(db, dz.sum((0, 2, 3)))
    np.testing.assert_allclose(dw, (dz * x).sum((0, 2, 3)), rtol=1e-6)
    n, (level, tilt) = x.size / 40, (each.reshape(1, 40, 1, 1) for each in (db, dw))
    within = 2.0**-7 if precision == "bf16" else 1e-5
    np.testing.assert_allclose(dx, dz - level / n - x * tilt / n, rtol=within, atol=within)
