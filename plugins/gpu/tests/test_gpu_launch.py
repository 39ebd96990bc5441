"""Consecutive works become graphs that do the same."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import numpy as np
import pytest
from threaded_driver import ThreadedDriver

from demitasse import WorkerError
from demitasse_gpu.array import array_function, empty
from demitasse_gpu.device import Device
from demitasse_gpu.in_turn import InTurn
from demitasse_gpu.launch import Call, Checked, Launch, Row, in_order


class Counting(ThreadedDriver):
    """Counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, int] = {}

    def launch(self, *arguments: Any) -> None:
        self.told["launch"] = self.told.get("launch", 0) + 1
        super().launch(*arguments)

    def launch_graph(self, *arguments: Any) -> None:
        self.told["graph"] = self.told.get("graph", 0) + 1
        super().launch_graph(*arguments)


@pytest.fixture
def device() -> Device:
    return Device(Counting())


def adding(device: Device, total: Any, x: Any) -> Launch:
    function = array_function(device, "add_float64")
    return Launch(device, function, 1, 32, (total, x, np.int64(x.size)))


def test_a_row_is_launched_alone_then_captured_then_launched_as_one(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    works = [adding(device, total, x) for _ in range(3)]
    row = works[0].join(works)
    x[...] = 1
    device.driver.told.clear()  # type: ignore[attr-defined]
    told = []
    for _ in range(4):
        row()
        told.append(dict(device.driver.told))  # type: ignore[attr-defined]
    assert told == [
        {"launch": 3},
        {"launch": 6, "graph": 1},
        {"launch": 6, "graph": 2},
        {"launch": 6, "graph": 3},
    ]
    assert np.array_equal(np.asarray(total), np.full(5, 12))


def test_a_graph_reads_what_memory_holds_when_it_is_launched(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    row = in_order([adding(device, total, x), adding(device, total, x)])
    for number in range(5):
        x[...] = number
        row()
    assert np.array_equal(np.asarray(total), np.full(5, 2 * sum(range(5))))


def test_rows_join_to_one_and_calls_of_libraries_with_them(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    x[...] = 1
    copy = Call(device, lambda stream: device.driver.copy(x.address, total.address, 40, "d2d", stream))
    pair = in_order([adding(device, total, x), copy])
    assert isinstance(pair, Row)
    whole = pair.join([pair, adding(device, total, x), pair])
    assert isinstance(whole, Row)
    assert len(whole.works) == 5
    for _ in range(3):
        whole()
    assert np.array_equal(np.asarray(total), np.full(5, 3 * 6 * 6))


def test_one_work_stays_as_it_is_and_others_are_done_in_order(device: Device) -> None:
    work = adding(device, *(empty(device, (5,), "float64") for _ in range(2)))
    assert in_order([work]) is work
    done = list[str]()
    in_order([work, lambda: done.append("a"), lambda: done.append("b")])()
    assert done == ["a", "b"]


def test_without_graphs_each_work_is_launched(device: Device) -> None:
    device.graphs = False
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    row = in_order([adding(device, total, x), adding(device, total, x)])
    for _ in range(4):
        row()
    assert "graph" not in device.driver.told  # type: ignore[attr-defined]


def test_a_graph_goes_with_its_row(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    row = in_order([adding(device, total, x), adding(device, total, x)])
    row()
    row()
    assert len(device.driver._graphs) == 1  # type: ignore[attr-defined]
    del row
    assert len(device.driver._graphs) == 0  # type: ignore[attr-defined]


def test_an_error_while_a_row_is_captured_ends_the_capture(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    calls = list[int]()

    def once(stream: int) -> None:
        calls.append(stream)
        if len(calls) == 2:
            raise ValueError("in a capture")

    row = in_order([adding(device, total, x), Call(device, once)])
    row()
    with pytest.raises(ValueError, match="in a capture"):
        row()
    assert device.driver._captured == {}  # type: ignore[attr-defined]
    assert device.driver._graphs == {}  # type: ignore[attr-defined]
    device.synchronise()


def test_what_another_thread_enqueues_is_never_captured(device: Device) -> None:
    """Two workers on one device run at the same time. Alone, each would be captured in its second call.
    A row is executed, or captured, before another thread's begins."""
    totals, x = [empty(device, (5,), "float64") for _ in range(2)], empty(device, (5,), "float64")
    x[...] = 1
    together, inside = threading.Barrier(2), list[int]()

    def enter(stream: int) -> None:
        inside.append(threading.get_ident())
        time.sleep(0.01)

    def leave(stream: int) -> None:
        assert inside.pop() == threading.get_ident()
        assert not inside

    def use(total: Any) -> None:
        parts = [Call(device, enter), adding(device, total, x), adding(device, total, x)]
        row = in_order([*parts, Call(device, leave)])
        for _ in range(4):
            together.wait(20)
            row()

    threads = [threading.Thread(target=use, args=(total,)) for total in totals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [np.asarray(total).tolist() for total in totals] == [[8.0] * 5] * 2


def test_what_another_thread_does_by_itself_meanwhile_is_not_captured(device: Device) -> None:
    """It builds a net: takes memory, copies samples to it, launches a kernel, waits for results."""
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    x[...] = 1
    begun, seen = threading.Event(), dict[str, Any]()

    def use() -> None:
        begun.wait(20)
        mine = empty(device, (5,), "float64")
        mine[...] = np.arange(5.0)
        adding(device, mine, x)()
        Call(device, lambda stream: device.driver.clear(mine.address, 8, stream))()
        seen["read"], seen["mine"] = np.asarray(mine), mine

    def pause(stream: int) -> None:
        begun.set()
        time.sleep(0.2)

    row = in_order([adding(device, total, x), Call(device, pause), adding(device, total, x)])
    row()
    begun.clear()
    thread = threading.Thread(target=use)
    thread.start()
    row()
    thread.join(20)
    assert seen["read"].tolist() == [0, 2, 3, 4, 5]
    seen["mine"][...] = 7
    row()
    assert np.asarray(seen["mine"]).tolist() == [7] * 5
    assert np.asarray(total).tolist() == [6] * 5


@pytest.mark.parametrize("refused", ["begin_capture", "end_capture"])
@pytest.mark.parametrize("error", [WorkerError("not permitted"), MemoryError("no room")], ids=repr)
def test_works_that_no_graph_can_have_are_launched_one_by_one(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: str,
    error: Exception,
) -> None:
    driver: Any = cast(InTurn, device.driver).driver
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    x[...] = 1
    row = in_order([adding(device, total, x), adding(device, total, x)])
    whole = getattr(driver, refused)

    def refuse(*arguments: Any) -> None:
        if refused == "end_capture":
            driver.end_graph(whole(*arguments))
        raise error

    monkeypatch.setattr(driver, refused, refuse)
    for _ in range(4):
        row()
    assert np.asarray(total).tolist() == [8] * 5
    assert "graph" not in driver.told
    assert [record.getMessage() for record in caplog.records] == [
        f"2 launches go one by one, as they could not become a graph: {error}"
    ]


@pytest.mark.parametrize("leaves", ["it ends", "its works are forgotten"])
def test_a_device_that_another_thread_has_left_is_captured_again(device: Device, leaves: str) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    elsewhere = [in_order([adding(device, total, x), adding(device, total, x)])]
    called, end, over = threading.Event(), threading.Event(), threading.Event()

    def use() -> None:
        elsewhere[0]()
        called.set()
        end.wait(20)

    thread = threading.Thread(target=use)
    thread.start()
    called.wait(20)
    row = in_order([adding(device, total, x), adding(device, total, x)])
    row()
    row()
    assert "graph" not in device.driver.told  # type: ignore[attr-defined]
    if leaves == "it ends":
        end.set()
        thread.join()
        later = [threading.Thread(target=over.wait, args=(20,)) for _ in range(4)]
        for other in later:  # one of them has the number that the first one had
            other.start()
    else:
        elsewhere.clear()
    row()
    assert device.driver.told["graph"] == 1  # type: ignore[attr-defined]
    end.set()
    over.set()
    thread.join()


def test_works_are_checked_when_they_are_called_alone_and_in_a_step_never(device: Device) -> None:
    total, x = empty(device, (5,), "float64"), empty(device, (5,), "float64")
    looks = list[float]()
    checked = Checked(device, [adding(device, total, x)] * 2, lambda: looks.append(total.sum()))
    x[...] = 1
    whole = checked.join([checked, adding(device, total, x)])
    alone = checked.join([checked])
    for work in (whole, alone):
        work()
    assert looks == []
    checked()
    assert looks == [5 * 7.0]
