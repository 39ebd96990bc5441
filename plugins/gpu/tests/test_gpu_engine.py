"""The streams of a device do what an engine promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threaded_driver import ThreadedDriver

from demitasse import check_engine
from demitasse_gpu import engine as engines
from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.engine import DeviceEngine


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [Device(ThreadedDriver(number)) for number in range(2)]


def array_in(device: Device, values: Any) -> DeviceArray:
    values = np.asarray(values)
    made = empty(device, values.shape, values.dtype)
    made[...] = values
    device.synchronise()
    return made


def test_an_engine_over_a_driver_whose_streams_are_threads(
    devices: list[Device],
) -> None:
    first, _ = devices
    check_engine(lambda: DeviceEngine(first), lambda values: array_in(first, values))


class CallError(Exception):
    """Raised by a call."""


def fail() -> None:
    raise CallError("this call fails")


def test_calls_behind_one_that_failed_are_not_made_and_later_events_raise_its_error(
    devices: list[Device],
) -> None:
    engine, done = DeviceEngine(devices[0]), list[int]()
    stream = engine.stream("failing")
    stream.call(lambda: done.append(1))
    before = stream.record()
    stream.call(fail)
    stream.call(lambda: done.append(2))
    after = stream.record()
    before.wait()
    for wait in (after.wait, stream.synchronise):
        with pytest.raises(CallError, match="this call fails"):
            wait()
    assert done == [1]
    engine.close()


def test_nothing_is_copied_in_a_stream_that_is_known_to_have_failed(devices: list[Device]) -> None:
    engine = DeviceEngine(devices[0])
    stream, back = engine.stream("failing"), engine.pinned((3,), "float32")
    stream.call(fail)
    with pytest.raises(CallError):
        stream.synchronise()
    stream.copy(back, array_in(devices[0], np.ones(3, np.float32)))
    engine.close()
    assert not back.any()


def test_a_stream_that_waits_for_one_that_failed_has_failed_with_it(devices: list[Device]) -> None:
    engine, done = DeviceEngine(devices[0]), list[int]()
    first, second = engine.stream("first"), engine.stream("second")
    second.call(lambda: done.append(1))
    early = second.record()
    first.call(fail)
    second.wait(first.record())
    second.call(lambda: done.append(2))
    early.wait()
    with pytest.raises(CallError):
        second.synchronise()
    assert done == [1]
    engine.close()


def test_copies_go_from_one_device_to_another(devices: list[Device]) -> None:
    first, second = devices
    engine = DeviceEngine(first)
    source, target = array_in(first, np.arange(5.0)), array_in(second, np.zeros(5))
    engine.stream("between").copy(target, source)
    engine.stream("between").synchronise()
    assert np.array_equal(np.asarray(target), np.arange(5.0))
    engine.close()


def test_times_of_events_stay_true_when_the_first_event_is_long_ago(
    devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ANCHOR_SECONDS", 0.0)
    engine = DeviceEngine(devices[0])
    events = [engine.default.record() for _ in range(20)]
    events[-1].wait()
    times = [event.seconds for event in events]
    told = [devices[0].driver.seconds_between(events[0].event, event.event) for event in events]
    assert np.allclose(np.subtract(times, times[0]), told, atol=1e-9)
    engine.close()


def test_a_long_run_keeps_one_event_to_tell_the_time_by(
    devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ANCHOR_SECONDS", -1.0)
    engine = DeviceEngine(devices[0])
    stream = engine.stream("long")
    first, events = engine.anchor(), [stream.record() for _ in range(1100)]
    stream.synchronise()
    assert events[0].seconds <= events[-1].seconds
    last = engine.anchor()
    assert last.before is not None
    assert last.before.before is None
    assert first.before is None


def test_an_event_is_recorded_while_the_default_stream_is_captured(
    devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that copies beside a worker puts nothing into the graph that the worker captures."""
    monkeypatch.setattr(engines, "ANCHOR_SECONDS", 0.0)
    device, engine = devices[0], DeviceEngine(devices[0])
    before = engine.stream("h2d").record()
    device.driver.begin_capture(device.stream)
    event = engine.stream("h2d").record()
    event.wait()
    assert event.seconds >= before.seconds
    assert device.driver._captured[device.stream] == []  # type: ignore[attr-defined]
    device.driver.end_graph(device.driver.end_capture(device.stream))
    engine.close()


def test_a_device_has_one_default_stream_and_an_engine_leaves_it_open(devices: list[Device]) -> None:
    for _ in range(2):
        engine = DeviceEngine(devices[0])
        assert getattr(engine.default, "handle", None) == devices[0].stream
        engine.close()
    assert array_in(devices[0], [1.0, 2.0]).sum() == 3.0


def test_pinned_memory_is_kept_for_the_next_when_its_last_view_is_gone(devices: list[Device]) -> None:
    engine = DeviceEngine(devices[0])
    part = engine.pinned((4, 4), "float32")[1:3]
    part[...] = 7
    first = part.ctypes.data - 16
    other = engine.pinned((4, 4), "float32")
    assert other.ctypes.data != first
    del part
    again = engine.pinned((16,), "float32")
    assert again.ctypes.data == first
    assert not again.any()
    large = engine.pinned((5000,), "uint8")
    assert len(large) == 5000
    engine.close()
