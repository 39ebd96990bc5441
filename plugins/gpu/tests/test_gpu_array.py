"""Arrays, blocks and allocators of a device's memory."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threaded_driver import ThreadedDriver

from demitasse_gpu.allocator import DeviceAllocator
from demitasse_gpu.array import DeviceArray, empty
from demitasse_gpu.device import Device
from demitasse_gpu.engine import pinned
from demitasse_gpu.guard import Guard
from demitasse_gpu.pool import SEGMENT, Pool


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(ThreadedDriver(memory=64 * SEGMENT))


def having(device: Device, values: Any) -> DeviceArray:
    values = np.asarray(values)
    made = empty(device, values.shape, values.dtype)
    made[...] = values
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "uint16", "uint64", "int32"])
def test_what_is_assigned_is_read_back(device: Device, dtype: str) -> None:
    values = np.arange(60).reshape(3, 4, 5).astype(dtype)
    array = having(device, values)
    assert array.shape == (3, 4, 5)
    assert str(array.dtype) == dtype
    assert (array.size, array.ndim, array.nbytes) == (60, 3, values.nbytes)
    assert np.array_equal(np.asarray(array), values)
    assert array.tobytes() == values.tobytes()
    assert np.asarray(array, np.float64).dtype == np.float64


KEYS = [
    0,
    -1,
    slice(1, 3),
    slice(None),
    slice(2, 2),
    Ellipsis,
    (1, 2),
    (1, slice(0, 3)),
    (2, 3, slice(1, 4)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_leading_parts_are_views_that_are_written_through(device: Device, key: Any) -> None:
    values = np.arange(60.0).reshape(3, 4, 5)
    array = having(device, values)
    assert np.array_equal(np.asarray(array[key]), values[key])
    array[key] = -1.0
    values[key] = -1.0
    assert np.array_equal(np.asarray(array), values)
    array[key] = np.full_like(values[key], 7)
    values[key] = 7
    assert np.array_equal(np.asarray(array), values)


@pytest.mark.parametrize("key", [slice(0, 4, 2), [0, 1], (slice(0, 2), 1), "x"], ids=str)
def test_other_parts_are_refused_with_what_there_is(device: Device, key: Any) -> None:
    with pytest.raises(TypeError, match="valid: leading parts"):
        having(device, np.zeros((4, 4)))[key]


def test_indices_out_of_bounds_are_refused(device: Device) -> None:
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        having(device, np.zeros((4, 4)))[4]
    with pytest.raises(IndexError, match="no dimension"):
        having(device, np.zeros(()))[0]


def test_one_number_is_assigned_by_value_and_in_order(device: Device) -> None:
    scalar, seen = having(device, np.zeros(1, np.uint64)), empty(device, (50,), "uint64")
    for number in range(50):
        scalar[0] = 2**40 + number
        device.driver.copy(seen.address + 8 * number, scalar.address, 8, "d2d", device.stream)
    assert np.array_equal(np.asarray(seen), 2**40 + np.arange(50))
    rate = having(device, np.zeros(1))
    rate[0] = 0.1
    assert rate[0] == 0.1


def test_a_source_may_change_as_soon_as_it_was_assigned(device: Device) -> None:
    source, arrays = np.zeros(1000, np.float32), []
    for number in range(20):
        source[...] = number
        arrays.append(having(device, source))
    assert [float(array[0]) for array in arrays] == list(range(20))


@pytest.mark.parametrize("where", ["pinned memory", "another device"])
def test_to_assign_what_is_copied_from_where_it_lies_waits_for_the_copy(
    device: Device, where: str
) -> None:
    source = (
        pinned(device, (5,), "float32")
        if where == "pinned memory"
        else empty(Device(ThreadedDriver(1)), (5,), "float32")
    )
    target, gate = empty(device, (5,), "float32"), threading.Event()
    source[...] = 3
    device.driver.call(device.stream, lambda: gate.wait(20) and None)
    thread = threading.Thread(target=target.__setitem__, args=(Ellipsis, source))
    thread.start()
    thread.join(0.05)
    waits = thread.is_alive()
    gate.set()
    thread.join()
    assert waits
    assert np.array_equal(np.asarray(target), np.full(5, 3))


def test_shapes_and_types_are_seen_anew_without_a_copy(device: Device) -> None:
    array = having(device, np.arange(24, dtype=np.float32))
    again = array.reshape(2, -1).reshape((4, 6)).view(np.uint8)
    assert again.shape == (4, 24)
    again[3] = 0
    assert array.sum() == sum(range(18))
    assert array.view("uint64").shape == (12,)
    with pytest.raises(ValueError, match="cannot reshape"):
        array.reshape(5, 5)
    with pytest.raises(ValueError, match="is not divisible"):
        having(device, np.zeros(3, np.uint8)).view(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_are_added_on_the_device(device: Device, dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(70, 30)).astype(dtype)
    total = having(device, values)
    other = total.copy()
    total += other
    total += values
    assert np.array_equal(np.asarray(total), values + values + values)
    assert np.array_equal(np.asarray(other), values)
    with pytest.raises(ValueError, match="cannot be added"):
        total += having(device, values[:3])
    with pytest.raises(TypeError, match="float32 and float64"):
        having(device, np.zeros(3, np.int32)).__iadd__(np.zeros(3, np.int32))


def test_a_copy_on_the_host_is_never_a_view(device: Device) -> None:
    array = having(device, np.ones(3))
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(array, copy=False)
    host = np.asarray(array)
    host[...] = 5
    assert array.sum() == 3


def test_arrays_of_another_type_or_device_are_assigned_too(device: Device) -> None:
    other = Device(ThreadedDriver(1))
    array = having(device, np.zeros(4, np.float32))
    array[...] = having(other, np.arange(4.0))
    assert np.array_equal(np.asarray(array), np.arange(4))
    with pytest.raises(ValueError, match="does not fit"):
        array[...] = having(device, np.zeros(5, np.float32))


def test_other_libraries_find_an_array_by_its_interface(device: Device) -> None:
    array = having(device, np.zeros((2, 3), np.float32))
    about = array.__cuda_array_interface__
    assert about["shape"] == (2, 3)
    assert about["typestr"] == "<f4"
    assert about["data"] == (array.address, False)
    assert about["version"] == 3


def test_an_array_keeps_its_memory(device: Device) -> None:
    used = device.pool.statistics.used
    part = having(device, np.arange(1000.0))[10:20]
    gc.collect()
    filling = [having(device, np.full(1000, 9.0)) for _ in range(3)]
    assert np.array_equal(np.asarray(part), np.arange(10.0, 20.0))
    del part, filling
    gc.collect()
    assert device.pool.statistics.used == used


def test_blocks_are_zero_aligned_and_counted(device: Device) -> None:
    allocator = DeviceAllocator(device)
    for size in (1, 1000, 3 * SEGMENT):
        memory = allocator.allocate(size)
        array = memory.view(0, (size,), "uint8")
        assert array.address % 64 == 0
        assert not np.asarray(array).any()
        array[...] = 255
        memory.close()
    assert (allocator.allocations, allocator.bytes) == (3, 1001 + 3 * SEGMENT)
    assert allocator.space == "gpu:0"


def test_views_lie_in_their_block(device: Device) -> None:
    memory = DeviceAllocator(device).allocate(100)
    for offset, size in ((-1, 4), (90, 11)):
        with pytest.raises(ValueError, match="do not fit in a block of 100"):
            memory.view(offset, (size,), "uint8")
    memory.close()
    memory.close()
    with pytest.raises(ValueError, match="was closed"):
        memory.view(0, (1,), "uint8")


def test_out_of_memory_says_what_was_asked_and_what_to_do(device: Device) -> None:
    with pytest.raises(MemoryError) as raised:
        DeviceAllocator(device).allocate(2**40)
    told = str(raised.value)
    assert f"asked for {2**40:,} bytes" in told
    assert "gpu:0 memory" in told
    assert f"of {64 * SEGMENT:,}" in told
    assert "use a smaller batch" in told
    assert "\n" not in told


def test_kept_memory_is_given_back_before_there_is_none() -> None:
    driver = ThreadedDriver(memory=10 * SEGMENT)
    pool = Pool(driver, driver.stream())
    for block in [pool.take(2 * SEGMENT) for _ in range(5)]:
        block.close()
    assert pool.statistics.segments == 5
    whole = pool.take(10 * SEGMENT)
    assert pool.statistics.segments == 1
    whole.close()


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(1, 3 * SEGMENT // 2), st.integers(0, 7)), max_size=40))
def test_blocks_never_overlap_and_all_come_back(steps: Sequence[tuple[int, int]]) -> None:
    driver = ThreadedDriver(memory=256 * SEGMENT)
    stream = driver.stream()
    pool, blocks = Pool(driver, stream), []
    for size, which in steps:
        if which < 5 or not blocks:
            blocks.append(pool.take(size))
            assert blocks[-1].nbytes >= size
        else:
            blocks.pop(which % len(blocks)).close()
        spans = sorted((block.address, block.address + block.nbytes) for block in blocks)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert pool.statistics.used == sum(block.nbytes for block in blocks)
    for block in blocks:
        block.close()
    pool.trim()
    assert pool.statistics.used == pool.statistics.held == 0
    assert driver.memory()[0] == 256 * SEGMENT
    driver.end_stream(stream)


@pytest.mark.parametrize("loss", [1.5, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_that_is_not_finite_makes_the_rate_negative(
    device: Device, loss: float, dtype: str
) -> None:
    first, second = having(device, np.full(1, loss, dtype)), having(device, np.full(3, 0.25, dtype))
    rate = having(device, np.full(1, 0.1))
    guard = Guard(device, [(first, 1.0), (second, 2.0)], rate)
    for _ in range(3):
        rate[0] = 0.1
        guard.work()
        np.testing.assert_equal(guard.read(), loss + 1.5)  # also if that is NaN
        assert rate[0] == (0.1 if np.isfinite(loss) else -1)


def test_a_block_may_be_forgotten_while_its_pool_is_asked(device: Device) -> None:
    """The garbage collector runs at any moment: here while the pool searches its free blocks."""
    pool = Pool(device.driver, device.stream)
    blocks = [pool.take(1000) for _ in range(6)]

    class Free(dict[int, int]):
        def items(self) -> Any:
            for item in super().items():
                blocks.clear()
                yield item

    pool._free = Free(pool._free)
    pool.take(500).close()
    assert blocks == []
    assert pool.statistics.used == 0


def test_who_forgets_memory_waits_for_nobody(device: Device) -> None:
    """It may be dropped in CUDA's own thread, in a callback, while another thread waits for that."""
    pool, pinned_pool, done = device.pool, device.pinned, threading.Event()
    blocks: list[object] = [pool.take(1000), pinned_pool.take(1000)]

    def forget() -> None:
        blocks.clear()
        done.set()

    with pool._lock, pinned_pool._lock:
        threading.Thread(target=forget).start()
        assert done.wait(20)
