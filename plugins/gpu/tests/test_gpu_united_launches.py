"""One launch that does the work of consecutive ones: it gives the same bits and reads less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from fused_words import shapes, word
from kernels_on_cpu import GPU

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec
from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import candidates
from demitasse_gpu.kernels.layouts import NHWC
from demitasse_gpu.launch import in_order
from demitasse_gpu.libraries.epilogue import Table, column_sums

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

SHAPE = (3, 8, 5, 4)


def offered(
    name: str, inputs: list[np.ndarray], given: dict[str, Any], how: tuple[str, Any]
) -> Candidate:
    """Return the candidate for a word on images in an order, in a precision."""
    dtype, order = how
    operation, layout = word(name), Layout("NHWC", order) if order else PLAIN
    attributes = {**operation.attributes, **given}
    real = inputs[0].dtype.name
    specs = tuple(TensorSpec(x.shape, x.dtype.name, layout if x.ndim == 4 else PLAIN) for x in inputs)
    made = operation.shapes(shapes(operation, inputs), attributes)
    about = attributes, GPU, "bf16" if dtype == "bf16" else "f32"
    outputs = tuple(TensorSpec(shape, real) for shape in made)
    (candidate,) = candidates(Request(operation, specs, outputs, *about))
    return candidate


def on_device(device: Device, values: np.ndarray, candidate: Candidate, place: int) -> DeviceArray:
    layout = candidate.input_layouts[place]
    packed = layout.pack(values)
    made = empty(device, packed.shape, packed.dtype)
    made[...] = packed
    return made


def room_in(device: Device, array: DeviceArray, nbytes: int) -> tuple[DeviceArray, DeviceArray]:
    """Return an array again, and scratch memory that begins in its middle. A plan places both there if
    the array was last read before."""
    half = array.nbytes // 32 * 16
    memory = empty(device, (half + max(nbytes, array.nbytes),), "uint8")
    same = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    same[...] = np.asarray(array)
    return same, memory[half : half + nbytes]


def step(
    dtype: str,
    order: tuple[int, ...],
    coefficients: Any,
    terms: int,
    united: bool,
    shared: int | None = None,
) -> Any:
    """Return what the beginning of a residual block's backward pass gives: the gradient at its ReLU, and
    that of its last normalisation; and the kernels that were launched. Scratch memory may lie in one of
    the sum's inputs."""
    real = "float64" if dtype == "float64" else "float32"
    random = np.random.default_rng(7)
    device = Device(EmulatedDriver(), graphs=False)
    summands = [random.standard_normal(SHAPE).astype(real) for _ in range(terms)]
    mask, x = (random.standard_normal(SHAPE).astype(real) for _ in range(2))
    channel = [random.uniform(0.5, 2, SHAPE[1]).astype(real) for _ in range(4)]
    sums = offered(
        "sum_relu_backward", [*summands, mask], {"coefficients": coefficients}, (dtype, order)
    )
    norm = offered("batch_norm_backward", [mask, x, *channel], {}, (dtype, order))
    given = [on_device(device, v, sums, i) for i, v in enumerate([*summands, mask])]
    spec = replace(TensorSpec(SHAPE, real), layout=sums.output_layouts[0])
    made = empty(device, spec.physical, spec.array_type)
    rest = [on_device(device, v, norm, i + 1) for i, v in enumerate([x, *channel])]
    dx = empty(device, spec.physical, spec.array_type)
    slopes = [empty(device, (SHAPE[1],), real) for _ in range(2)]
    room = empty(device, (max(1, norm.workspace),), "uint8")
    if shared is not None:
        given[shared], room = room_in(device, given[shared], norm.workspace)
    works = [sums.bind(given, [made], None), norm.bind([made, *rest], [dx, *slopes], room)]
    if united:
        works = [in_order(works)]
    for work in works:
        work()
    driver: Any = device.driver
    return [np.asarray(each).copy() for each in (made, dx, *slopes)], driver.launches


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
def test_a_sums_gradient_is_summed_as_it_is_made(dtype: str, order: tuple[int, ...]) -> None:
    alone, launched = step(dtype, order, None, 2, united=False)
    together, united = step(dtype, order, None, 2, united=True)
    assert {"weighted_sum", "gradient_sums"} <= set(launched)
    assert "made_gradient_sums" in united
    assert not {"weighted_sum", "gradient_sums"} & set(united)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
        assert np.isfinite(one.astype(np.float64)).all() and one.any()


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
def test_sums_that_would_be_written_where_others_still_read_are_made_apart(
    order: tuple[int, ...], shared: int
) -> None:
    alone, launched = step("float32", order, None, 2, united=False)
    together, same = step("float32", order, None, 2, united=True, shared=shared)
    assert launched == same
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("coefficients", "terms"), [([1.0, 0.5], 2), (None, 3)])
def test_other_sums_are_made_apart(coefficients: Any, terms: int) -> None:
    alone, launched = step("float32", (), coefficients, terms, united=False)
    together, same = step("float32", (), coefficients, terms, united=True)
    assert launched == same
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


def rectified(
    dtype: str,
    order: tuple[int, ...],
    slope: float,
    united: bool,
    in_place: bool,
    summed: str = "made",
    shared: int | None = None,
) -> Any:
    """Return a ReLU's gradient, and its channels' sums, as for a convolution's bias; and the kernels.
    Scratch memory may lie in the incoming gradient, or in the ReLU's output."""
    real = "float64" if dtype == "float64" else "float32"
    random = np.random.default_rng(8)
    device = Device(EmulatedDriver(), graphs=False)
    dy, y = (random.standard_normal(SHAPE).astype(real) for _ in range(2))
    back = offered("relu_backward", [dy, y], {"negative_slope": slope}, (dtype, order))
    given = [on_device(device, each, back, place) for place, each in enumerate((dy, y))]
    spec = replace(TensorSpec(SHAPE, real), layout=back.output_layouts[0])
    made = given[0] if in_place else empty(device, spec.physical, spec.array_type)
    total = empty(device, (SHAPE[1],), real)
    stored = "bfloat16" if dtype == "bf16" else real
    inner = 1 if order else SHAPE[2] * SHAPE[3]
    table = Table(dy.size // SHAPE[1], SHAPE[1], stored, inner)
    room = empty(device, (table.partial_bytes,), "uint8")
    if shared is not None:
        given[shared], room = room_in(device, given[shared], table.partial_bytes)
    works = [back.bind(given, [made], None)]
    works += column_sums(table, made if summed == "made" else given[1], total, room)
    if united:
        works = [in_order(works)]
    for work in works:
        work()
    driver: Any = device.driver
    return [np.asarray(each).copy() for each in (made, total)], driver.launches


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
@pytest.mark.parametrize(("slope", "in_place"), [(0.0, False), (0.25, True)])
def test_a_relus_gradient_is_summed_as_it_is_made(
    dtype: str, order: tuple[int, ...], slope: float, in_place: bool
) -> None:
    alone, launched = rectified(dtype, order, slope, False, in_place)
    together, united = rectified(dtype, order, slope, True, in_place)
    assert set(launched) == {"relu_backward", "product_sums", "settle_gradients"}
    assert set(united) == {"rectified_sums", "settle_gradients"}
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
        assert np.isfinite(one.astype(np.float64)).all() and one.any()


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
def test_a_biass_sums_are_not_written_where_the_gradient_still_reads(
    order: tuple[int, ...], shared: int
) -> None:
    alone, launched = rectified("float32", order, 0.0, False, False)
    together, same = rectified("float32", order, 0.0, True, False, shared=shared)
    assert launched == same
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)


def test_sums_of_what_another_launch_made_are_made_apart() -> None:
    _, launched = rectified("float32", (), 0.0, True, False, summed="y")
    assert set(launched) == {"relu_backward", "product_sums", "settle_gradients"}


def pooled(dtype: str, order: tuple[int, ...], united: bool, in_place: bool, slope: float) -> Any:
    """Return max pooling's gradient, and that of the ReLU before it; and the kernels that were
    launched."""
    real = "float64" if dtype == "float64" else "float32"
    random, windows = np.random.default_rng(9), {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0)}
    device = Device(EmulatedDriver(), graphs=False)
    places = (np.arange(5)[:, None] * 4 + np.arange(4)).astype(np.int32)
    chosen = np.broadcast_to(
        places[[0, 2, 4]][:, :3] + random.integers(0, 2, (3, 8, 3, 3)), (3, 8, 3, 3)
    )
    dy, y = random.standard_normal((3, 8, 3, 3)).astype(real), random.standard_normal(SHAPE).astype(real)
    given = {**windows, "shape": SHAPE}
    pool = offered("pooling_max_backward", [dy, chosen.astype(np.int32)], given, (dtype, order))
    back = offered("relu_backward", [y, y], {"negative_slope": slope}, (dtype, order))
    slopes, index = (on_device(device, v, pool, i) for i, v in enumerate((dy, chosen.astype(np.int32))))
    spec = replace(TensorSpec(SHAPE, real), layout=back.output_layouts[0])
    dx = empty(device, spec.physical, spec.array_type)
    made = dx if in_place else empty(device, spec.physical, spec.array_type)
    works = [pool.bind([slopes, index], [dx], None)]
    works.append(back.bind([dx, on_device(device, y, back, 1)], [made], None))
    if united:
        works = [in_order(works)]
    for work in works:
        work()
    driver: Any = device.driver
    return np.asarray(made).copy(), driver.launches


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_a_pools_gradient_is_that_of_the_relu_before_it(
    dtype: str, order: tuple[int, ...], slope: float
) -> None:
    alone, launched = pooled(dtype, order, False, True, slope)
    together, united = pooled(dtype, order, True, True, slope)
    assert set(launched) == {"pooling_max_backward", "relu_backward"}
    assert set(united) == {"pooling_max_backward"}
    assert (
        np.array_equal(alone, together) and np.isfinite(alone.astype(np.float64)).all() and alone.any()
    )


def test_a_pools_gradient_that_somebody_may_read_is_made() -> None:
    _, launched = pooled("float32", (), True, False, 0.0)
    assert set(launched) == {"pooling_max_backward", "relu_backward"}


def pool_before_a_bias(
    dtype: str, order: tuple[int, ...], united: bool, stride: tuple[int, int], shared: bool = False
) -> Any:
    """Return max pooling's gradient, and its channels' sums, as for the bias of a convolution before it;
    the sums expected in float64; and the kernels. Scratch memory may lie where dy does."""
    real = "float64" if dtype == "float64" else "float32"
    random, windows = np.random.default_rng(10), {"kernel": (2, 2), "stride": stride, "pad": (0, 0)}
    device = Device(EmulatedDriver(), graphs=False)
    rows, columns = ((n - 2) // s + 1 for n, s in zip(SHAPE[2:], stride, strict=True))
    corners = np.arange(rows)[:, None] * stride[0] * SHAPE[3] + np.arange(columns) * stride[1]
    dy = random.standard_normal((*SHAPE[:2], rows, columns)).astype(real)
    chosen = (corners + random.choice([0, 1, SHAPE[3], SHAPE[3] + 1], dy.shape)).astype(np.int32)
    pool = offered("pooling_max_backward", [dy, chosen], {**windows, "shape": SHAPE}, (dtype, order))
    given = [on_device(device, v, pool, i) for i, v in enumerate((dy, chosen))]
    expected = np.asarray(given[0]).copy()
    spec = replace(TensorSpec(SHAPE, real), layout=pool.output_layouts[0])
    dx, total = empty(device, spec.physical, spec.array_type), empty(device, (SHAPE[1],), real)
    inner = 1 if order else SHAPE[2] * SHAPE[3]
    stored = "bfloat16" if dtype == "bf16" else real
    table = Table(dx.size // SHAPE[1], SHAPE[1], stored, inner)
    room = empty(device, (table.partial_bytes,), "uint8")
    if shared:
        given[0], room = room_in(device, given[0], table.partial_bytes)
    works = [pool.bind(given, [dx], None), *column_sums(table, dx, total, room)]
    for work in [in_order(works)] if united else works:
        work()
    if dtype == "bf16":
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    lying = expected.reshape(-1, SHAPE[1]) if order else expected.reshape(SHAPE[0], SHAPE[1], -1)
    sums = lying.astype(np.float64).sum(0 if order else (0, 2))
    driver: Any = device.driver
    return np.asarray(dx).copy(), np.asarray(total).copy(), sums, driver.launches


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("stride", [(2, 2), (1, 2), (3, 2)])
def test_a_bias_before_a_pool_is_summed_of_the_pools_gradient(
    dtype: str, order: tuple[int, ...], stride: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    run = EmulatedDriver.launch

    def launch(self: Any, function: Any, grid: Any, block: Any, arguments: Any, *rest: Any) -> None:
        if function.name == "product_sums":
            read.append(int(arguments[0]["outer"]) * int(arguments[0]["inner"]))
        run(self, function, grid, block, arguments, *rest)

    monkeypatch.setattr(EmulatedDriver, "launch", launch)
    dx, alone, expected, _ = pool_before_a_bias(dtype, order, False, stride)
    same, together, _, launched = pool_before_a_bias(dtype, order, True, stride)
    assert set(launched) == {"pooling_max_backward", "product_sums", "settle_gradients"}
    whole, points = read
    assert points < whole == dx.size // SHAPE[1]
    assert np.array_equal(dx, same)
    within = {"float64": 1e-12, "float32": 1e-5, "bf16": 1e-5}[dtype]
    np.testing.assert_allclose(together, expected, rtol=within, atol=within)
    # If windows overlap, bfloat16 rounds what is added at one point of dx.
    rounded = 0.05 if dtype == "bf16" and stride[0] == 1 else within
    np.testing.assert_allclose(alone, expected, rtol=rounded, atol=rounded)


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
def test_a_bias_is_summed_of_what_was_made_where_sums_are_written_to_the_pools_gradient(
    order: tuple[int, ...],
) -> None:
    dx, alone, *_ = pool_before_a_bias("float32", order, False, (2, 2))
    same, together, *_ = pool_before_a_bias("float32", order, True, (2, 2), shared=True)
    assert np.array_equal(dx, same)
    assert np.array_equal(alone, together)


@pytest.mark.parametrize("order", [(), NHWC.order], ids=["planes", "innermost"])
def test_a_bias_of_the_last_axis_before_a_pool_is_summed_of_what_was_made(
    order: tuple[int, ...],
) -> None:
    """As for an inner product along an axis behind the channels: its outputs are not channels."""
    random, device = np.random.default_rng(12), Device(EmulatedDriver(), graphs=False)
    windows = {"kernel": (5, 1), "stride": (1, 1), "pad": (0, 0), "shape": SHAPE}
    dy = random.standard_normal((*SHAPE[:2], 1, SHAPE[3])).astype(np.float32)
    chosen = (4 * random.integers(0, 5, dy.shape) + np.arange(4)).astype(np.int32)
    pool = offered("pooling_max_backward", [dy, chosen], windows, ("float32", order))
    given = [on_device(device, each, pool, i) for i, each in enumerate((dy, chosen))]
    spec = replace(TensorSpec(SHAPE, "float32"), layout=pool.output_layouts[0])
    outputs = spec.physical[-1]
    dx, total = empty(device, spec.physical, "float32"), empty(device, (outputs,), "float32")
    table = Table(dx.size // outputs, outputs, "float32")
    sums = column_sums(table, dx, total, empty(device, (table.partial_bytes,), "uint8"))
    in_order([pool.bind(given, [dx], None), *sums])()
    expected = np.asarray(dx).astype(np.float64).reshape(-1, outputs).sum(0)
    np.testing.assert_allclose(np.asarray(total), expected, rtol=1e-5, atol=1e-5)


def converted(
    device: Device, arrays: list[tuple[Any, Any]], united: bool, layouts: tuple[Layout, Layout]
) -> dict[str, int]:
    """Convert arrays, one after the other or as a row. Return the kernels that were launched."""
    taken, made = layouts
    works = []
    for x, y in arrays:
        specs = tuple(TensorSpec((x.size,), "float32", layout) for layout in layouts)
        about = (specs[:1], specs[1:], {}, GPU, "bf16")
        (candidate,) = candidates(Request(word("reorder"), *about))
        assert (candidate.input_layouts, candidate.output_layouts) == ((taken,), (made,))
        works.append(candidate.bind([x], [y], None))
    driver: Any = device.driver
    before = dict(driver.launches)
    for work in [in_order(works)] if united else works:
        work()
    return {
        name: n - before.get(name, 0) for name, n in driver.launches.items() if n > before.get(name, 0)
    }


HALF = Layout("bf16", stored="bfloat16")


@pytest.mark.parametrize("halves", [True, False], ids=["to bfloat16", "to float32"])
def test_arrays_that_are_converted_in_line_are_by_one_launch(halves: bool) -> None:
    """Arrays of any size, aligned to 16 bytes or not; 128 per launch."""
    layouts = (PLAIN, HALF) if halves else (HALF, PLAIN)
    random, device = np.random.default_rng(11), Device(EmulatedDriver(), graphs=False)
    sizes = [1, 5, 8192, 8193, 3 * 8192 - 1, 40_000, *random.integers(1, 50, 254)]
    pairs, expected = [], []
    for number, size in enumerate(map(int, sizes)):
        values = layouts[0].pack(random.standard_normal(size).astype(np.float32))
        beside = number % 3  # elements before it: none, or as many as make the array unaligned
        x, y = (
            empty(device, (size + beside,), TensorSpec((1,), "float32", layout).array_type)[beside:]
            for layout in layouts
        )
        x[...] = values
        pairs.append((x, y))
        expected.append(layouts[1].pack(layouts[0].unpack(values, (size,))))
    assert converted(device, pairs, False, layouts) == {"convert": 260}
    alone = [np.asarray(y).copy() for _, y in pairs]
    for _, y in pairs:
        y[...] = 0
    assert converted(device, pairs, True, layouts) == {"convert_arrays": 3}
    for (_, y), one, right in zip(pairs, alone, expected, strict=True):
        assert np.array_equal(np.asarray(y), one)
        assert np.array_equal(one, right)


@pytest.mark.parametrize("at", ["all of it", "a part"])
def test_what_is_made_of_what_was_just_made_is_made_after_it(at: str) -> None:
    device = Device(EmulatedDriver(), graphs=False)
    room = empty(device, (3, 64), "float32")
    room[0] = np.arange(64, dtype=np.float32)
    one, two, three = room[0], room[1], room[2]
    first = [(one, two), (two, three)]
    if at == "a part":
        first = [(one, two), (two[32:], three[:32])]
    assert converted(device, first, True, (PLAIN, PLAIN)) == {"convert": 2}
    expected = np.arange(64.0) if at == "all of it" else np.arange(32.0, 64.0)
    assert np.array_equal(np.asarray(three)[: len(expected)], expected)
    # Overwriting what another conversion reads comes after it, and the last writer's result stays.
    assert converted(device, [(two, three), (one, two)], True, (PLAIN, PLAIN)) == {"convert": 2}
    assert converted(device, [(one, three), (two, three)], True, (PLAIN, PLAIN)) == {"convert": 2}
