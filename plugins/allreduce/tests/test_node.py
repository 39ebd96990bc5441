"""Sums in the memory of a node, by real processes, beside NumPy and MPI's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demitasse_allreduce.node.work import added_as, element_number

SUMS = """
from demitasse_allreduce.node import Node, SharedAllocator
node = Node(comm)
allocator = SharedAllocator(node)
draw = np.random.default_rng(11)
sizes = [0, 1, 15, 16, 17, 4_096, 4_097, 131_072, 262_147, *map(int, draw.integers(1, 700_000, 2))]
for dtype in ("float32", "float64", "complex64", "int8", "uint16", "int32", "int64"):
    for n in sizes:
        all_of_them = (draw.standard_normal((size, n)) * 100).astype(dtype)
        want = all_of_them.astype("complex128" if dtype[0] == "c" else "float64").sum(0)
        shared = allocator.allocate(max(1, 8 * n)).view(0, (n,), dtype)
        for array in (all_of_them[rank].copy(), shared):
            array[:] = all_of_them[rank]
            node.allreduce(array).run()
            if np.dtype(dtype).kind in "iu":
                exact = all_of_them.sum(0, dtype=dtype)
                assert (array == exact).all(), (dtype, n)
            else:
                error = np.abs(array - want).max(initial=0)
                assert error <= size * 1_000 * np.finfo(dtype).eps, (dtype, n, error)
            first = array.copy()
            comm.Bcast(first, 0)
            assert first.tobytes() == array.tobytes(), (dtype, n)
            theirs = all_of_them[rank].copy()
            comm.Allreduce(MPI.IN_PLACE, theirs)
            if np.dtype(dtype).itemsize > 2:  # Open MPI's sums of shorter ones stop at the largest
                assert np.allclose(theirs, array, atol=1e-3), (dtype, n)
print("right")
"""


@pytest.mark.parametrize(
    "ranks", [2, 3, pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_sums_are_right_and_the_same_on_all_ranks(on_ranks: Callable[..., str], ranks: int) -> None:
    assert on_ranks(ranks, SUMS).count("right") == ranks


def test_float32_is_added_in_the_order_of_ranks(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce.node import Node
    node = Node(comm)
    for n in (1_000, 300_000):
        each = (np.random.default_rng(3).standard_normal((size, n)) * 10.0 ** rank).astype(np.float32)
        everyone = np.empty((size, n), np.float32)
        comm.Allgather(each[rank], everyone)
        want = everyone[0].copy()
        for more in everyone[1:]:
            want += more
        array = everyone[rank].copy()
        node.allreduce(array).run()
        assert (array == want).all()
    """
    on_ranks(3, script)


def test_arrays_that_lie_in_shared_memory_on_some_ranks_only_are_added_too(
    on_ranks: Callable[..., str],
) -> None:
    script = """
    from demitasse_allreduce.node import Node
    node = Node(comm)
    shared = node.allocate(4_000_000).mappings[rank].view(0, (1_000_000,), np.float32)
    for turn in range(3):
        array = shared if rank == turn else np.empty(1_000_000, np.float32)
        array[:] = np.arange(1_000_000) % 1_000 + rank
        node.allreduce(array).run()
        assert (array == size * (np.arange(1_000_000) % 1_000) + size * (size - 1) // 2).all()
    # other places of one block
    array = shared[16 * rank : 16 * rank + 900_000]
    array[:] = rank
    node.allreduce(array).run()
    assert (array == size * (size - 1) // 2).all()
    """
    on_ranks(3, script)


@pytest.mark.parametrize("ranks", [2, 4, pytest.param(7, marks=pytest.mark.slow)])
def test_arrays_that_begin_anywhere_are_added(on_ranks: Callable[..., str], ranks: int) -> None:
    """Each rank's array has another offset in a cache line; arrays end within a chunk, and are many and
    short. 4 ranks may be more than their processors."""
    script = """
    from demitasse_allreduce.node import Node, SharedAllocator
    node = Node(comm)
    room = SharedAllocator(node).allocate(8_000_000)
    def right(array, n, turn):
        at = np.arange(n, dtype=np.int64)
        array[:] = (at * (rank + 1) + turn) % 101
        node.allreduce(array).run()
        want = sum((at * (other + 1) + turn) % 101 for other in range(size))
        assert (array == want.astype(array.dtype)).all(), (n, turn, array.dtype)
    for turn in range(200):  # short ones behind each other, some of no elements
        n = turn * 37 % 5_003
        right(np.empty(n + 64, np.float32)[rank * 5 % 16 :][:n], n, turn)
    for dtype in ("float32", "float64", "int8", "int16", "int64"):
        large = (262_144 * 3 + 1, 700_001) if dtype in ("float32", "int8") else ()
        for n in (*large, 131_071, 2_700_000 if dtype == "int8" else 9):
            own = np.empty(n + 64, dtype)[rank * 3 % 16 :][:n]
            shared = room.view(0, (n,), dtype)
            for turn, array in enumerate((own, shared, own)):
                right(array, n, turn)
    """
    on_ranks(ranks, script)


def test_owners_get_their_slices_and_give_them(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce.node import Node
    node = Node(comm)
    n = 200_003
    array = node.allocate(8 * n).mappings[rank].view(0, (n,), np.float64)
    edges = [n * i // size for i in range(size + 1)]
    owned = list(zip(edges, edges[1:]))
    reduce, gather = node.reduce_scatter(array, owned), node.allgather(array, owned)
    for turn in range(3):
        array[:] = np.arange(n) + rank
        node.barrier().run()
        reduce.run()
        start, stop = owned[rank]
        assert (array[start:stop] == size * np.arange(start, stop) + size * (size - 1) / 2).all()
        assert (array[:start] == np.arange(start) + rank).all()
        array[start:stop] += 1  # the owner's update
        gather.start()
        while not gather.progress():
            pass
        assert (array == size * np.arange(n) + size * (size - 1) / 2 + 1).all()
    mine, theirs = node.siblings(array)[rank], node.siblings(array)[1 - rank % 2]
    assert (mine == theirs).all()
    """
    on_ranks(3, script)


def test_a_second_channel_is_for_a_second_thread(on_ranks: Callable[..., str]) -> None:
    script = """
    import threading
    from demitasse_allreduce.node import Node
    node = Node(comm)
    other = node.channel()
    a, b = np.ones(600_000, np.float32), np.ones(500_000, np.float64)
    def add(line, array):
        for _ in range(5):
            line.allreduce(array).run()
    thread = threading.Thread(target=add, args=(other, b))
    thread.start()
    add(node, a)
    thread.join()
    assert (a == size**5).all() and (b == size**5).all()
    """
    on_ranks(2, script)


def test_different_arrays_are_told_apart_and_the_node_goes_on(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import WorkerError
    from demitasse_allreduce.node import Node
    node = Node(comm)
    for array in (np.ones(1_000 + (rank == 1)), np.ones(10, np.float32 if rank else np.int32)):
        try:
            node.allreduce(array).run()
        except WorkerError as error:
            print(error)
    lent = [node.allocate(80).mappings[rank].view(0, (10,), np.float64) for _ in range(2)]
    for ask in (node.reduce_scatter, node.allgather):
        lent[rank == 1][:] = rank
        try:
            ask(lent[rank == 1], [(0, 4), (4, 8), (8, 10)]).run()
        except WorkerError as error:
            print(error)
        assert (lent[rank == 1] == rank).all()
    array = np.ones(10)
    node.allreduce(array).run()
    assert (array == size).all()
    """
    output = on_ranks(3, script)
    for name in ("reduce_scatter", "allgather"):
        of = rf"{name} of 10 float64 .slices 0x\w+, place 0x\w+."
        assert len(re.findall(rf"ranks 0, 2 {of}; rank 1 {of}", output)) == 3
    assert output.count("ranks 0, 2 allreduce of 1,000 float64; rank 1 allreduce of 1,001 float64") == 3
    assert output.count("rank 0 allreduce of 10 int32; ranks 1, 2 allreduce of 10 float32") == 3


@pytest.mark.parametrize("shared", [False, True])
def test_a_rank_that_raises_ends_the_others_wait(mpiexec: Callable[..., str], shared: bool) -> None:
    script = """
    from demitasse import WorkerError
    from demitasse_allreduce.node import Node
    node = Node(comm)
    array = np.ones(1_000_000, np.float32)
    if sys.argv[1] == "True":
        array = node.allocate(array.nbytes).mappings[rank].view(0, array.shape, array.dtype)
    work = node.allreduce(array)
    work.run()
    if rank == 1:
        node.abort()
    else:
        try:
            work.run()
        except WorkerError as error:
            print(error)
    """
    assert mpiexec(3, script, str(shared)).count("rank 1 of the node gave up") == 2


def test_a_check_that_raises_ends_a_wait_on_all_ranks(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import WorkerError
    from demitasse_allreduce.node import Node
    node = Node(comm)
    def check():
        if rank == 0:
            raise WorkerError("rank 2 stalls")
    array = np.ones(100_000, np.float32)
    if rank < 2:
        try:
            node.allreduce(array, check).run()
        except WorkerError as error:
            print(f"{rank} {error}")
    comm.Barrier()
    """
    output = on_ranks(3, script)
    assert "0 rank 2 stalls" in output
    assert "1 rank 0 of the node gave up" in output


def test_a_rank_that_dies_is_named(mpiexec: Callable[..., str]) -> None:
    script = """
    import os, signal
    from demitasse import WorkerError
    from demitasse_allreduce.node import Node
    node = Node(comm)
    array = np.ones(1_000_000, np.float32)
    node.allreduce(array).run()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        node.allreduce(array).run()
    except WorkerError as error:
        print(error, flush=True)
    os._exit(0)
    """
    before = set(Path("/dev/shm").iterdir())
    output = mpiexec(3, script, fails=None, options="-disable-auto-cleanup")
    assert "rank 2 of the node (process" in output
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [path for path in left if "demitasse" in path.name]


def test_memory_of_a_block_is_zero_aligned_and_bounded(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce.node import Node, SharedAllocator
    allocator = SharedAllocator(Node(comm))
    memory = allocator.allocate(3_000_000)
    assert (allocator.space, allocator.allocations, allocator.bytes) == ("shared:node", 1, 3_000_000)
    array = memory.view(64, (10, 10), "float32")
    assert array.ctypes.data % 64 == 0 and not array.any()
    for offset in (2_999_999, -4):
        try:
            memory.view(offset, (1,), "float32")
        except ValueError as error:
            print(error)
    memory.close()
    array[:] = 1  # a view that is left keeps its memory
    try:
        memory.view(0, (1,), "float32")
    except ValueError as error:
        print(error)
    """
    output = on_ranks(1, script)
    assert "4 bytes at 2999999 do not fit in a block of 3000000" in output
    assert "the memory was closed" in output


def test_element_types_that_a_loop_adds() -> None:
    assert [added_as(np.dtype(name)) is not None for name in ("f4", "c16", "u8", "f2", "?", ">f4")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert len({element_number(np.dtype(name)) for name in ("f4", "f8", "i4", "u4", "c8")}) == 5


def test_no_name_is_left_in_the_file_system(mpiexec: Callable[..., str], tmp_path: Path) -> None:
    script = """
    import os
    from demitasse_allreduce.node import Node
    node = Node(comm)
    block = node.allocate(5_000_000)
    # Other programs' memory comes and goes there too.
    assert not [name for name in os.listdir("/dev/shm") if "demitasse" in name]
    mapped = open("/proc/self/maps").read().count("memfd:demitasse")
    assert mapped >= 2 * size, mapped
    node.release(block), node.close()
    del node, block
    assert "memfd:demitasse" not in open("/proc/self/maps").read()
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [name for name in opened if "memfd" in name]
    """
    mpiexec(2, script)


def test_an_array_whose_elements_are_not_aligned_is_refused(on_ranks: Callable[..., str]) -> None:
    """Whole lines would be added beyond its end."""
    script = """
    from demitasse import PlanError
    from demitasse_allreduce.node import Node
    node = Node(comm)
    odd = np.zeros(8 * 1001, np.uint8)[4:-4].view(np.float64)
    assert not odd.flags.aligned
    work = node.allreduce(np.zeros(1000))
    for ask in (lambda: node.allreduce(odd), lambda: work.take(odd)):
        try:
            ask()
        except PlanError as error:
            print(error, flush=True)
    """
    assert on_ranks(2, script).count("whose elements are aligned") == 4
