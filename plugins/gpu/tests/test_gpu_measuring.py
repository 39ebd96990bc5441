"""The fastest of several ways is found by the device's time, not by the host's."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cuda_on_cpu.driver import EmulatedDriver

from demitasse import PlanError, WorkerError
from demitasse_gpu.array import array_function, empty
from demitasse_gpu.device import Device
from demitasse_gpu.in_turn import InTurn
from demitasse_gpu.launch import Launch, in_order
from demitasse_gpu.libraries import measuring
from demitasse_gpu.libraries.measuring import MOST, ROUNDS, quickest

ENQUEUE = 5e-6
"""The host's seconds for each call of the driver."""


class Clocked(EmulatedDriver):
    """A driver with clocks for host and device: what is enqueued begins when the device has finished
    everything before it, and not before it is enqueued. ``refused`` is where captures fail: at their
    ``begin``, at their ``end``, or nowhere. ``replayed`` has the number of works in each graph that was
    launched."""

    def __init__(self) -> None:
        super().__init__()
        self.host = self.device = 0.0
        self.refused = ""
        self.replayed: list[int] = []
        self.enqueued = 0

    def work(self, stream: int, seconds: float, host: float = ENQUEUE) -> None:
        """Enqueue a kernel that takes ``seconds``, and ``host`` seconds of the host."""
        self.host += host
        self.enqueued += 1
        self._do(stream, lambda: self._pass(seconds))

    def record(self, event: int, stream: int) -> None:
        self.host += ENQUEUE
        self._do(stream, lambda: self._times.__setitem__(event, self._pass(0)))

    def wait(self, event: int) -> None:
        assert not self._captured
        self.host = max(self.host, self.device)

    def allocate(self, nbytes: int) -> int:
        assert not self._captured
        return super().allocate(nbytes)

    def begin_capture(self, stream: int) -> None:
        if self.refused == "begin":
            raise WorkerError("gpu:0: begin capture: not permitted")
        super().begin_capture(stream)

    def end_capture(self, stream: int) -> int:
        graph = super().end_capture(stream)
        if self.refused == "end":
            self.end_graph(graph)
            raise WorkerError("gpu:0: end capture: invalidated")
        return graph

    def launch_graph(self, graph: int, stream: int) -> None:
        self.host += ENQUEUE
        self.replayed.append(len(self._graphs[graph]))
        super().launch_graph(graph, stream)

    def _pass(self, seconds: float) -> float:
        self.device = max(self.device, self.host) + seconds
        return self.device


@pytest.fixture
def device() -> Device:
    return Device(Clocked())


def clocked(device: Device) -> Any:
    """Return the driver of a device."""
    return cast(InTurn, device.driver).driver


@pytest.fixture(autouse=True)
def nothing_is_left(device: Device) -> Any:
    """Whatever happens, graphs and events are destroyed, and no capture is left open."""
    yield
    driver, in_turn = clocked(device), cast(InTurn, device.driver)
    assert (driver._graphs, driver._captured) == ({}, {})
    assert {*driver._times} == {*in_turn._events}, "but for what waits again"


def way(device: Device, *kernels: float, host: float = ENQUEUE) -> Callable[[int], None]:
    """Return a way of kernels that take the given seconds."""
    driver = clocked(device)

    def run(stream: int) -> None:
        for seconds in kernels:
            driver.work(stream, seconds, host)

    return run


def failing(device: Device, error: Exception, captured_only: bool = False) -> Callable[[int], None]:
    """Return a fast way that raises an error, always or only while it is captured."""
    driver = clocked(device)

    def run(stream: int) -> None:
        driver.work(stream, 1e-6)
        if driver._captured or not captured_only:
            raise error

    return run


def test_the_one_whose_kernels_are_quickest_is_taken_however_long_the_host_takes(device: Device) -> None:
    slow_to_enqueue = way(device, 4e-6, host=90e-6)
    in_two = way(device, 2e-6, 4e-6, host=40e-6)
    assert quickest(device, [way(device, 7e-6), in_two, way(device, 8e-6)]) == 1
    assert quickest(device, [way(device, 7e-6), in_two, slow_to_enqueue]) == 2


@pytest.mark.parametrize(
    ("seconds", "calls"), [(1e-6, MOST), (20e-6, MOST), (90e-6, 6), (0.4e-3, 2), (3e-3, 1)]
)
def test_short_calls_are_repeated_until_they_can_be_timed(
    device: Device, seconds: float, calls: int
) -> None:
    quickest(device, [way(device, seconds), way(device, seconds)])
    assert clocked(device).replayed == [calls] * 2 * (ROUNDS + 1)


def test_ways_are_forgotten_with_who_tried_them_one_that_failed_too(device: Device) -> None:
    """They hold plans, which have code on the device, so this must not depend on a garbage
    collection."""
    gc.collect()
    gc.disable()
    try:
        ways = [way(device, 2e-6), failing(device, PlanError("no such engine")), way(device, 1e-6)]
        assert quickest(device, ways) == 2
        known = [weakref.ref(each) for each in ways]
        del ways
        assert [each() for each in known] == [None] * 3
    finally:
        gc.enable()


def test_a_way_that_is_much_slower_is_left_after_two_calls(device: Device) -> None:
    driver = clocked(device)
    assert quickest(device, [way(device, 2e-3), way(device, 5e-3), way(device, 1.5e-3)]) == 2
    assert driver.replayed == [1] * 2 * (ROUNDS + 1)
    driver.enqueued = 0
    assert quickest(device, [way(device, 5e-3), way(device, 11e-3)]) == 0
    assert driver.enqueued == 3 + 2, "the first one's graph has the third call"


def test_a_short_way_is_not_left_for_what_the_host_takes(device: Device) -> None:
    assert quickest(device, [way(device, 8e-6), way(device, 7e-6, host=200e-6)]) == 1


@pytest.mark.parametrize("refused", ["begin", "end"])
def test_where_nothing_can_be_captured_several_calls_are_timed(device: Device, refused: str) -> None:
    driver = clocked(device)
    driver.refused = refused
    assert quickest(device, [way(device, 9e-6), way(device, 7e-6), way(device, 8e-6)]) == 1
    assert driver.replayed == []
    assert driver.enqueued >= 3 * (ROUNDS + 1) * MOST


def test_a_way_that_cannot_be_captured_is_taken_where_no_other_can(device: Device) -> None:
    alone = failing(device, PlanError("cuDNN: not while a stream is captured"), captured_only=True)
    bad = failing(device, PlanError("it failed to execute"))
    assert quickest(device, [alone, way(device, 30e-6)]) == 1
    assert quickest(device, [bad, alone]) == 1


def test_without_graphs_nothing_is_captured(device: Device) -> None:
    device.graphs = False
    assert quickest(device, [way(device, 9e-6), way(device, 7e-6)]) == 1
    assert clocked(device).replayed == []


def test_on_a_device_that_another_thread_uses_nothing_is_captured(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    add = array_function(device, "add_float64")
    row = in_order([Launch(device, add, 1, 32, (total, x, np.int64(5)))] * 2)
    called, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (row(), called.set(), end.wait(20)))
    thread.start()
    called.wait(20)
    assert quickest(device, [way(device, 9e-6), way(device, 7e-6)]) == 1
    assert clocked(device).replayed == []
    end.set()
    thread.join()
    assert quickest(device, [way(device, 9e-6), way(device, 7e-6)]) == 1
    assert len(clocked(device).replayed) == 2 * (ROUNDS + 1)


def test_a_way_that_fails_is_left(device: Device) -> None:
    bad = failing(device, PlanError("it failed to execute"))
    assert quickest(device, [bad, way(device, 9e-6), bad, way(device, 7e-6)]) == 3
    with pytest.raises(PlanError, match="it failed to execute"):
        quickest(device, [bad, bad])


def test_a_device_that_is_lost_is_said(device: Device) -> None:
    lost = failing(device, WorkerError("gpu:0: the device was lost"), captured_only=True)
    driver = clocked(device)

    def wait(event: int) -> None:
        raise WorkerError("gpu:0: the device was lost")

    driver.wait = wait
    with pytest.raises(WorkerError, match="lost"):
        quickest(device, [lost, way(device, 9e-6)])


def test_many_launches_are_not_left_for_what_the_host_takes(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a graph, 100 launches take only the device's time."""
    driver = clocked(device)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: driver.host))
    assert quickest(device, [way(device, 0.4e-3), way(device, *[1e-6] * 100, host=20e-6)]) == 1


@pytest.mark.parametrize("captured_only", [False, True])
def test_a_way_that_has_no_memory_is_left(device: Device, captured_only: bool) -> None:
    bad = failing(device, MemoryError("out of memory"), captured_only)
    assert quickest(device, [bad, way(device, 9e-6), bad]) == 1


def test_memory_that_no_way_has_is_said(device: Device) -> None:
    bad = failing(device, MemoryError("out of memory"))
    with pytest.raises(MemoryError, match="out of memory"):
        quickest(device, [bad, bad])


def test_one_way_alone_is_not_tried(device: Device) -> None:
    assert quickest(device, [failing(device, PlanError("never called"))]) == 0
