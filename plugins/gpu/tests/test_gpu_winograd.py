"""Convolutions by Winograd's minimal filtering, on the emulated device, compared with NumPy in
float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from convolution_requests import computed, device_with, request
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_on_cpu import innermost
from stand_in_cudnn import StandIn, back_to_data, back_to_weights, convolved

from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import convolutions, cudnn, implicit_gemm, tiles, winograd
from demitasse_gpu.libraries.convolutions import Convolution

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

NEAR = 3e-6
"""Relative to the largest number: several times the errors of sums of products."""
KINDS = {"forward": cudnn.FORWARD, "data": cudnn.BACKWARD_DATA, "weights": cudnn.BACKWARD_WEIGHTS}
GUARD = 77.0


def asked_for(
    kind: int, x: tuple[int, ...], outputs: int, pad: tuple[int, int] = (1, 1), **told: Any
) -> Convolution:
    """Return a convolution with 3 x 3 taps."""
    w = outputs, x[1], 3, 3
    y = x[0], outputs, *(extent + 2 * p - 2 for extent, p in zip(x[2:], pad, strict=True))
    return Convolution(kind, x, w, y, ((1, 1), pad, (1, 1)), "float32", False, **told)


class Case:
    """The operands of a convolution in device memory, and the expected result in float64."""

    def __init__(self, asked: Convolution, backward: bool | None = None) -> None:
        random = np.random.default_rng(3)
        x, w, dy, b = (
            random.normal(size=shape).astype(np.float32).astype(np.float64)
            for shape in (asked.x, asked.w, asked.y, asked.y[1])
        )
        self.asked, self.device = asked, Device(EmulatedDriver(backward=backward))
        self.bias = None
        if asked.kind == cudnn.FORWARD:
            operands, expected = (x, w), convolved(x, w, *asked.geometry)
            if asked.bias:
                expected += b[:, None, None]
                self.bias = empty(self.device, b.shape, "float32")
                self.bias[...] = b.astype(np.float32)
            if asked.relu:
                expected = np.maximum(expected, 0)
        elif asked.kind == cudnn.BACKWARD_DATA:
            operands, expected = (w, dy), back_to_data(dy, w, asked.x, *asked.geometry)
        else:
            operands, expected = (x, dy), back_to_weights(dy, x, asked.w, *asked.geometry)
        self.given = [innermost(self.device, each) for each in operands]
        self.expected = expected.transpose(0, 2, 3, 1).ravel()
        self.made = empty(self.device, (self.expected.size + 64,), "float32")
        self.room = empty(self.device, (asked.limit + 256,), "uint8")
        self.launches: dict[str, int] = {}

    def ways(self) -> list[str]:
        """Return the names of the ways, after checking that each gives the expected result and writes
        nothing else."""
        places, names = [each.address for each in self.given], []
        told = self.device, self.asked, places, self.made.address, self.bias, self.room.address
        for name, launches in winograd.ways(*told):
            self.made[...] = GUARD
            self.room[...] = np.uint8(255)
            for launch in launches:
                launch()
            found = np.asarray(self.made)
            far = np.abs(found[:-64] - self.expected).max()
            assert far <= NEAR * np.abs(self.expected).max(), name
            assert (found[-64:] == GUARD).all(), name
            assert (np.asarray(self.room)[self.asked.limit :] == 255).all(), name
            names.append(name)
        driver: Any = self.device.driver
        self.launches = driver.launches
        return names


FORMS: dict[str, tuple[tuple[int, ...], int, tuple[int, int]]] = {
    "whole tiles": ((2, 8, 8, 12), 8, (1, 1)),
    "parts of tiles": ((2, 4, 7, 9), 16, (1, 1)),
    "one point": ((3, 4, 3, 3), 8, (0, 0)),
    "no pad, and two": ((1, 12, 9, 6), 8, (0, 2)),
    "more channels than a product has": ((1, 132, 4, 5), 72, (1, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_each_pass_is_the_convolutions(form: str, kind: str) -> None:
    x, outputs, pad = FORMS[form]
    assert len(Case(asked_for(KINDS[kind], x, outputs, pad)).ways()) == 1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_run_in_any_order(kind: str, backward: bool) -> None:
    assert Case(asked_for(KINDS[kind], (2, 8, 6, 5), 16), backward).ways()


@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_and_a_relu_come_with_the_results(relu: bool) -> None:
    case = Case(asked_for(cudnn.FORWARD, (2, 8, 5, 6), 8, bias=True, relu=relu))
    assert case.ways()
    assert sum(case.launches.values()) - case.launches["fill"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_the_tiles_are_made_one_after_the_other(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also shares of a sample and a half, and a smaller last one."""
    monkeypatch.setattr(winograd, "_FEWEST", 4)
    monkeypatch.setattr(winograd, "AT_ONCE", {"small": 1, "large": 18 * 4 * 36 * 16})
    case = Case(asked_for(KINDS[kind], (3, 8, 10, 9), 8))
    assert case.ways() == ["in small shares", "in large shares"]
    products = [count for name, count in case.launches.items() if "split" in name]
    assert products == [7 + 2]


def test_a_filters_gradient_is_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "_DEEP", 8)
    asked = asked_for(cudnn.BACKWARD_WEIGHTS, (4, 8, 16, 12), 8)
    case = Case(asked)
    told = case.device, asked, (0, 0), 0, None, 0
    (_, launches), *_ = winograd.ways(*told)
    assert int(launches[-1]._arguments[2]) == 6
    assert case.ways()


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(list(KINDS.values())),
    samples=st.integers(1, 3),
    channels=st.integers(1, 6).map(lambda n: 4 * n),
    outputs=st.integers(1, 6).map(lambda n: 8 * n),
    made=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    share=st.integers(1, 40),
)
def test_any_convolution(
    kind: int,
    samples: int,
    channels: int,
    outputs: int,
    made: tuple[int, int],
    pad: tuple[int, int],
    share: int,
) -> None:
    image = [max(1, extent + 2 - 2 * p) for extent, p in zip(made, pad, strict=True)]
    asked = asked_for(kind, (samples, channels, *image), outputs, pad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_FEWEST", 2)
        patch.setattr(winograd, "AT_ONCE", {"small": share * 4 * 36 * (channels + outputs)})
        patch.setattr(winograd, "_DEEP", 4)
        assert len(Case(asked).ways()) == 1


@pytest.mark.parametrize(
    "told",
    [
        {"stride": (2, 2)},
        {"stride": (1, 2)},
        {"dilation": (2, 2)},
        {"pad": (3, 0)},
        {"w": (16, 8, 5, 5)},
        {"w": (16, 8, 3, 1)},
        {"w": (16, 4, 3, 3)},
        {"tf32": True},
        {"stored": "bfloat16"},
    ],
    ids=str,
)
def test_what_is_not_served_has_no_way(told: dict[str, Any]) -> None:
    x, w = (2, 8, 20, 20), told.get("w", (16, 8, 3, 3))
    geometry = [
        told.get(name, each)
        for name, each in (("stride", (1, 1)), ("pad", (1, 1)), ("dilation", (1, 1)))
    ]
    stride, pad, dilation = geometry
    spans = zip(x[2:], w[2:], stride, pad, dilation, strict=True)
    y = (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans))
    stored = told.get("stored", "float32")
    asked = Convolution(cudnn.FORWARD, x, w, y, tuple(geometry), stored, "tf32" in told)
    assert not winograd.serves(asked)
    assert winograd.room(asked) == 0
    device = Device(EmulatedDriver())
    assert not list(winograd.ways(device, asked, (0, 0), 0, None, 0))


def test_it_takes_the_memory_that_it_may() -> None:
    """Also if images are so small that filters take most of it. Without enough memory there is no
    way."""
    asked = asked_for(cudnn.FORWARD, (64, 512, 7, 7), 512)
    assert asked.limit == winograd.room(asked) > 70 * 2**20
    device = Device(EmulatedDriver())
    assert [name for name, _ in winograd.ways(device, asked, (0, 0), 0, None, 0)] == ["in small shares"]
    assert winograd._Form(asked).share(winograd.AT_ONCE["small"]) == 256
    little = asked_for(cudnn.FORWARD, (64, 512, 7, 7), 512, most=60 * 2**20)
    assert not list(winograd.ways(device, little, (0, 0), 0, None, 0))


@pytest.mark.parametrize("size", [64, 512])
def test_shares_lie_in_a_devices_cache_or_are_as_large_as_filters(size: int) -> None:
    asked = asked_for(cudnn.FORWARD, (64, size, 56, 56), size)
    for at_once in winograd.AT_ONCE.values():
        share = winograd._Form(asked).share(at_once)
        assert share % 256 == 0
        between, filters = share * 4 * 36 * 2 * size, 4 * 36 * size * size
        assert between + filters <= asked.limit
        assert max(at_once, filters) / 2 < between <= max(at_once, filters)


@pytest.mark.parametrize("kind", KINDS)
def test_a_way_has_the_same_name_for_images_of_all_sizes(kind: str) -> None:
    """The fastest way for some sizes is used for others, even if both shares cover the whole image."""
    device, known = Device(EmulatedDriver()), set[str]()
    for sides in ((160, 160), (40, 40), (42, 40), (24, 32)):
        asked = asked_for(KINDS[kind], (1, 512, *sides), 512)
        for by in (winograd, implicit_gemm):
            told = device, asked, (0, 0), 0, None, 0
            names = [name for name, _ in by.ways(*told)]
            known |= {*names} if sides == (160, 160) else set()
            assert names
            assert known.issuperset(names)
            assert not list(by.ways(*told, "of 100 tiles"))
        for name in known:
            (found,) = [found for by in (winograd, implicit_gemm) for found, _ in by.ways(*told, name)]
            assert found == name


def test_devices_without_such_tensor_cores_multiply_by_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "AMPERE", (10, 0))
    case = Case(asked_for(cudnn.FORWARD, (1, 8, 6, 6), 8))
    assert case.ways()
    assert any(name.startswith("convolution_") and "split" not in name for name in case.launches)


@pytest.mark.parametrize("name", ["convolution_relu", "convolution_backward_data"])
def test_it_is_chosen_where_it_is_the_quickest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured against the others, and made alone from then on, in the next process too."""
    random = np.random.default_rng(3)
    x, w, b = (random.normal(size=s).astype(np.float32) for s in ((2, 8, 9, 9), (8, 8, 3, 3), 8))
    told = {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), "groups": 1}
    if name.endswith("data"):
        given, told = [x, w], {**told, "shape": x.shape}
        expected = back_to_data(x.astype(np.float64), w.astype(np.float64), x.shape, *[(1, 1)] * 3)
    else:
        given = [x, w, b]
        y = convolved(x.astype(np.float64), w.astype(np.float64), *[(1, 1)] * 3)
        expected = np.maximum(y + b[:, None, None], 0)
    counted = list[int]()

    def choose(device: Device, ways: Sequence[Any]) -> int:
        counted.append(len(ways))
        return len(tiles.SPLIT_TILES)  # behind them

    monkeypatch.setattr(convolutions, "quickest", choose)
    device = device_with(StandIn())
    for _ in range(2):
        (found,) = computed(device, request(name, given, told, "f32"), given)
        assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()
    assert len(counted) == 1
    assert device.driver.launches["filters_to_positions"] == 2  # type: ignore[attr-defined]
