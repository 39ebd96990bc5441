"""Our CUDA kernels for statistics of a batch that workers share: what the workers compute is, up to
rounding, what NumPy computes in float64 from all samples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from kernels_on_cpu import ORDERS, TOLERANCE, bound, request_of, run

from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import candidates
from demitasse_gpu.kernels.launches import TYPES
from demitasse_gpu.kernels.layouts import PLAIN_BF16

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

DTYPES = ["float32", "float64", "bf16"]
NAMED = {"ids": ["planes", "innermost"]}
EPSILON = 0.01


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(EmulatedDriver())


def outputs(
    device: Device,
    name: str,
    inputs: list[Any],
    attributes: dict[str, Any],
    about: tuple[str, tuple[int, ...]],
    without: tuple[int, ...] = (),
) -> list[Any]:
    """Return what our kernel makes, and the inputs it updates; ``about`` is an element type and an
    order."""
    request = request_of(name, inputs, attributes, *about)
    wanted = tuple(None if i in without else s for i, s in enumerate(request.outputs))
    request = replace(request, outputs=wanted)
    (candidate,) = candidates(request)
    found = run(device, candidate, request, inputs)
    updated = [found[i] for i, operand in enumerate(request.operation.inputs) if operand.updated]
    return [*found[len(inputs) :], *updated]


class Batch(NamedTuple):
    """A batch, a gradient and what is learned, in the net's type. dy is 0 near a ReLU's kink."""

    x: Any
    dy: Any
    w: Any
    b: Any
    relu: bool

    @classmethod
    def drawn(
        cls,
        shape: tuple[int, ...],
        dtype: str,
        *,
        learned: bool,
        relu: bool,
        mean: float,
        deviation: float,
    ) -> Batch:
        random, real = np.random.default_rng(shape), "float32" if dtype == "bf16" else dtype
        x, dy = (random.standard_normal(shape) for _ in range(2))
        x = (mean + deviation * x).astype(real)
        if dtype == "bf16":
            x, dy = (PLAIN_BF16.unpack(PLAIN_BF16.pack(a.astype(real)), shape) for a in (x, dy))
        w_b = [random.standard_normal(shape[1]).astype(real) if learned else None for _ in range(2)]
        made = cls(x, dy, *w_b, relu)
        near = np.abs(normalised(made, made.x)) < (1e-12 if dtype == "float64" else 1e-3)
        return made._replace(dy=np.where(near, 0, dy).astype(real))

    def per_channel(self, values: Any) -> Any:
        """Return a number per channel, in float64, as an array that fits x."""
        return np.asarray(values, np.float64).reshape(-1, *[1] * (self.x.ndim - 2))


def normalised(batch: Batch, x: Any) -> Any:
    """Return what the normalisation makes of x in float64, before a ReLU."""
    axes = (0, *range(2, x.ndim))
    x = x.astype(np.float64)
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    if batch.w is not None:
        y = y * batch.per_channel(batch.w) + batch.per_channel(batch.b)
    return y


def gradient(batch: Batch) -> tuple[Any, Any]:
    """Return dx and dy * dy/dz in float64: with s = 1 / sqrt(v + epsilon) and z = (x - m) s,
    dx = s (g - mean(g) - z mean(g z)), g = dz w."""
    axes = (0, *range(2, batch.x.ndim))
    dz = batch.dy * (normalised(batch, batch.x) > 0) if batch.relu else batch.dy
    dz = dz.astype(np.float64)
    g = dz if batch.w is None else dz * batch.per_channel(batch.w)
    x = batch.x.astype(np.float64)
    s = 1 / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    z = (x - x.mean(axes, keepdims=True)) * s
    means = g.mean(axes, keepdims=True), (g * z).mean(axes, keepdims=True)
    return s * (g - means[0] - z * means[1]), dz


def test_the_expected_gradient_is_that_of_the_expected_result() -> None:
    for relu in (False, True):
        batch = Batch.drawn((3, 2, 2, 3), "float64", learned=True, relu=relu, mean=0.5, deviation=2)
        expected, _ = gradient(batch)
        found = np.zeros(batch.x.shape)
        for place in np.ndindex(*batch.x.shape):
            step = np.zeros(batch.x.shape)
            step[place] = 1e-5
            ends = [normalised(batch, batch.x + sign * step) for sign in (1, -1)]
            if relu:
                ends = [np.maximum(end, 0) for end in ends]
            found[place] = ((ends[0] - ends[1]) * batch.dy).sum() / 2e-5
        np.testing.assert_allclose(found, expected, atol=1e-7)


BATCHES: dict[str, tuple[tuple[int, ...], list[int], dict[str, Any]]] = {
    # A batch's shape, where it is cut into the workers' parts, and what is not as usual.
    "images": ((5, 8, 5, 4), [2], {}),
    "a ReLU behind it": ((5, 8, 5, 4), [1, 3], {"relu": True}),
    "nothing learned": ((4, 8, 3, 3), [2], {"learned": False}),
    "nothing learned, and a ReLU": ((4, 8, 3, 3), [2], {"learned": False, "relu": True}),
    "one sample each": ((3, 4, 5, 3), [1, 2], {}),
    "one number": ((1, 3, 1, 1), [], {}),
    "one channel": ((4, 1, 7, 5), [1], {"relu": True}),
    "channels that are no packs": ((6, 13, 3, 5), [4], {}),
    "planes of odd extents": ((4, 6, 1, 37), [3], {"relu": True}),
    "vectors": ((37, 12), [5, 20], {}),
    "vectors of few channels": ((9, 3), [4], {"relu": True}),
    "more than a block": ((9, 72, 12, 11), [4], {"relu": True}),
    "far from zero": ((6, 16, 9, 8), [2], {"mean": 300.0, "deviation": 4.0}),
}


@pytest.mark.parametrize("order", ORDERS, **NAMED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BATCHES)
def test_workers_compute_what_one_would(
    device: Device, name: str, dtype: str, order: tuple[int, ...]
) -> None:
    shape, cuts, unusual = BATCHES[name]
    usual = {"learned": True, "relu": False, "mean": 0.5, "deviation": 2.0}
    batch, about = Batch.drawn(shape, dtype, **{**usual, **unusual}), (dtype, order)
    channels, real, axes = shape[1], batch.x.dtype, (0, *range(2, len(shape)))
    parts = list(zip(np.split(batch.x, cuts), np.split(batch.dy, cuts), strict=True))
    x = batch.x.astype(np.float64)
    within = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}

    moments = sum(outputs(device, "channel_moments", [part], {}, about)[0] for part, _ in parts)
    expected = np.concatenate([x.sum(axes), (x * x).sum(axes), [x.size // channels]])
    exact = 1e-12 if dtype == "float64" else 1e-5  # sums are of float32, less a shift
    size = np.abs(x).sum(axes).max() + (x * x).sum(axes).max()
    np.testing.assert_allclose(moments, expected, rtol=exact, atol=exact * size)

    kept = [np.full(channels, 0.5, real), np.full(channels, 0.25, real), np.full(1, 3, real)]
    rule = {"keep": 0.75, "epsilon": EPSILON}
    average, spread, inverse, mean, variance, factor = outputs(
        device, "settle_moments", [moments, *kept], rule, about
    )
    n, of_x = x.size // channels, (x.mean(axes), x.var(axes))
    close = {"rtol": 1e-12 if dtype == "float64" else 2e-5, "atol": exact}
    if unusual.get("mean"):
        close = {"rtol": 1e-9 if dtype == "float64" else 1e-4, "atol": 0}
    np.testing.assert_allclose(average, of_x[0], **close)
    np.testing.assert_allclose(spread, of_x[1], **close)
    np.testing.assert_allclose(mean, 0.75 * 0.5 + of_x[0], **close)
    np.testing.assert_allclose(variance, 0.75 * 0.25 + of_x[1] * n / max(1, n - 1), **close)
    assert factor == 0.75 * 3 + 1

    relu, one = {"relu": batch.relu}, np.ones(1, real)
    learned = [average, spread, one, batch.w, batch.b]
    made = [
        outputs(device, "batch_norm_inference", [part, *learned], {"epsilon": EPSILON, **relu}, about)[0]
        for part, _ in parts
    ]
    y = normalised(batch, batch.x)
    scale = max(1.0, float(np.abs(y).max()))
    off = 20 if unusual.get("mean") else 1  # what an average rounds is not small against deviations
    loose = {"rtol": off * within["rtol"], "atol": off * within["atol"] * scale}
    np.testing.assert_allclose(np.concatenate(made), np.maximum(y, 0) if batch.relu else y, **loose)

    dx, dz = gradient(batch)
    statistics = [batch.w, batch.b, average, inverse]
    sums = sum(
        np.concatenate(
            outputs(device, "batch_norm_backward", [dy, part, *statistics], relu, about, without=(0,))[
                1:3
            ]
        ).astype(np.float64)
        for part, dy in parts
    )
    xhat = (x - batch.per_channel(of_x[0])) / batch.per_channel(np.sqrt(of_x[1] + EPSILON))
    tops = float(np.abs(dz * xhat).sum(axes).max()) + 1
    many = {
        "rtol": off * within["rtol"],
        "atol": off * TOLERANCE["float32" if dtype == "bf16" else dtype] * tops,
    }
    np.testing.assert_allclose(sums, np.concatenate([(dz * xhat).sum(axes), dz.sum(axes)]), **many)

    made = [
        outputs(
            device,
            "batch_norm_whole_backward",
            [dy, part, *statistics, sums, np.asarray(moments)],
            relu,
            about,
        )[0]
        for part, dy in parts
    ]
    scale = max(1.0, float(np.abs(dx).max()))
    loose = {"rtol": off * within["rtol"], "atol": 2 * off * within["atol"] * scale}
    np.testing.assert_allclose(np.concatenate(made), dx, **loose)


@pytest.mark.parametrize("order", ORDERS, **NAMED)
def test_a_small_deviation_is_found_far_from_zero(device: Device, order: tuple[int, ...]) -> None:
    """In float32, the squares themselves would have lost it."""
    random = np.random.default_rng(2)
    x = (1000 + 0.01 * random.standard_normal((8, 6, 7, 5))).astype(np.float32)
    about = ("float32", order)
    moments = sum(outputs(device, "channel_moments", [p], {}, about)[0] for p in np.split(x, [3]))
    kept = [np.zeros(6, "f4"), np.zeros(6, "f4"), np.zeros(1, "f4")]
    _, spread, *_ = outputs(device, "settle_moments", [moments, *kept], {}, about)
    np.testing.assert_allclose(spread, x.astype(np.float64).var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_and_its_gradient_are_by_the_same_deviation(device: Device, dtype: str) -> None:
    """Otherwise a ReLU might be open in one of them only."""
    random = np.random.default_rng(3)
    mean, spread = random.standard_normal(500), random.uniform(1e-6, 9, 500)
    moments = np.concatenate([7 * mean, 7 * (spread + mean**2), [7]])
    kept = [np.zeros(500, dtype), np.zeros(500, dtype), np.zeros(1, dtype)]
    given = {"epsilon": 1e-5}
    _, variance, inverse, *_ = outputs(device, "settle_moments", [moments, *kept], given, (dtype, ()))
    one = np.dtype(dtype).type(1)
    assert np.array_equal(inverse, one / np.sqrt(variance + np.dtype(dtype).type(1e-5)))


def test_moving_averages_are_kept_without_a_factor(device: Device) -> None:
    moments = np.array(
        [8.0, 20.0, 17.0, 101.0, 4.0]
    )  # 4 numbers: means 2 and 5, variances 0.25 and 0.25
    kept = [np.array([1, 2], "f4"), np.array([3, 4], "f4"), np.array([9], "f4")]
    found = outputs(
        device, "settle_moments", [moments, *kept], {"keep": 0.5, "averaged": True}, ("float32", ())
    )
    expected = [[2, 5], [0.25, 0.25], [0.25 + 1e-5] * 2, [1.5, 3.5], [1.625, 2.125], [9]]
    expected[2] = [1 / math.sqrt(v) for v in expected[2]]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


class Told(EmulatedDriver):
    """Counts what the host reads from the device."""

    read = 0

    def copy(self, target: int, source: int, nbytes: int, kind: str, stream: int) -> None:
        self.read += kind == "d2h"
        super().copy(target, source, nbytes, kind, stream)


def test_how_many_numbers_there_are_is_read_on_the_device() -> None:
    """Also once the launches have become a graph."""
    driver: Any = Told()
    device, random = Device(driver), np.random.default_rng(4)
    dy, x = random.standard_normal((2, 4, 3)).astype("f4")
    inputs = [dy, x, None, None, np.zeros(3, "f4"), np.ones(3, "f4"), np.arange(6.0), np.full(7, 4.0)]
    (candidate,) = candidates(request_of("batch_norm_whole_backward", inputs, {}, "float32"))
    given, room = bound(device, candidate, [each for each in inputs if each is not None])
    given[2:2] = [None, None]
    dx = empty(device, x.shape, "float32")
    work = candidate.bind(given, [dx], room)
    for n in (4.0, 9.0, 5.0, 2.0):
        given[-1][6] = n
        before = driver.read
        work()
        assert driver.read == before
        expected = dy - np.arange(3, 6) / n - x * np.arange(3) / n
        np.testing.assert_allclose(np.asarray(dx), expected, rtol=1e-5, atol=1e-6)


def test_results_behind_a_clip_are_left_to_others() -> None:
    dy, x = np.ones((2, 4, 3), "f4")
    inputs = [dy, x, None, None, np.zeros(3, "f4"), np.ones(3, "f4"), np.zeros(6), np.ones(7)]
    for limits in ({"least": 0.0}, {"most": 6.0}):
        assert not list(candidates(request_of("batch_norm_whole_backward", inputs, limits, "float32")))


@pytest.mark.parametrize("kind", sorted(set(TYPES) - {"bfloat16"}))
def test_labels_of_any_type_are_counted(device: Device, kind: str) -> None:
    signed = np.dtype(kind).kind in "if"
    values = [3, 7, 7, 0, 120, 1, 7] + ([-1, -7] if signed else [])
    if np.dtype(kind).kind == "f":
        values += [7.9, -0.5, 6.999]
    for ignored in (7, 255, 0, -1):
        label = np.array(values, kind).reshape(-1, 1)
        (found,) = outputs(device, "count_labels", [label], {"ignore_label": ignored}, ("float32", ()))
        assert found == sum(int(value) != ignored for value in values)


def test_many_labels_are_counted(device: Device) -> None:
    label = np.random.default_rng(5).integers(0, 3, (2, 1, 70, 31)).astype(np.float32)
    (found,) = outputs(device, "count_labels", [label], {"ignore_label": 2}, ("float32", ()))
    assert found.dtype == np.float64
    assert found == (label != 2).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3, 400)])
def test_means_are_over_the_labels_of_all_workers(
    device: Device, shape: tuple[int, ...], dtype: str
) -> None:
    x = np.asarray(np.random.default_rng(6).standard_normal(shape), dtype)
    for labels, divisor in ((0.0, 0.25), (1.0, 0.25), (2**24 + 1.0, (2**24 + 1) * 0.25)):
        given = [x, np.array([labels])]
        (y,) = outputs(device, "over_divisor", given, {"share": 0.25}, (dtype, ()))
        np.testing.assert_allclose(y, x.astype(np.float64) / divisor, rtol=1e-7)
