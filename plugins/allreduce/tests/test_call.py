"""``allreduce`` of an array in one call, by real processes, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SUMS = """
from demitasse_allreduce import allreduce, call
from demitasse_allreduce.algorithms import ALGORITHMS
rounds, call._TRIALS = call._TRIALS, 1  # whichever is found to be quickest
draw = np.random.default_rng(9)
world = comm.Split(rank // 2 if sys.argv[1] == "split" else 0, -rank)
members = [r for r in range(comm.size) if sys.argv[1] != "split" or r // 2 == rank // 2]
for shape, dtype in (((), "f4"), ((0,), "f8"), ((3, 5), "i8"), ((4_000,), "f4"), ((300, 301), "f8"),
                     ((7,), "u1"), ((600_001,), "f4")):
    everyone = draw.integers(0, 25, (comm.size, *shape)).astype(dtype)
    expected = everyone[members].sum(0)
    for algorithm in ("auto", "shared", "mpi", *ALGORITHMS):
        for turn in range(2):
            array = everyone[rank].copy() if shape else np.array(everyone[rank])
            assert allreduce(array, world, algorithm) is None
            assert (array == expected).all(), (algorithm, shape, dtype)
call._TRIALS = rounds
print("right")
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_arrays_are_summed_in_place(on_ranks: Callable[..., str], ranks: int) -> None:
    assert on_ranks(ranks, SUMS, "world").count("right") == ranks


def test_sub_communicators_sum_for_themselves(on_ranks: Callable[..., str]) -> None:
    assert on_ranks(4, SUMS, "split").count("right") == 4


NODES = """
from demitasse_allreduce import allreduce, call
quickest, homes = call._State._quickest, call.homes
rounds, call._TRIALS = call._TRIALS, 1  # whichever is found to be quickest
for places in ([0, 0, 2, 2], [0, 1, 0, 0]):  # pairs, and one by itself
    world = comm.Dup()  # of which nothing is remembered
    call.homes = lambda comm: places
    draw, tried = np.random.default_rng(9), []
    def noted(self, names, trial, check):
        tried.append(names)
        return quickest(self, names, trial, check)
    call._State._quickest = noted
    for algorithm in ("auto", "nodes", "two-level", "chain-chain", "chain-binomial"):
        for shape, dtype in (((3, 5), "i8"), ((70, 301), "f8"), ((0,), "f8")):
            everyone = draw.integers(0, 25, (comm.size, *shape)).astype(dtype)
            for turn in range(2):
                array = everyone[rank].copy()
                allreduce(array, world, algorithm)
                assert (array == everyone.sum(0)).all(), (algorithm, shape, dtype)
    assert {"nodes", "two-level", "chain-chain", "chain-binomial", "mpi", "ring"} <= {*tried[0]}, tried
    call._State._quickest, call.homes = quickest, homes
call._TRIALS = rounds
print("right")
"""


def test_ranks_of_several_nodes_have_two_levels_to_choose_from(on_ranks: Callable[..., str]) -> None:
    assert on_ranks(4, NODES).count("right") == 4


def test_strides_and_element_types_of_all_kinds(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce import allreduce
    for dtype in ("f2", "g", "?", "c8", ">f4", "m8[s]", "i2", "u8"):
        array = np.zeros((6, 4), dtype)
        array[::2, 1] = np.array([1, 2, 3]).astype(dtype) if dtype != "?" else [True, rank == 0, False]
        want = array.astype("O") if dtype == "m8[s]" else array.copy()
        part = array[::2, ::-1]
        expected = part.copy()
        for _ in range(1, size):
            expected = expected + part if dtype != "?" else expected
        if dtype == "?":
            expected[1, 2] = True
        allreduce(part)
        assert (part == expected).all(), dtype
        assert not array[1::2].any(), dtype
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    allreduce(fortran)
    assert (fortran == size * np.arange(12.0).reshape(3, 4)).all()
    """
    on_ranks(3, script)


def test_what_is_remembered_of_a_communicator_is_for_it_alone(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import DataError
    from demitasse_allreduce import allreduce, call
    pairs = comm.Split(rank // 2, rank)
    for turn in range(2):
        for world, ranks in ((comm, size), (pairs, 2), (None, size)):
            for n in (7, 5_000):
                array = np.ones(n, np.float32)
                allreduce(array, world)
                assert (array == ranks).all(), (turn, ranks, n)
    allreduce(array, pairs)
    pairs.Free()
    try:
        allreduce(array, pairs)
    except (DataError, MPI.Exception):
        print("freed")
    """
    assert on_ranks(4, script).count("freed") == 4


def test_an_array_may_move_between_sums(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import DataError
    from demitasse_allreduce import allreduce
    from demitasse_allreduce.call import node_of
    from demitasse_allreduce.node import work
    memory = node_of(comm).allocate(100_000).mappings[rank].view(0, (9_000,), np.float32)
    bytes_ = np.zeros(36_001, np.uint8)
    known = work.DATA
    for data in (known, -1):  # -1: NumPy is asked where an array is
        work.DATA = data
        for n in (50, 9_000):
            plain, fixed = np.empty(n, np.float32), np.empty(n, np.float32)
            fixed.flags.writeable = False
            odd = bytes_[1 : 1 + 4 * n].view(np.float32)
            assert not odd.flags.aligned
            every_other = np.empty(2 * n, np.float32)[::2]
            for array in (plain, memory[:n], np.empty((1, n), np.float32), odd, every_other):
                array[...] = rank + 1
                allreduce(array, algorithm="shared")
                assert (array == size * (size + 1) / 2).all(), (n, array.flags)
            try:
                allreduce(fixed, algorithm="shared")
            except DataError as error:
                print("read-only" in str(error))
            moved = np.empty(0, np.float32)
            moved.resize(n, refcheck=False)
            moved[:] = rank
            allreduce(moved, algorithm="shared")
            assert (moved == size * (size - 1) / 2).all()
    work.DATA = known
    """
    assert on_ranks(2, script).count("True") == 8


def test_arrays_in_shared_memory_are_summed_where_they_lie(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce import allreduce
    from demitasse_allreduce.call import node_of
    node = node_of(comm)
    array = node.allocate(4_000_000).mappings[rank].view(0, (1_000, 1_000), np.float32)
    for turn in range(3):
        array[:] = rank + 1
        allreduce(array)
        assert (array == size * (size + 1) / 2).all()
    """
    on_ranks(2, script)


def test_shared_zeros_are_summed_where_they_lie_and_go_with_their_last_view(
    mpiexec: Callable[..., str],
) -> None:
    script = """
    import gc
    from demitasse_allreduce import allreduce, shared_zeros
    from demitasse_allreduce.call import node_of
    from demitasse_allreduce.node.work import NodeWork
    node, places = node_of(comm), []
    place = NodeWork._place
    NodeWork._place = lambda self, found: (places.append(found and found[1]), place(self, found))[1]
    maps = lambda: open("/proc/self/maps").read().count("memfd:demitasse")
    before = maps()
    array = shared_zeros((300, 1000))
    assert (array == 0).all() and array.shape == (300, 1000) and array.dtype == np.float32
    for part, where in ((array, 0), (array[20:280], 80_000), (array[rank:290 + rank], 4_000 * rank)):
        everyone = np.arange(size * part.size, dtype="f4").reshape(size, *part.shape)
        part[:] = everyone[rank]
        allreduce(part)
        assert (part == everyone.sum(0)).all()
        assert places[-1] == where
    ordinary = np.full((300, 1000), rank + 1, np.float32)
    array[:] = 1
    allreduce(ordinary if rank else array)  # one of each
    assert places[-1] == (None if rank else 0) and (array == (1 if rank else 3)).all()
    tail = array[1:2]
    del array, part
    gc.collect()
    assert len(node.blocks) == 1 and (tail[0] == tail[0, 0]).all()
    del tail
    gc.collect()
    comm.Barrier()
    assert not node.blocks and maps() == before
    assert shared_zeros(0).shape == (0,) and shared_zeros((), "i8").shape == ()
    print("right")
    """
    assert mpiexec(2, script).count("right") == 2


def test_shared_zeros_that_cannot_be_had_are_said_on_every_rank(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import DemitasseError
    from demitasse_allreduce import shared_zeros
    for shape, dtype in ((3, "O"), (-1, "f4"), (2.5, "f4"), ((4, 5 + rank), "f4"), (2**46, "f8")):
        try:
            shared_zeros(shape, dtype)
        except (DemitasseError, MemoryError) as error:
            print(type(error).__name__, error)
    assert shared_zeros((2, 2)).sum() == 0
    """
    output = on_ranks(2, script)
    for said in (
        "DataError shared memory holds numbers, not elements of type object",
        "DataError a shape must be whole numbers, 0 or more, not -1",
        "DataError a shape must be whole numbers, 0 or more, not 2.5",
        "WorkerError the ranks ask for different arrays: rank 0 4x5 float32; rank 1 4x6 float32",
        "MemoryError shared:node: asked for 562,949,953,421,312 bytes: rank",
    ):
        assert output.count(said) == 2, (said, output)


def test_shared_zeros_of_several_nodes_are_ordinary_arrays(mpiexec: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce import allreduce, call, shared_zeros
    call.homes = lambda comm: [0, 1]
    array = shared_zeros(10_000)
    array += rank + 1
    allreduce(array)
    assert (array == 3).all() and call.node_of(comm) is None
    """
    mpiexec(2, script)


def test_what_cannot_be_summed_is_said_on_every_rank(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse import DemitasseError
    from demitasse_allreduce import allreduce
    fixed = np.ones(3)
    fixed.flags.writeable = False
    for array, algorithm in (
        ([1.0], "auto"), (np.array(["a"]), "auto"), (np.array([None]), "auto"), (fixed, "auto"),
        (np.ones(3), "rign"), (np.ones(3, "f2"), "shared"), (np.ones(3, ">f4"), "mpi"),
    ):
        try:
            allreduce(array, comm, algorithm)
        except DemitasseError as error:
            print(type(error).__name__, error)
    """
    output = on_ranks(2, script)
    for said in (
        "DataError allreduce sums NumPy arrays in place, not list",
        "DataError allreduce cannot add elements of type <U1",
        "DataError allreduce cannot add elements of type object",
        "DataError allreduce sums in place, but the array is read-only",
        "'ring'",
        "not float16",
        "DataError MPI has no type for elements of >f4",
    ):
        assert output.count(said) >= 2, (said, output)


@pytest.mark.parametrize("algorithm", ["auto", "shared", "ring", "mpi"])
def test_ranks_with_different_arrays_are_named(on_ranks: Callable[..., str], algorithm: str) -> None:
    script = """
    from demitasse import WorkerError
    from demitasse_allreduce import allreduce
    odd, long = np.ones(9, "f4" if rank else "i4"), np.ones(5_000_000 if rank else 40)
    for array in (np.ones(100 + rank), long, odd):
        try:
            allreduce(array, comm, sys.argv[1])
        except WorkerError as error:
            print(error)
    array = np.ones(10)
    allreduce(array, comm, sys.argv[1])
    assert (array == size).all()
    """
    output = on_ranks(2, script, algorithm)
    assert output.count("the ranks ask for different sums: rank") == 6
    assert output.count("9 int32") == 2
    assert output.count("9 float32") == 2


def test_what_a_communicator_keeps_goes_with_it(on_ranks: Callable[..., str]) -> None:
    script = """
    import gc, os
    from demitasse_allreduce import allreduce
    def open_now():
        return len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count("memfd:demitasse")
    first = None
    for _ in range(5):
        mine = comm.Dup()
        allreduce(np.ones(100_000), mine)
        mine.Free()
        gc.collect()
        first = first or open_now()
    assert open_now() == first, (first, open_now())
    """
    on_ranks(2, script)


def test_short_integers_wrap_around_whatever_is_quickest(on_ranks: Callable[..., str]) -> None:
    script = """
    from demitasse_allreduce import allreduce
    from demitasse_allreduce.call import _attach
    world = comm.Dup()
    state = _attach(world)
    state._chosen = {bits: "mpi" for bits in range(40)}
    kinds = {"int8": "shared", "uint16": "shared", "int32": "mpi", "float32": "mpi"}
    for dtype, way in kinds.items():
        assert state._choose(np.ones(16, dtype), None) == way, dtype
    for dtype in ("int8", "uint8", "int16", "uint16"):
        largest = np.iinfo(dtype).max
        array = np.full(33, largest, dtype)
        allreduce(array, world)
        assert (array == np.full(33, largest, dtype) + np.full(33, largest, dtype)).all(), array
    print("wraps")
    """
    assert on_ranks(2, script).count("wraps") == 2


def test_the_librarys_sum_is_tried_again_after_some_calls(mpiexec: Callable[..., str]) -> None:
    """The algorithm that was fastest while the machine was busy need not be so later. Calls of all
    sizes of one power of two count, and a choice that is confirmed is left alone for longer. Nothing is
    tried while the node is in a call of the program's."""
    script = """
    from demitasse_allreduce import allreduce, call
    answers, tried = iter(["mpi", "mpi", "mpi", "shared"]), []
    def answer(self, names, trial, check):
        tried.append(trial.nbytes)
        return next(answers)
    call._State._quickest = answer
    call.SOON, call.LATER = 6, 2
    for calls in range(40):
        array = np.full(1000 + calls % 11, rank + 1.0, np.float32)
        allreduce(array)
        assert (array == 3).all()
        if calls % 10 == 0:
            large = np.ones(4000, np.float32)
            allreduce(large)
            assert (large == 2).all()
    assert tried == [4000, 16000, 4024, 4028], tried
    state = call._state_of(None)
    assert state._chosen == {12: "shared", 14: "mpi"}, state._chosen
    work = call.node_of(comm).allreduce(np.ones(100_000))
    for calls in range(20):
        if calls == 2:
            work.start()
        allreduce(large)
    work.wait()
    assert tried[4:] == [], tried
    print("again")
    """
    assert mpiexec(2, script).count("again") == 2


def test_a_rank_that_dies_in_a_sum_is_an_error_elsewhere(mpiexec: Callable[..., str]) -> None:
    script = """
    import os, signal
    from demitasse import WorkerError
    from demitasse_allreduce import allreduce
    array = np.ones(1_000_000)
    allreduce(array)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        allreduce(array)
    except WorkerError as error:
        print(error, flush=True)
    os._exit(0)
    """
    assert "rank 1 of the node" in mpiexec(2, script, fails=None, options="-disable-auto-cleanup")


STRANGER = """
import demitasse
from demitasse_allreduce import allreduce
array = np.full(5, rank + 1.0)
allreduce(array, comm, "strangers-ring")
assert (array == sum(range(1, comm.size + 1))).all(), array
try:
    allreduce(array, comm, "strangers-rign")
except demitasse.CompositionError as error:
    assert "allreduce: unknown algorithm 'strangers-rign'; did you mean 'strangers-ring'?" in str(error)
    print("right")
"""


def test_an_algorithm_of_another_installed_plugin_is_known(
    mpiexec: Callable[..., str], tmp_path: Path
) -> None:
    """The plugin is next to the ranks' program, where Python finds it."""
    package, about = tmp_path / "strange_sums", tmp_path / "strange_sums-1.dist-info"
    package.mkdir()
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strange_sums\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[demitasse.plugins]\nstrange = strange_sums\n")
    (package / "plugin.toml").write_text(
        'name = "strange"\nsummary = "A ring of its own"\napi = ">=0.1"\n[roles.collectives]\n'
    )
    (package / "__init__.py").write_text(
        "from dataclasses import replace\n"
        "from demitasse import hookimpl\n"
        "from demitasse_allreduce.algorithms import ALGORITHMS\n"
        "@hookimpl\n"
        "def collectives():\n"
        "    return {'strangers-ring': ALGORITHMS['ring']}\n"
    )
    assert mpiexec(2, STRANGER).count("right") == 2
