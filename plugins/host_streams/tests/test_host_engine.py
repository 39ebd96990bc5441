"""The engine of host threads: it follows the protocol, keeps the pace of links, raises errors, leaves
nothing behind."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import EngineEvent, StreamEngine, check_engine
from demitasse_host_streams.engine import HostEngine
from demitasse_host_streams.link import Direction, Rate, transfer
from demitasse_host_streams.memory import PINNED, REGISTRY, StandInAllocator, address, pinned

pytestmark = pytest.mark.usefixtures("no_threads_left")
MIB = 2**20


def device(values: np.ndarray, space: str = "accelerator:0") -> np.ndarray:
    """Return an array in a stand-in's memory."""
    made = StandInAllocator(space).allocate(values.nbytes).view(0, values.shape, values.dtype.name)
    made[...] = values
    return made


@pytest.fixture
def engine() -> Iterator[HostEngine]:
    made = HostEngine("accelerator:0")
    yield made
    made.close()


def limited() -> HostEngine:
    return HostEngine("accelerator:0", Rate(1e-5, 1e9), Rate(1e-5, 5e8))


@pytest.mark.parametrize("make", [functools.partial(HostEngine, "accelerator:0"), limited])
def test_it_keeps_the_words_of_the_protocol(make: Callable[[], StreamEngine]) -> None:
    check_engine(make, device, elsewhere=functools.partial(device, space="accelerator:1"))


def test_calls_of_several_streams_are_made_beside_each_other(engine: HostEngine) -> None:
    together = threading.Barrier(4)
    for name in ("a", "b", "c"):
        engine.stream(name).call(lambda: together.wait(20) and None)
    together.wait(20)
    for name in ("a", "b", "c"):
        engine.stream(name).synchronise()


def test_the_default_stream_works_in_its_callers_thread(engine: HostEngine) -> None:
    threads: list[threading.Thread] = []
    engine.default.call(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    engine.stream("d2h").call(lambda: threads.append(threading.current_thread()))
    engine.default.wait(engine.stream("d2h").record())
    assert threads[1].name == "demitasse-accelerator:0-d2h"
    assert engine.stream("default") is engine.default


def test_an_interrupt_in_the_default_stream_is_the_callers_at_once(engine: HostEngine) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.default.call(interrupted)


def test_a_failure_goes_on_to_streams_that_wait_for_it(engine: HostEngine) -> None:
    first, second = engine.stream("d2h"), engine.stream("h2d")
    target = np.zeros(3)
    first.call(lambda: 1 // 0 and None)
    second.wait(first.record())
    second.copy(target, np.ones(3))
    for waiting in (second.synchronise, second.record().wait, first.synchronise):
        with pytest.raises(ZeroDivisionError):
            waiting()
    with pytest.raises(ZeroDivisionError):
        engine.default.wait(first.record())
    assert not target.any()
    engine.default.synchronise()


def test_an_idle_stream_holds_no_arrays(engine: HostEngine) -> None:
    stream, ended = engine.stream("d2h"), threading.Event()
    source = np.ones(5)
    weakref.finalize(source, ended.set)
    stream.copy(np.zeros(5), source)
    event = stream.record()
    stream.call(lambda: None)  # by then the copy's leftovers are gone
    stream.synchronise()
    del source
    assert ended.is_set()
    assert event.done


Step = tuple[int, int, int]


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)), max_size=40),
    st.booleans(),
)
def test_whatever_waits_for_what_it_needs_comes_as_one_after_the_other(
    steps: list[Step], paced: bool
) -> None:
    """A step names a stream and two buffers: a call halves the first, and a copy takes it to the
    second."""
    rate = Rate(1e-6, 1e9) if paced else Rate()
    engine = HostEngine("accelerator:0", rate, rate)
    streams = [engine.default, *(engine.stream(name) for name in "abc")]
    start = [np.full(9, float(number)) for number in range(6)]
    arrays = [engine.pinned((9,), "float64") if n % 2 else device(x) for n, x in enumerate(start)]
    for array, values in zip(arrays, start, strict=True):
        array[...] = values
    last: dict[int, list[EngineEvent]] = {number: [] for number in range(6)}
    for number, of, to in steps:
        stream = streams[number]
        for event in (*last[of], *last[to]):
            stream.wait(event)
        stream.call(functools.partial(np.multiply, arrays[of], 0.5, out=arrays[of]))
        stream.copy(arrays[to], arrays[of])
        last[of], last[to] = [stream.record()], [stream.record()]
        start[of] *= 0.5
        start[to][...] = start[of]
    engine.close()
    for array, values in zip(arrays, start, strict=True):
        np.testing.assert_array_equal(array, values)


# Errors.


@pytest.mark.parametrize(
    ("target", "source", "words"),
    [
        (np.zeros(3), np.zeros((2, 2)), r"from \(2, 2\) of float64 to \(3,\) of float64"),
        (np.zeros(4, np.float32), np.zeros(4), r"from \(4,\) of float64 to \(4,\) of float32"),
        (
            np.zeros((4, 2))[:, 1],
            np.zeros(4),
            r"target is not contiguous \(shape \(4,\), strides \(16,\)\)",
        ),
        (np.zeros(4), np.zeros((4, 2))[:, 1], "source is not contiguous"),
        (np.broadcast_to(np.zeros(1), (1,)), np.zeros(1), "target, .* is read-only"),
    ],
)
def test_a_copy_that_cannot_be_names_both(
    engine: HostEngine, target: np.ndarray, source: np.ndarray, words: str
) -> None:
    with pytest.raises(ValueError, match=f"accelerator:0, stream 'd2h': .*{words}"):
        engine.stream("d2h").copy(target, source)


def test_a_copy_of_what_is_no_array_is_refused(engine: HostEngine) -> None:
    with pytest.raises(TypeError, match=r"a copy's source is a list \(valid: a NumPy array\)"):
        engine.stream("d2h").copy(np.zeros(2), [1.0, 2.0])


def test_after_close_the_engine_says_so_and_events_stay() -> None:
    engine = HostEngine("accelerator:7")
    stream = engine.stream("d2h")
    stream.call(lambda: None)
    event = stream.record()
    engine.close()
    engine.close()
    event.wait()
    assert event.done
    assert event.seconds <= time.perf_counter()
    with pytest.raises(RuntimeError, match="stream 'd2h' of accelerator:7 was closed"):
        stream.call(lambda: None)
    with pytest.raises(RuntimeError, match="the streams of accelerator:7 were closed"):
        engine.stream("h2d")


def test_an_event_that_was_not_reached_has_no_time(engine: HostEngine) -> None:
    opened = threading.Event()
    engine.stream("d2h").call(lambda: opened.wait(20) and None)
    event = engine.stream("d2h").record()
    with pytest.raises(RuntimeError, match="before the event was reached"):
        _ = event.seconds
    opened.set()
    event.wait()


# Links. These tests compare times by the links' accounting, not by the clock of a busy machine.


def test_a_transfer_takes_its_time_on_the_link() -> None:
    source = np.arange(3 * MIB, dtype=np.uint8)
    target, way = np.zeros_like(source), Direction()
    ready = time.perf_counter()
    end, done = transfer(target, source, Rate(0.001, 1e9), [way], ready)
    assert end == pytest.approx(ready + 0.001 + 3 * MIB / 1e9, abs=1e-9)
    assert end <= done <= time.perf_counter()
    assert way.free == end
    np.testing.assert_array_equal(target, source)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=20))
def test_transfers_come_one_behind_the_other_however_late_they_are_asked_for(
    asked: list[tuple[float, int]],
) -> None:
    """All times lie in the past, so nobody sleeps: this tests the link's accounting alone."""
    way, rate = Direction(), Rate(0.25, 2.0)
    free = 0.0
    for ready, size in asked:
        end, _ = transfer(np.zeros(size, np.uint8), np.ones(size, np.uint8), rate, [way], ready)
        free = max(free, ready) + 0.25 + size / 2.0
        assert end == way.free == pytest.approx(free)


def test_copies_in_a_row_take_their_times_together_and_events_tell_them() -> None:
    engine = limited()
    stream = engine.stream("d2h")
    host, near = engine.pinned((MIB,), "uint8"), device(np.ones(MIB, np.uint8))
    opened = threading.Event()
    stream.call(lambda: opened.wait(20) and None)
    events = []
    for _ in range(5):
        stream.copy(host, near)
        events.append(stream.record())
    opened.set()
    engine.close()
    times = [event.seconds for event in events]
    assert times[-1] - times[0] >= 4 * (1e-5 + MIB / 1e9) - 1e-6
    assert times == sorted(times)


def test_both_directions_go_at_once_and_each_has_its_own_rate() -> None:
    engine = limited()
    host, near = engine.pinned((MIB,), "uint8"), device(np.zeros(MIB, np.uint8))
    rate, ways = engine._way(host, near)
    assert (rate.bandwidth, len(ways)) == (1e9, 1)
    back, others = engine._way(near, host)
    assert (back.bandwidth, len(others)) == (5e8, 1)
    assert ways != others
    engine.close()


def test_links_are_chosen_by_where_arrays_lie() -> None:
    engine = limited()
    pinned_one, plain = engine.pinned((8,), "float32"), np.zeros(8, np.float32)
    here, other = device(plain), device(plain, "accelerator:1")

    def way(target: np.ndarray, source: np.ndarray) -> tuple[float, float, int]:
        rate, directions = engine._way(target, source)
        return rate.latency, rate.bandwidth, len(directions)

    out, back, none = (1e-5, 1e9, 1), (1e-5, 5e8, 1), (0.0, float("inf"), 0)
    assert way(pinned_one, here) == way(plain, here) == way(pinned_one, plain) == out
    assert way(here, pinned_one) == way(here, plain) == way(plain, pinned_one) == back
    assert way(other[:4], here[4:]) == way(here, other) == (2e-5, 5e8, 2)
    assert way(here[:4], here[4:]) == way(pinned_one, pinned_one) == way(plain, plain) == none
    assert engine._way(pinned_one, other)[1] != engine._way(pinned_one, here)[1]
    engine.close()


def test_two_stand_ins_that_copy_to_each_other_do_not_block_each_other() -> None:
    rate = Rate(0.0, 4e9)
    engines = [HostEngine(f"accelerator:{n}", rate, rate) for n in range(2)]
    near = [device(np.full(MIB, n, np.uint8), f"accelerator:{n}") for n in range(2)]
    away = [device(np.zeros(MIB, np.uint8), f"accelerator:{n}") for n in range(2)]
    for _ in range(10):
        engines[0].stream("out").copy(away[1], near[0])
        engines[1].stream("out").copy(away[0], near[1])
        engines[0].stream("in").copy(away[0], near[1])
    for engine in engines:
        engine.close()
    assert not away[1].any()
    assert away[0].all()


# Memory.


def test_pinned_memory_begins_at_a_page_and_is_known() -> None:
    array = pinned((3, 1000), "float64")
    assert (array.shape, array.dtype) == ((3, 1000), np.float64)
    assert address(array) % 4096 == 0
    assert not array.any()
    assert REGISTRY.space(array[1:]) == PINNED
    assert pinned((0,), "float32").size == 0


def test_memory_that_ended_is_nobodys() -> None:
    registry = type(REGISTRY)()
    one, other = np.zeros(100, np.uint8), np.zeros(100, np.uint8)
    registry.add(one, one.ctypes.data, 100, "accelerator:0")
    registry.add(other, other.ctypes.data, 50, "accelerator:1")
    assert registry.space(one[99:]) == "accelerator:0"
    assert registry.space(other[49:]) == "accelerator:1"
    assert registry.space(other[50:]) is None
    keep = one.ctypes.data
    del one
    gc.collect()
    third = np.frombuffer(bytearray(10), np.uint8)
    registry.add(third, keep, 10, "accelerator:2")
    assert registry._blocks[registry._starts.index(keep)][1] == "accelerator:2"
    assert registry.space(other) == "accelerator:1"


@pytest.mark.parametrize("nbytes", [1, 5000, 3 * MIB])
def test_a_block_is_zero_aligned_and_counted(nbytes: int) -> None:
    allocator = StandInAllocator("accelerator:3")
    block = allocator.allocate(nbytes)
    view = block.view(0, (nbytes,), "uint8")
    assert not view.any()
    assert address(view) % (2 * MIB if nbytes >= 2 * MIB else 4096) == 0
    assert (allocator.space, allocator.allocations, allocator.bytes) == ("accelerator:3", 1, nbytes)
    with pytest.raises(ValueError, match="do not fit in a block"):
        block.view(nbytes, (1,), "float32")
    block.close()
    with pytest.raises(ValueError, match="closed"):
        block.view(0, (0,), "uint8")


def test_more_memory_than_there_is_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        MemoryError,
        match=r"accelerator:0 stands in .* 1,000,000,000,000,000 bytes, available: [\d,]+;",
    ):
        StandInAllocator("accelerator:0").allocate(10**15)
