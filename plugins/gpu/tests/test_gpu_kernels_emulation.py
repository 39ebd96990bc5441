"""The emulation that the tests of kernels use: threads meet at barriers, and wrong launches are
found."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler, kernels_of

from demitasse_gpu.driver import Driver

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

SOURCE = """
#define NAMED(name) \\
    extern "C" __global__ void name(float *x) { x[0] = 5; }
NAMED(fives)
struct Pair { int a; double b; };
extern "C" __global__ void reversed(float *x, int rounds) {
    __shared__ float held[96];
    for (int round = 0; round < rounds; ++round) {
        held[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
        __syncthreads();
        x[blockIdx.x * blockDim.x + threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
        __syncthreads();
    }
}
extern "C" __global__ void shuffled(float *x) {
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}
extern "C" __global__ void half_waits(float *x) {
    if (threadIdx.x < 16) __syncthreads();
}
extern "C" __global__ void warps_reversed(float *x) {
    __shared__ float held[96];
    held[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    x[threadIdx.x] = held[threadIdx.x ^ 31];
}
extern "C" __global__ void unmet(float *x, int other) {
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];
    __syncwarp();  // and not with the other warp
    x[threadIdx.x] = held[threadIdx.x ^ other];
}
extern "C" __global__ void first_warp(float *x) {
    if (threadIdx.x < 32) x[threadIdx.x] += __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 16);
    __syncthreads();
    if (threadIdx.x >= 32) x[threadIdx.x] += x[threadIdx.x - 32];
}
extern "C" __global__ void fetched(float *x, int ahead) {
    alignas(16) __shared__ float held[2][4];
    for (int k = 0; k < 4; ++k) held[0][k] = held[1][k] = -1;
    copy_16_bytes(held[0], x, true), end_group();
    copy_16_bytes(held[1], x, false), end_group();
    if (ahead == 0) wait_for_groups<0>();
    if (ahead == 1) wait_for_groups<1>();
    for (int k = 0; k < 8; ++k) x[k + 4] = held[k / 4][k % 4];
}
extern "C" __global__ void in_line(float *x) { x[blockIdx.x + 1] = x[blockIdx.x]; }
extern "C" __global__ void paired(float *x, Pair pair, unsigned n) { x[0] = pair.a + pair.b + n; }
"""
PAIR = np.dtype([("a", "i4"), ("b", "f8")], align=True)


class Bench:
    """A driver, a stream, and an array of 96 floats in device memory."""

    def __init__(self, backward: bool | None = None) -> None:
        self.driver = EmulatedDriver(memory=4096, backward=backward)
        self.stream, self.address = self.driver.stream(), self.driver.allocate(4 * 96)
        self.values = np.arange(96, dtype=np.float32)
        self.driver.copy(self.address, self.values.ctypes.data, 4 * 96, "h2d", self.stream)

    def run(self, name: str, grid: int, block: int, *arguments: Any) -> np.ndarray:
        function = self.driver.function(SOURCE, name)
        given = (self.address, *arguments)
        self.driver.launch(function, (grid, 1, 1), (block, 1, 1), given, 0, self.stream)
        return self.read()

    def read(self) -> np.ndarray:
        host = np.empty(96, np.float32)
        self.driver.copy(host.ctypes.data, self.address, 4 * 96, "d2h", self.stream)
        return host


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_is_a_driver() -> None:
    driver: Driver = EmulatedDriver(3)
    assert driver.number == 3
    assert not [name for name in vars(Driver) if name[0] != "_" and not hasattr(driver, name)]


def in_both_orders(name: str, grid: int, block: int, *arguments: Any) -> list[list[float]]:
    return [Bench(order).run(name, grid, block, *arguments).tolist() for order in (False, True)]


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("backward", [False, True])
def test_all_threads_of_a_block_meet_at_each_barrier(backward: bool, rounds: int) -> None:
    bench = Bench(backward)
    blocks = bench.values.reshape(3, 32)
    expected = blocks[:, ::-1] if rounds % 2 else blocks
    assert np.array_equal(bench.run("reversed", 3, 32, np.int32(rounds)), expected.ravel())


def test_a_shuffle_takes_what_the_other_thread_had(bench: Bench) -> None:
    assert bench.run("shuffled", 1, 64)[:4].tolist() == [1, 0, 3, 2]


def test_threads_of_a_warp_meet_without_the_others(bench: Bench) -> None:
    expected = bench.values.reshape(3, 32)[:, ::-1].ravel().tolist()
    assert in_both_orders("warps_reversed", 1, 96) == [expected] * 2
    summed = (np.arange(32) + np.arange(32).reshape(2, 16)[::-1].ravel()).tolist()
    after = [*summed, *(np.arange(32, 64) + summed).tolist(), *range(64, 96)]
    assert in_both_orders("first_warp", 1, 64) == [after] * 2


@pytest.mark.parametrize("other", [32, 63])
def test_a_barrier_that_is_missing_makes_orders_differ(other: int) -> None:
    forward, backward = in_both_orders("unmet", 1, 64, np.int32(other))
    right = [float(thread ^ other) for thread in range(64)]
    assert right not in (forward[:64], backward[:64])
    assert forward[32:64] == right[32:]
    assert backward[:32] == right[:32]


def test_copies_are_there_at_once_or_when_they_are_waited_for() -> None:
    before, zeros, there = [-1.0] * 4, [0.0] * 4, [0.0, 1.0, 2.0, 3.0]
    for ahead, late in ((2, [*before, *before]), (1, [*there, *before]), (0, [*there, *zeros])):
        forward, backward = in_both_orders("fetched", 1, 1, np.int32(ahead))
        assert forward[4:12] == [*there, *zeros]
        assert backward[4:12] == late


def test_blocks_run_in_both_orders() -> None:
    forward, backward = in_both_orders("in_line", 5, 1)
    assert forward[:6] == [0.0] * 6
    assert backward[:6] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]


def test_kernels_that_macros_make_are_found(bench: Bench) -> None:
    assert kernels_of(SOURCE)[:4] == ["fives", "reversed", "shuffled", "half_waits"]
    assert len(kernels_of(SOURCE)) == SOURCE.count("__global__")
    assert bench.run("fives", 1, 1)[0] == 5


def test_structures_are_passed_by_value(bench: Bench) -> None:
    pair = np.array((3, 0.5), PAIR)[()]
    assert bench.run("paired", 1, 1, pair, np.uint32(2))[0] == 5.5


def test_threads_that_leave_others_waiting_are_an_error_once(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="half_waits: some threads of a block ended"):
        bench.run("half_waits", 1, 32)
    bench.run("reversed", 3, 32, np.int32(2))
    assert np.array_equal(bench.read(), bench.values)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "takes 2 arguments, not 1"),
        ((np.int64(1),), "argument 1 is int64, the parameter is of kind 'i' and 4 bytes"),
        ((np.float32(1),), "argument 1 is float32"),
    ],
)
def test_arguments_of_other_types_are_found(bench: Bench, arguments: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        bench.run("reversed", 1, 32, *arguments)


def test_only_addresses_of_the_device_are_launched_with_and_copied(bench: Bench) -> None:
    host = np.zeros(96, np.float32)
    function = bench.driver.function(SOURCE, "fives")
    with pytest.raises(TypeError, match="is no device address"):
        bench.driver.launch(function, (1, 1, 1), (1, 1, 1), (host.ctypes.data,), 0, bench.stream)
    with pytest.raises(ValueError, match="a copy d2h"):
        bench.driver.copy(host.ctypes.data, host.ctypes.data, 4, "d2h", bench.stream)


def test_what_is_captured_is_done_when_the_graph_is_launched(bench: Bench) -> None:
    bench.driver.begin_capture(bench.stream)
    function = bench.driver.function(SOURCE, "fives")
    bench.driver.launch(function, (1, 1, 1), (1, 1, 1), (bench.address,), 0, bench.stream)
    graph = bench.driver.end_capture(bench.stream)
    assert bench.read()[0] == 0
    bench.driver.launch_graph(graph, bench.stream)
    assert bench.read()[0] == 5
    assert bench.driver.launches == {"fives": 1}


def test_memory_ends(bench: Bench) -> None:
    with pytest.raises(MemoryError, match="4096 bytes asked for, 3712 of 4096 are free"):
        bench.driver.allocate(4096)
    bench.driver.free(bench.address)
    assert ctypes.c_uint8.from_address(bench.driver.allocate(4096)).value == 0xFF
