"""The emulation that tests of kernels rest on: threads meet at barriers, wrong launches are found."""

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
extern "C" __global__ void paired(float *x, Pair pair, unsigned n) { x[0] = pair.a + pair.b + n; }
"""
PAIR = np.dtype([("a", "i4"), ("b", "f8")], align=True)


class Bench:
    """A driver, a stream, and an array of 96 floats in device memory."""

    def __init__(self) -> None:
        self.driver = EmulatedDriver(memory=4096)
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


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_all_threads_of_a_block_meet_at_each_barrier(bench: Bench, rounds: int) -> None:
    blocks = bench.values.reshape(3, 32)
    expected = blocks[:, ::-1] if rounds % 2 else blocks
    assert np.array_equal(bench.run("reversed", 3, 32, np.int32(rounds)), expected.ravel())


def test_a_shuffle_takes_what_the_other_thread_had(bench: Bench) -> None:
    assert bench.run("shuffled", 1, 64)[:4].tolist() == [1, 0, 3, 2]


def test_kernels_that_macros_make_are_found(bench: Bench) -> None:
    assert kernels_of(SOURCE) == ["fives", "reversed", "shuffled", "half_waits", "paired"]
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
