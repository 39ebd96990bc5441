"""Convolutions by our own kernels: each way gives what NumPy computes in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from convolution_requests import computed, device_with, request
from cuda_on_cpu.driver import EmulatedDriver
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_on_cpu import innermost
from stand_in_cudnn import StandIn, back_to_data, back_to_weights, convolved

from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import convolutions, cudnn, implicit_gemm, tiles, winograd
from demitasse_gpu.libraries.convolutions import Convolution

NEAR = {"f32": 5e-7, "f32 of scalars": 2e-6, "tf32": 1e-3}
"""Relative to the largest number. Sums have some hundreds of products of numbers, of which TF32 keeps 10
bits."""
KERNELS = {"f32": tiles.SPLIT_TILES, "f32 of scalars": tiles.TILES, "tf32": tiles.TF32_TILES}
"""The tile sizes that are tried, by precision; scalars are for devices whose tensor cores lack TF32."""
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "three by three": ((2, 8, 7, 6), (16, 8, 3, 3), {"pad": (1, 1)}),
    "points": ((2, 20, 5, 7), (24, 20, 1, 1), {}),
    "points, each second": ((2, 12, 7, 8), (8, 12, 1, 1), {"stride": (2, 2)}),
    "strides and pads that differ": ((1, 4, 11, 9), (8, 4, 5, 3), {"stride": (3, 2), "pad": (2, 0)}),
    "groups": ((2, 16, 6, 5), (16, 8, 3, 3), {"groups": 2, "pad": (1, 0)}),
    "dilated": ((1, 4, 9, 12), (8, 4, 3, 2), {"dilation": (2, 3), "pad": (2, 1)}),
    "more outputs than a tile has": ((1, 4, 6, 6), (136, 4, 3, 3), {}),
    "more channels than a tile has": ((1, 132, 3, 3), (8, 132, 2, 2), {}),
    "more points than a tile has": ((2, 4, 13, 12), (8, 4, 2, 2), {}),
    "a stride beyond the filter": ((1, 8, 8, 8), (8, 8, 1, 2), {"stride": (3, 3)}),
    "filters as large as images": ((3, 4, 4, 4), (8, 4, 4, 4), {}),
}


AS_SCALARS = (
    "points",
    "strides and pads that differ",
    "groups",
    "dilated",
    "more points than a tile has",
)
"""The forms that are also tested with the kernels that only older devices use."""
BOTH = [
    (kernels, form)
    for kernels in KERNELS
    for form in FORMS
    if kernels != "f32 of scalars" or form in AS_SCALARS
]


def of_every_form(turn: int) -> pytest.MarkDecorator:
    """Parametrize a test. In the fast tests each pass has all forms with the first kernels, and with
    each of the others a third of their forms, different ones in each pass. The slow tests have the
    rest."""
    combined = [
        pytest.param(*each, marks=() if each[0] == "f32" or number % 3 == turn else pytest.mark.slow)
        for number, each in enumerate(BOTH)
    ]
    return pytest.mark.parametrize(("kernels", "form"), combined, indirect=True)


def told_of(form: dict[str, Any]) -> dict[str, Any]:
    return {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "groups": 1, **form}


@pytest.fixture(autouse=True)
def without_winograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Winograd's algorithm out: it rounds differently, and has tests of its own."""
    monkeypatch.setattr(winograd, "serves", lambda asked: False)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels under test, on a device that has them."""
    if request.param == "f32 of scalars":
        monkeypatch.setattr(tiles, "AMPERE", (10, 0))
    return request.param


def check_all(
    compute: Callable[[Device], np.ndarray],
    expected: np.ndarray,
    patch: pytest.MonkeyPatch,
    near: float,
) -> tuple[int, Counter[str]]:
    """Check that every way gives what is expected, each on a device that has measured nothing yet.
    Return the number of ways, and the kernels that they launch."""
    number, count, launches = 0, 1, Counter[str]()
    while number < count:
        device = device_with(StandIn())

        def choose(device: Device, ways: Sequence[Any], number: int = number) -> int:
            nonlocal count
            count = len(ways)
            return number

        patch.setattr(convolutions, "quickest", choose)
        found = compute(device)
        assert np.abs(found - expected).max() <= near * np.abs(expected).max(), number
        launches.update(device.driver.launches)  # type: ignore[attr-defined]
        number += 1
    return count, launches


@pytest.fixture
def form(request: pytest.FixtureRequest) -> tuple[Any, Any, dict[str, Any]]:
    x, w, told = FORMS[request.param]
    return x, w, told_of(told)


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(11)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def geometry(told: dict[str, Any]) -> tuple[Any, Any, Any]:
    return told["stride"], told["pad"], told["dilation"]


@of_every_form(0)
def test_forward(form: Any, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(*form[:2])
    expected = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(form[2]))
    asked = request("convolution", [x, w, None], form[2], kernels.split()[0])

    def compute(device: Device) -> np.ndarray:
        (made,) = computed(device, asked, [x, w, None])
        return made

    ways, launches = check_all(compute, expected, monkeypatch, NEAR[kernels])
    assert {f"convolution_{each.name}" for each in KERNELS[kernels]} <= set(launches)
    assert ways > len(KERNELS[kernels]), "cuDNN's, too"


@pytest.mark.parametrize("name", ["three by three", "groups"])
def test_a_bias_and_a_relu(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_x, of_w, form = FORMS[name]
    told = told_of(form)
    x, w, b = drawn(of_x, of_w, (of_w[0],))
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    asked = request("convolution_relu", [x, w, b], told, kernels.split()[0])
    expected, near = np.maximum(y + b[:, None, None], 0), NEAR[kernels]
    _, launches = check_all(lambda on: computed(on, asked, [x, w, b])[0], expected, monkeypatch, near)
    assert {f"convolution_{each.name}" for each in KERNELS[kernels]} <= set(launches)


@of_every_form(1)
def test_gradient_of_images(form: Any, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(*form[:2])
    (dy,) = drawn(convolved(x, w, *geometry(form[2])).shape)
    expected = back_to_data(dy.astype(np.float64), w.astype(np.float64), x.shape, *geometry(form[2]))
    told = {**form[2], "shape": x.shape}
    asked = request("convolution_backward_data", [dy, w], told, kernels.split()[0])

    def compute(device: Device) -> np.ndarray:
        (made,) = computed(device, asked, [dy, w])
        return made

    _, launches = check_all(compute, expected, monkeypatch, NEAR[kernels])
    assert {f"backward_data_{each.name}" for each in KERNELS[kernels]} <= set(launches)
    assert launches["filters_turned"] == len(KERNELS[kernels])


@of_every_form(2)
def test_gradient_of_filters(form: Any, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(*form[:2])
    (dy,) = drawn(convolved(x, w, *geometry(form[2])).shape)
    expected = back_to_weights(dy.astype(np.float64), x.astype(np.float64), w.shape, *geometry(form[2]))
    told = {**form[2], "shape": w.shape}
    asked = request("convolution_backward_weights", [dy, x], told, kernels.split()[0])

    def compute(device: Device) -> np.ndarray:
        made, sums = computed(device, asked, [dy, x])
        assert np.allclose(sums, dy.sum((0, 2, 3)), atol=1e-4)
        return made

    _, launches = check_all(compute, expected, monkeypatch, NEAR[kernels])
    assert {f"backward_weights_{each.name}" for each in KERNELS[kernels]} <= set(launches)


@pytest.mark.parametrize("stride", [1, 2])
def test_sums_in_parts(stride: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If few blocks make the whole result, several share each sum."""
    told = told_of({"stride": (stride, stride), "pad": (1, 1)})
    x, w, b = drawn((2, 64, 4, 4), (64, 64, 3, 3), (64,))
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    asked = request("convolution_relu", [x, w, b], told, kernels.split()[0])
    expected, near = np.maximum(y + b[:, None, None], 0), NEAR[kernels]
    _, launches = check_all(lambda on: computed(on, asked, [x, w, b])[0], expected, monkeypatch, near)
    assert launches["join_parts"] == len(KERNELS[kernels])
    (dy,) = drawn(y.shape)
    told = {**told, "shape": x.shape}
    back = request("convolution_backward_data", [dy, w], told, kernels.split()[0])
    expected = back_to_data(
        dy.astype(np.float64), w.astype(np.float64), x.shape, (stride, stride), (1, 1), (1, 1)
    )
    _, launches = check_all(lambda on: computed(on, back, [dy, w])[0], expected, monkeypatch, near)
    assert launches["join_parts"] == (len(KERNELS[kernels]) if stride == 1 else 0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_split_numbers_of_any_size(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is omitted depends on the relative size of a sum's terms, not on how large they are."""
    x, w = drawn((1, 64, 6, 6), (8, 64, 3, 3))
    x, w = x * np.float32(scale), w * np.float32(1 / scale)
    x[:, ::2] *= np.float32(1e-4)
    told = told_of({"pad": (1, 1)})
    expected = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    asked = request("convolution", [x, w, None], told, "f32")
    compute = lambda on: computed(on, asked, [x, w, None])[0]  # noqa: E731
    check_all(compute, expected, monkeypatch, NEAR["f32"])


def test_numbers_that_are_none_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is not finite makes everything that depends on it NaN, and nothing else."""
    x, w = drawn((1, 8, 5, 5), (8, 8, 3, 3))
    x[0, 3, 0, 0], x[0, 5, 4, 4] = np.nan, np.inf
    x.view(np.uint32)[0, 2, 0, 4] = 0x7FFFFFFF  # what a GPU's own instructions give
    asked = request("convolution", [x, w, None], told_of({}), "f32")
    monkeypatch.setattr(convolutions, "quickest", lambda device, ways: 0)
    (made,) = computed(device := device_with(StandIn()), asked, [x, w, None])
    assert "convolution_split_2x2" in device.driver.launches  # type: ignore[attr-defined]
    expected = np.ones((3, 3), bool)
    expected[0, 0] = expected[2, 2] = expected[0, 2] = False
    assert (np.isfinite(made) == expected).all()


def test_images_of_few_channels_are_convolved_as_copies_with_more(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, precision = told_of({"stride": (2, 2), "pad": (3, 3)}), kernels.split()[0]
    x, w = drawn((2, 3, 15, 12), (8, 3, 7, 7))
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    asked = request("convolution", [x, w, None], told, precision)
    compute = lambda on: computed(on, asked, [x, w, None])[0]  # noqa: E731
    _, launches = check_all(compute, y, monkeypatch, NEAR[kernels])
    assert all(launches[f"convolution_{each.name}"] == 2 for each in KERNELS[kernels]), "of both copies"
    (dy,) = drawn(y.shape)
    expected = back_to_weights(dy.astype(np.float64), x.astype(np.float64), w.shape, *geometry(told))
    back = request("convolution_backward_weights", [dy, x], {**told, "shape": w.shape}, precision)
    compute = lambda on: computed(on, back, [dy, x])[0]  # noqa: E731
    _, launches = check_all(compute, expected, monkeypatch, NEAR[kernels])
    assert {f"backward_weights_{each.name}" for each in KERNELS[kernels]} <= set(launches)


@pytest.mark.parametrize(
    ("x", "w", "told", "kinds"),
    [
        ((2, 8, 9, 9), (8, 8, 3, 3), {}, {cudnn.FORWARD, cudnn.BACKWARD_DATA, cudnn.BACKWARD_WEIGHTS}),
        ((2, 3, 9, 9), (8, 3, 3, 3), {}, {cudnn.FORWARD, cudnn.BACKWARD_WEIGHTS}),
        ((2, 8, 9, 9), (20, 8, 3, 3), {}, set()),
        ((2, 5, 9, 9), (8, 5, 3, 3), {}, set()),
        ((2, 10, 9, 9), (8, 10, 3, 3), {}, set()),
        ((2, 12, 9, 9), (12, 6, 3, 3), {"groups": 2}, set()),
        (
            *((2, 8, 9, 9), (8, 8, 3, 3), {"stride": (2, 2), "dilation": (2, 2)}),
            {cudnn.FORWARD, cudnn.BACKWARD_WEIGHTS},
        ),
        ((1, 8, 20000, 2), (8, 8, 1, 1), {}, set()),
    ],
)
def test_which_are_served(x: Any, w: Any, told: dict[str, Any], kinds: set[int]) -> None:
    told = told_of(told)
    spans = zip(x[2:], w[2:], *geometry(told), strict=True)
    y = (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans))
    for kind in (cudnn.FORWARD, cudnn.BACKWARD_DATA, cudnn.BACKWARD_WEIGHTS):
        asked = Convolution(kind, x, w, y, geometry(told), "float32", False)
        assert implicit_gemm.serves(asked) == (kind in kinds)
        assert bool(asked.order) == (kind in kinds), "planes otherwise"
        rounded = Convolution(kind, x, w, y, geometry(told), "float32", True)
        assert implicit_gemm.serves(rounded) == (kind in kinds)
        assert not implicit_gemm.serves(Convolution(kind, x, w, y, geometry(told), "bfloat16", False))


@st.composite
def convolutions_drawn(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Draw the extents of images and filters, and stride, pad and dilation."""
    groups, channels = draw(st.integers(1, 2)), 4 * draw(st.integers(1, 5))
    outputs = 8 * groups * draw(st.sampled_from([1, 2, 9]))
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2))) if stride == (1, 1) else (1, 1)
    pad = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    image = [max(1, s - 2 * p) + draw(st.integers(0, 9)) for s, p in zip(spans, pad, strict=True)]
    x = draw(st.integers(1, 3)), groups * channels, *image
    return x, (outputs, channels, *kernel), (stride, pad, dilation)


@settings(max_examples=examples(24), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_form=convolutions_drawn(), kind=st.sampled_from([10, 11, 12]), data=st.data())
def test_any_convolution(drawn_form: Any, kind: int, data: st.DataObject) -> None:
    """One way of each precision, compared with NumPy in float64. Nothing behind the result is
    written."""
    of_x, of_w, geometry = drawn_form
    x, w = (each.astype(np.float64) for each in drawn(of_x, of_w))
    y = convolved(x, w, *geometry)
    dy = drawn(y.shape)[0].astype(np.float64)
    operands, expected = {
        cudnn.FORWARD: ((x, w), y),
        cudnn.BACKWARD_WEIGHTS: ((x, dy), back_to_weights(dy, x, of_w, *geometry)),
        cudnn.BACKWARD_DATA: ((w, dy), back_to_data(dy, w, of_x, *geometry)),
    }[kind]
    device = Device(EmulatedDriver())
    for precision in ("f32", "tf32"):
        asked = Convolution(kind, of_x, of_w, y.shape, geometry, "float32", precision == "tf32")
        given = [innermost(device, each) for each in operands]
        made = empty(device, (expected.size + 64,), "float32")
        room = empty(device, (asked.limit,), "uint8")
        places = [each.address for each in given]
        ways = list(implicit_gemm.ways(device, asked, places, made.address, None, room.address))
        name, launches = data.draw(st.sampled_from(ways))
        made[...] = 77
        for launch in launches:
            launch()
        found = np.asarray(made)
        target = expected.transpose(0, 2, 3, 1).reshape(-1)
        far = np.abs(found[:-64] - target).max()
        within = 2 * NEAR[precision]  # errors of few terms do not average out
        assert far <= within * max(1.0, np.abs(target).max()), name
        assert (found[-64:] == 77).all(), name


def test_parts_fit_into_the_scratch_memory() -> None:
    x, w = (64, 256, 14, 14), (512, 256, 3, 3)
    asked = Convolution(cudnn.BACKWARD_WEIGHTS, x, w, (64, 512, 14, 14), ((1, 1),) * 3, "float32", False)
    device, largest = Device(EmulatedDriver()), 0
    for _, launches in implicit_gemm.ways(device, asked, (0, 0), 0, None, 0):
        parts = int(launches[0]._arguments[-2])
        largest = max(largest, parts)
        assert parts == 1 or parts * 4 * np.prod(w) <= asked.limit
    assert largest > 1
