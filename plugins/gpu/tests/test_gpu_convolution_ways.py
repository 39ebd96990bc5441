"""Ways to compute a convolution: which are tried, kept for later processes, and forgotten."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from convolution_requests import (
    GEOMETRIES,
    TOLERANCE,
    bound,
    computed,
    device_with,
    geometry,
    operands,
    request,
)
from stand_in_cublaslt import StandInBlas
from stand_in_cudnn import StandIn, back_to_data, back_to_weights, convolved

from demitasse import Request
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import convolutions, copies, cublaslt, cudnn
from demitasse_gpu.libraries.convolutions import Convolution
from demitasse_gpu.libraries.tiles import SPLIT_TILES, TF32_TILES


def check_every_way(
    shapes: Sequence[tuple[int, ...]],
    told: dict[str, Any],
    precision: str,
    tried: int,
    patch: pytest.MonkeyPatch,
) -> list[Device]:
    """Check that each way to convolve, and each to make the filters' gradient, gives NumPy's numbers:
    ``tried`` plans, and for the former as many with bias and ReLU. ``shapes`` are those of x, w and b.
    Return the devices that computed."""
    random, within, devices = np.random.default_rng(5), TOLERANCE[precision], list[Device]()
    x, w, b = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    dy = random.normal(size=y.shape).astype(np.float32)
    dw, db = back_to_weights(dy.astype(np.float64), x, w.shape, *geometry(told)), dy.sum((0, 2, 3))
    forward = request("convolution_relu", [x, w, b], told, precision)
    asked = request("convolution_backward_weights", [dy, x], {**told, "shape": w.shape}, precision)
    counts = set[int]()
    for number in range(2 * tried):
        devices.append(device_with(StandIn()))

        def choose(device: Device, ways: Sequence[Any], number: int = number) -> int:
            counts.add(len(ways))
            return min(number, len(ways) - 1)

        patch.setattr(convolutions, "quickest", choose)
        (found,) = computed(devices[-1], forward, [x, w, b])
        assert np.allclose(found, np.maximum(y + b[:, None, None], 0), atol=within * np.abs(y).max())
        found, sums = computed(devices[-1], asked, [dy, x])
        assert np.allclose(found, dw, atol=within * np.abs(dw).max())
        assert np.allclose(sums, db, atol=within * np.abs(db).max())
    assert counts == {2 * tried, tried}
    return devices


@pytest.mark.parametrize("told", [GEOMETRIES["plain"], {**GEOMETRIES["all"], "groups": 1}])
@pytest.mark.parametrize(
    ("precision", "channels", "tried"),
    [
        *(("f32", 3, [3]), ("tf32", 1, [1, 4]), ("tf32", 3, [3, 4]), ("tf32", 4, [4]), ("tf32", 5, [5])),
        *(("bf16", 3, [3, 4, 8]), ("bf16", 4, [4, 8]), ("bf16", 5, [5, 8]), ("bf16", 8, [8])),
    ],
)
def test_images_of_few_channels_are_tried_with_more(
    precision: str,
    channels: int,
    tried: list[int],
    told: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = (2, channels, 7, 6), (6, channels, 3, 2), (6,)
    check_every_way(shapes, told, precision, len(tried), monkeypatch)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(
    ("stride", "kernel", "pad", "channels", "image"),
    [
        *(
            (2, (7, 7), (3, 3), 3, (15, 12)),
            (2, (4, 2), (1, 0), 1, (9, 8)),
            (2, (3, 5), (0, 2), 3, (7, 9)),
        ),
        *((3, (6, 3), (2, 1), 1, (11, 13)), (3, (7, 2), (3, 0), 3, (14, 9))),
        *((4, (11, 11), (0, 0), 3, (23, 27)), (4, (8, 5), (2, 3), 1, (17, 14))),
    ],
)
def test_squares_of_points_are_tried_as_channels(
    stride: int,
    kernel: tuple[int, int],
    pad: tuple[int, int],
    channels: int,
    image: tuple[int, int],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"stride": (stride, stride), "pad": pad, "dilation": (1, 1), "groups": 1}
    shapes = (2, channels, *image), (5, channels, *kernel), (5,)
    tried = 4 if precision == "bf16" else 3
    for number, device in enumerate(check_every_way(shapes, told, precision, tried, monkeypatch)):
        launched = device.driver.launches.get("gather_points", 0)  # type: ignore[attr-defined]
        assert launched == 2 * (number >= 2 * tried - 2) + (number >= tried - 1)


def found_in(asked: Request) -> Convolution:
    found = convolutions.described(asked)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "channels", "told", "precision"),
    [
        (cudnn.FORWARD, 3, {"stride": (1, 1)}, "tf32"),
        (cudnn.FORWARD, 3, {"stride": (2, 1)}, "tf32"),
        (cudnn.FORWARD, 3, {"dilation": (2, 2)}, "tf32"),
        (cudnn.FORWARD, 4, {"groups": 2}, "tf32"),
        (cudnn.FORWARD, 8, {}, "bf16"),
        (cudnn.FORWARD, 3, {}, "f32"),
        (cudnn.BACKWARD_DATA, 3, {}, "tf32"),
    ],
)
def test_squares_of_points_are_not_tried_where_they_are_no_channels(
    kind: int, channels: int, told: dict[str, Any], precision: str
) -> None:
    told = {"stride": (2, 2), "pad": (1, 1), "dilation": (1, 1), "groups": 1, **told}
    w = np.ones((6, channels // told["groups"], 3, 3), np.float32)
    x = np.ones((2, channels, 9, 9), np.float32)
    if kind == cudnn.BACKWARD_DATA:
        y = convolved(x, w, *geometry(told))
        asked = request("convolution_backward_data", [y, w], {**told, "shape": x.shape}, precision)
    else:
        asked = request("convolution", [x, w, None], told, precision)
    tried = copies.tried(found_in(asked))
    assert not any(isinstance(each, copies.SpaceToDepth) for each in tried)


def test_descriptors_are_ended_by_who_waits_and_not_where_they_are_forgotten() -> None:
    """They may be dropped in a thread of CUDA's, or in one that captures works."""
    library = StandIn([[], [], []])
    device, (x, w, _) = device_with(library), operands(1)
    asked = request("convolution", [x, w, None], GEOMETRIES["plain"], "tf32")
    work, _, _ = bound(device, asked, [x, w, None])
    device.synchronise()
    (plan,) = library.ran - {*library.ended}  # the others were only tried
    del work
    gc.collect()
    assert plan not in library.ended
    device.synchronise()
    assert {*library.ended} == {*library.descriptors}, "all of them"


def test_plans_that_were_only_tried_are_forgotten() -> None:
    """Each has code on the device, and nets with many sizes have many plans."""
    library = StandIn([[], [], []])
    device, (x, w, _) = device_with(library), operands(1)
    known = device.opened["cudnn"].known
    asked = request("convolution", [x, w, None], GEOMETRIES["plain"], "tf32")
    work, _, _ = bound(device, asked, [x, w, None])
    gc.collect()
    assert [len(plans) for plans in known.values()] == [1]
    again, _, _ = bound(device, asked, [x, w, None])
    del work
    gc.collect()
    assert [len(plans) for plans in known.values()] == [1], "both had the same"
    del again
    gc.collect()
    assert [len(plans) for plans in known.values()] == [0]


def test_a_convolution_that_was_measured_is_not_measured_again() -> None:
    library = StandIn([[], []])
    device, (x, w, _) = device_with(library), operands(1)
    asked = request("convolution", [x, w, None], {}, "tf32")
    computed(device, asked, [x, w, None])
    before = len(library.executed)
    computed(device, asked, [x, w, None])
    assert len(library.executed) == before + 1


def test_images_of_many_sizes_are_measured_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest way for one size serves others of similar size. Batches are always measured."""
    measured = list[int]()

    def choose(device: Device, found: Sequence[Any]) -> int:
        measured.append(len(found))
        return len(found) - 1

    monkeypatch.setattr(convolutions, "quickest", choose)
    library = StandIn([[], []])
    device = device_with(library)
    random, told = np.random.default_rng(2), GEOMETRIES["all"]
    w = random.normal(size=(6, 2, 3, 2)).astype(np.float32)

    def measures(rows: int, samples: int = 1) -> bool:
        x = random.normal(size=(samples, 4, rows, 20)).astype(np.float32)
        asked = request("convolution", [x, w, None], told, "tf32")
        expected = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
        measured.clear()
        (found,) = computed(device, asked, [x, w, None])
        assert np.allclose(found, expected, atol=1e-3 * np.abs(expected).max())
        return bool(measured)

    assert [measures(rows) for rows in (20, 22, 24, 26)] == [True] * 4
    assert [measures(rows) for rows in (28, 18, 60, 22, 400, 1800)] == [False] * 4 + [True] * 2
    assert [measures(1500), measures(1500, 2)] == [False, True]
    again = device_with(StandIn([[], []]))
    again.opened["cudnn"].chosen = device.opened["cudnn"].chosen
    device = again
    assert not any(measures(rows) for rows in (20, 28, 18, 60))


def plans_of(library: StandIn) -> int:
    return sum(each["kind"] == cudnn.PLAN for each in library.descriptors.values())


NAMED = {
    "convolution": ["tiles tf32_2x2", "cuDNN 3.1", "copy 0: tiles tf32_1x2", "copy 0: cuDNN 3.0"],
    "convolution_relu": ["cuDNN 3.0", "fused cuDNN 3.1", "copy 0: fused cuDNN 3.0"],
    "convolution_backward_data": ["tiles tf32_2x1", "cuDNN 3.0"],
    "convolution_backward_weights": ["tiles tf32_2x2 in few parts", "cuDNN 3.1", "copy 0: cuDNN 3.1"],
}


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_the_way_that_an_earlier_process_found_is_made_alone(
    name: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, told = np.random.default_rng(2), GEOMETRIES["plain"]
    of_x, of_w = ((2, 3, 9, 9), (8, 3, 3, 3)) if few else ((2, 8, 9, 9), (8, 8, 3, 3))
    x, w, b = (random.normal(size=shape).astype(np.float32) for shape in (of_x, of_w, (8,)))
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told))
    dy = random.normal(size=y.shape).astype(np.float32)
    if name.endswith("data"):
        expected, given = back_to_data(dy.astype(np.float64), w, x.shape, *geometry(told)), [dy, w]
        told = {**told, "shape": x.shape}
    elif name.endswith("weights"):
        expected, given = back_to_weights(dy.astype(np.float64), x, w.shape, *geometry(told)), [dy, x]
        told = {**told, "shape": w.shape}
    else:
        given = [x, w, b if name.endswith("relu") else None]
        expected = np.maximum(y + b[:, None, None], 0) if name.endswith("relu") else y
    asked = request(name, given, told, "tf32")
    ways: list[str] = []

    def choose(device: Device, found: Sequence[Any]) -> int:
        ways.append(f"one of {len(found)}")
        return 0

    monkeypatch.setattr(convolutions, "quickest", choose)
    for way in NAMED[name]:
        if (few and way.startswith("tiles")) or (not few and way.startswith("copy")):
            continue
        library = StandIn([[], []])
        device = device_with(library)
        described = convolutions.described(asked)
        device.opened["cudnn"].chosen.keep(described, way)
        found = computed(device, asked, given)[0]
        assert np.allclose(found, expected, atol=1e-3 * np.abs(expected).max()), way
        assert (ways, plans_of(library)) == ([], int("cuDNN" in way)), way
        other = device_with(library := StandIn([[], []]))
        other.opened["cudnn"].chosen.keep(described, f"{way}9")
        computed(other, asked, given)
        assert len(ways) == 1, "there is no such way any more"
        assert plans_of(library) > 1
        assert other.opened["cudnn"].chosen.get(described) != f"{way}9"
        ways.clear()


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("plain", [False, True])
def test_filters_that_are_points_are_tried_as_products(
    precision: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By cuBLASLt; if it has no epilogues, only the products that need none."""
    random, within, told = np.random.default_rng(6), TOLERANCE[precision], GEOMETRIES["plain"]
    x, w, b = (
        random.normal(size=shape).astype(np.float32) for shape in ((3, 16, 7, 5), (8, 16, 1, 1), (8,))
    )
    y = convolved(x.astype(np.float64), w.astype(np.float64), *geometry(told)) + b[:, None, None]
    dy = random.normal(size=y.shape).astype(np.float32)
    backs = {
        "convolution_backward_data": (
            w,
            back_to_data(dy.astype(np.float64), w, x.shape, *geometry(told)),
        ),
        "convolution_backward_weights": (
            x,
            back_to_weights(dy.astype(np.float64), x, w.shape, *geometry(told)),
        ),
    }
    device, library = device_with(StandIn()), StandInBlas()
    library.plain = plain
    device.opened["cublasLt"] = cublaslt.CublasLt(device, library)
    before = {"f32": len(SPLIT_TILES), "tf32": len(TF32_TILES), "bf16": 0}[precision]
    monkeypatch.setattr(convolutions, "quickest", lambda device, ways: before)
    forward = request("convolution_relu", [x, w, b], told, precision)
    (candidate,) = convolutions.candidates(forward)
    assert candidate.kernel == f"cuDNN or cuBLASLt{' or CUDA' * (precision != 'bf16')} {precision}"
    (found,) = computed(device, forward, [x, w, b])
    assert np.allclose(found, np.maximum(y, 0), atol=within * np.abs(y).max())
    assert bool(library.products) != plain
    for name, (other, expected) in backs.items():
        library.products = 0
        shape = x.shape if name.endswith("data") else w.shape
        asked = request(name, [dy, other], {**told, "shape": shape}, precision)
        found = computed(device, asked, [dy, other])[0]
        assert np.allclose(found, expected, atol=within * np.abs(expected).max())
        assert library.products
