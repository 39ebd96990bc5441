"""Our own kernels are verified against a library's when they first compute, and replaced if they are
wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convolution_requests import bound, device_with, request
from stand_in_cudnn import StandIn, back_to_data, back_to_weights, convolved

from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.launch import captured
from demitasse_gpu.libraries import convolutions, cudnn, held, implicit_gemm, sizes
from demitasse_gpu.libraries.held import HeldCall, Proof
from demitasse_gpu.libraries.remembered import Choices

TOLD = {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), "groups": 1}
GEOMETRY = [(1, 1)] * 3


@pytest.fixture(autouse=True)
def tiles_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make our own kernels the fastest."""
    monkeypatch.setattr(convolutions, "quickest", lambda device, ways: 0)


def asked(name: str, precision: str) -> tuple[Any, list[Any], np.ndarray]:
    """Return a request, its inputs, and the expected result in float64."""
    random = np.random.default_rng(1)
    x, w = (random.normal(size=s).astype(np.float32) for s in ((2, 8, 9, 9), (8, 8, 3, 3)))
    dy = random.normal(size=x.shape).astype(np.float32)
    if name.endswith("data"):
        told, given = {**TOLD, "shape": x.shape}, [dy, w]
        expected = back_to_data(dy.astype(np.float64), w.astype(np.float64), x.shape, *GEOMETRY)
    elif name.endswith("weights"):
        told, given = {**TOLD, "shape": w.shape}, [dy, x]
        expected = back_to_weights(dy.astype(np.float64), x.astype(np.float64), w.shape, *GEOMETRY)
    else:
        told, given = TOLD, [x, w, None]
        expected = convolved(x.astype(np.float64), w.astype(np.float64), *GEOMETRY)
    return request(name, given, told, precision), given, expected


class Step:
    """A convolution on a device, which can be called again. ``inputs`` replace its own."""

    def __init__(self, device: Device, name: str, precision: str) -> None:
        self.device = device
        self.request, inputs, self.expected = asked(name, precision)
        self.work, self.specs, self.made = bound(device, self.request, inputs)

    def __call__(self) -> float:
        """Return how far the result is from the expected one, relative to the largest number."""
        self.work()
        spec = self.specs[0]
        found = spec.layout.unpack(np.asarray(self.made[0]), spec.shape)
        return float(np.abs(found - self.expected).max() / np.abs(self.expected).max())

    @property
    def way(self) -> str:
        """The way chosen from now on."""
        return str(self.device.opened["cudnn"].chosen.get(convolutions.described(self.request)))


KINDS = ["convolution", "convolution_backward_data", "convolution_backward_weights"]
NEAR = {"f32": 1e-5, "tf32": 2e-3}


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make tiles' results a tenth too large. Returns the names of those that were called."""
    honest, called = implicit_gemm.ways, list[str]()

    def ways(device: Device, asked: Any, given: Any, made: int, *rest: Any) -> Iterator[tuple[str, Any]]:
        shapes = {cudnn.FORWARD: asked.y, cudnn.BACKWARD_DATA: asked.x}
        array = DeviceArray(device, made, shapes.get(asked.kind, asked.w), np.float32)
        for name, launches in honest(device, asked, given, made, *rest):

            def spoil(stream: int, name: str = name) -> None:
                called.append(name)
                array[...] = np.asarray(array) * np.float32(1.1)

            yield name, [*launches, spoil]

    monkeypatch.setattr(implicit_gemm, "ways", ways)
    return called


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("name", KINDS)
def test_what_agrees_is_called_alone_from_then_on(
    name: str, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = StandIn()
    first, second = (
        Step(device, name, precision) for device in [device_with(library)] for _ in range(2)
    )
    assert first.way.startswith("tiles ")
    assert not library.executed
    assert first() < NEAR[precision]
    assert len(library.executed) == 1, "held against cuDNN once"
    assert max(first(), second(), second()) < NEAR[precision]
    assert len(library.executed) == 1, "and for all that are alike"
    assert first.way.startswith("tiles ") and not caplog.records


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("name", KINDS)
def test_what_does_not_is_left_out_and_told(
    name: str, precision: str, spoilt: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Also by works that were bound before it was known, and by all later ones."""
    device = device_with(StandIn())
    first, second = (Step(device, name, precision) for _ in range(2))
    assert first() < NEAR[precision], "its first results are the library's, too"
    assert len(spoilt) == 1
    assert max(first(), second(), Step(device, name, precision)()) < NEAR[precision]
    assert len(spoilt) == 1, "nobody calls it any more"
    assert first.way.startswith("cuDNN ")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert f"in {precision}: our kernel 'tiles " in message
    assert re.search(
        r"makes numbers that differ by 0\.(1|099) of the largest from those of cuDNN ", message
    )
    assert "8x8x3x3" in message and "gpu:0" in message


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("name", KINDS)
def test_what_leaves_a_part_as_it_was_is_left_out(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the library wrote there a moment before must not count as our result."""
    honest = implicit_gemm.ways

    def ways(device: Device, asked: Any, given: Any, made: int, *rest: Any) -> Iterator[tuple[str, Any]]:
        shapes = {cudnn.FORWARD: asked.y, cudnn.BACKWARD_DATA: asked.x}
        array = DeviceArray(device, made, shapes.get(asked.kind, asked.w), np.float32).reshape(-1)
        for name, launches in honest(device, asked, given, made, *rest):
            kept: list[np.ndarray] = []
            keep: Any = lambda stream, kept=kept: kept.append(np.asarray(array[-64:]))  # noqa: E731
            put_back: Any = lambda stream, kept=kept: array.__setitem__(  # noqa: E731
                slice(array.size - 64, None), kept.pop()
            )
            yield name, [keep, *launches, put_back]

    monkeypatch.setattr(implicit_gemm, "ways", ways)
    step = Step(device_with(StandIn()), name, precision)
    assert step() < NEAR[precision]
    assert step.way.startswith("cuDNN ")
    (record,) = caplog.records
    assert "are not finite, or missing, unlike those of cuDNN " in record.getMessage()


@pytest.mark.parametrize("lost", [0, 3], ids=["right", "of which three points are lost"])
def test_a_sum_that_is_nearly_nothing_is_held_by_what_it_is_of(
    lost: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a filter's gradient before a normalisation, whose gradients add up to nothing, if images
    differ little from their mean: all of it may be rounding, on which two kernels need not agree."""
    random = np.random.default_rng(4)
    x = (1 + 1e-3 * random.normal(size=(2, 8, 9, 9))).astype(np.float32)
    dy = random.normal(size=(2, 8, 9, 9))
    dy = (dy - dy.mean((0, 2, 3), keepdims=True)).astype(np.float32)
    told = {"stride": (1, 1), "pad": (0, 0), "dilation": (1, 1), "groups": 1, "shape": (8, 8, 1, 1)}
    honest = implicit_gemm.ways

    def ways(device: Device, asked: Any, given: Any, made: int, *rest: Any) -> Iterator[tuple[str, Any]]:
        array = DeviceArray(device, made, asked.w, np.float32)
        part = np.einsum("now,niw->oi", dy[:, :, 0, :lost], x[:, :, 0, :lost]) if lost else 0
        for name, launches in honest(device, asked, given, made, *rest):

            def lose(stream: int) -> None:
                whole = np.asarray(array)
                array[...] = whole - np.reshape(part, (8, 8, 1, 1)) if lost else whole

            yield name, [*launches, lose]

    monkeypatch.setattr(implicit_gemm, "ways", ways)
    device = device_with(StandIn())
    asked = request("convolution_backward_weights", [dy, x], told, "tf32")
    work, _, (made, *_) = bound(device, asked, [dy, x])
    work()
    exact = np.einsum("nohw,nihw->oi", dy.astype(np.float64), x.astype(np.float64)).reshape(made.shape)
    chosen = str(device.opened["cudnn"].chosen.get(convolutions.described(asked)))
    if lost:
        assert chosen.startswith("cuDNN ") and len(caplog.records) == 1
        return
    assert chosen.startswith("tiles ") and not caplog.records
    off = np.abs(np.asarray(made) - exact).max() / np.abs(exact).max()
    assert off > held.NEAR["tf32"], "or nothing was shown"


def test_what_is_left_out_of_one_size_is_of_others_too(spoilt: list[str]) -> None:
    """Some sizes of single images are measured, and the fastest way for them serves other sizes, for
    which it is not verified again."""
    device = device_with(StandIn())
    random = np.random.default_rng(3)
    w = random.normal(size=(8, 8, 3, 3)).astype(np.float32)

    def off(rows: int) -> float:
        x = random.normal(size=(1, 8, rows, 9)).astype(np.float32)
        work, specs, made = bound(
            device, request("convolution", [x, w, None], TOLD, "f32"), [x, w, None]
        )
        work()
        found = specs[0].layout.unpack(np.asarray(made[0]), specs[0].shape)
        expected = convolved(x.astype(np.float64), w.astype(np.float64), *GEOMETRY)
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    measured = range(9, 9 + sizes.SIZES)
    assert max(map(off, measured)) < NEAR["f32"]
    assert len(spoilt) == len(measured), "each was held against cuDNN"
    assert max(off(rows) for rows in (20, 10, 21)) < NEAR["f32"]
    assert len(spoilt) == len(measured)


def test_numbers_that_are_all_zero_prove_nothing(spoilt: list[str]) -> None:
    device = device_with(StandIn())
    step = Step(device, "convolution", "f32")
    x = np.asarray(step.specs[0].layout.pack(np.ones((2, 8, 9, 9), np.float32)))
    (held,) = [step.work] if isinstance(step.work, HeldCall) else []
    images = held._held[0]  # type: ignore[index]
    kept = np.asarray(images)
    images[...] = np.zeros_like(x)
    step.work()
    assert step.way.startswith("tiles "), "not known yet"
    images[...] = kept
    assert step() < NEAR["f32"]
    assert step.way.startswith("cuDNN ")


def test_nothing_is_compared_while_a_graph_is_captured(spoilt: list[str]) -> None:
    library = StandIn()
    device = device_with(library)
    calls: list[int] = []
    proof = Proof("here", "tiles 1", "cuDNN 1", 1e-3, 9, lambda holds: calls.append(int(holds)))
    made = empty(device, (4,), "float32")
    own, other = (lambda stream: calls.append(7)), (lambda stream: calls.append(8))
    work = HeldCall(device, own, other, made, proof, ())
    graph = captured(device, work)
    device.driver.end_graph(graph)
    assert calls == [7] and proof.holds is None and not device.capturing


def test_who_fails_judges_nobody(caplog: pytest.LogCaptureFixture) -> None:
    device = device_with(StandIn())
    calls: list[str] = []

    def failing(stream: int) -> None:
        calls.append("other")
        raise MemoryError("there is none left")

    proof = Proof("here", "tiles 1", "cuDNN 1", 1e-3, 9, lambda holds: calls.append("settled"))
    made = empty(device, (4,), "float32")
    work = HeldCall(device, lambda stream: calls.append("own"), failing, made, proof, ())
    work()
    work()
    assert calls == ["other", "own", "own"]
    assert "'tiles 1' cannot be compared with cuDNN 1: there is none left" in caplog.text


def test_only_what_is_proved_is_kept_for_later_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = device_with(StandIn())
    library = device.opened["cudnn"]
    library.chosen = Choices(device, "a-library")
    step = Step(device, "convolution", "f32")
    library.chosen.write()
    assert not list(tmp_path.rglob("*.json"))
    step()
    library.chosen.write()
    (kept,) = tmp_path.rglob("*.json")
    assert "tiles " in kept.read_text()
    again = device_with(executed := StandIn())
    again.opened["cudnn"].chosen = Choices(again, "a-library")
    assert Step(again, "convolution", "f32")() < NEAR["f32"]
    assert not executed.executed, "it was proved before"


@pytest.mark.parametrize(
    ("found", "expected", "distance"),
    [
        ([1.0, -2.0], [1.0, -2.0], 0.0),
        ([1.0, -1.0], [1.0, -2.0], 0.5),
        ([1.0, np.nan], [1.0, -2.0], np.inf),
        ([1.0, np.inf], [1.0, -2.0], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.nan),
        ([np.inf, 2.0], [np.inf, 2.0], np.nan),
        ([0.0, 2.0], [0.0, 0.0], np.nan),
        ([0.0, np.nan], [0.0, 0.0], np.inf),
    ],
)
def test_the_distance(found: list[float], expected: list[float], distance: float) -> None:
    parts: Sequence[Sequence[np.ndarray]] = [
        [np.array(each[:1], np.float32), np.array(each[1:], np.float32)] for each in (found, expected)
    ]
    assert held.apart(*parts) == pytest.approx(distance, nan_ok=True)


def test_of_what_is_large_the_first_and_the_last_and_parts_between_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held, "PIECE", 5)
    device = device_with(StandIn())
    made = empty(device, (4, 11), "float32")
    made[...] = np.arange(44, dtype=np.float32).reshape(4, 11)
    assert [part.tolist() for part in held.pieces(made)] == [
        [*range(5)],
        [*range(13, 18)],
        [*range(26, 31)],
        [*range(39, 44)],
    ]
    halves = empty(device, (3,), "uint16")
    halves[...] = np.array([0x3F80, 0xC000, 0x0000], np.uint16)
    assert [part.tolist() for part in held.pieces(halves)] == [[1.0, -2.0, 0.0]]


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("name", KINDS)
def test_they_can_be_left_out(name: str, precision: str) -> None:
    """Then exact float32 uses planes, as the library's engines want."""
    request, given, expected = asked(name, precision)
    (candidate,) = convolutions.candidates(request, own=False)
    assert "CUDA" not in candidate.kernel
    device = device_with(library := StandIn())
    work, specs, made = bound(device, request, given, candidate)
    work()
    assert len(library.executed) == 1
    described = convolutions.described(request, own=False)
    assert device.opened["cudnn"].chosen.get(described).startswith("cuDNN ")
    assert (specs[0].layout.order == ()) == (precision == "f32")
    found = specs[0].layout.unpack(np.asarray(made[0]), specs[0].shape)
    assert np.abs(found - expected).max() < NEAR[precision] * np.abs(expected).max()
