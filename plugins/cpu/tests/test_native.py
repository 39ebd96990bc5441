"""Tables of calls do what their parts do alone, join in order, and name what failed."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DataError, PlanError
from demitasse_cpu import compilation, native
from demitasse_cpu.native import Call, Foreign, WrongError, at_once, in_order

pytestmark = pytest.mark.all_cores


class Numbers(NamedTuple):
    count: int
    factors: Any
    negative: bool


@numba.njit(nogil=True)
def scale(numbers: Any, x: Any, y: Any, factor: float, begin: int, end: int) -> None:
    sign = -1.0 if numbers.negative else 1.0
    for i in range(begin, end):
        y[i] = sign * factor * numbers.factors[i % numbers.count] * x[i]


@numba.njit(nogil=True)
def follow(x: Any, order: Any, number: int) -> None:
    order[x[0]] = number
    x[0] += 1


@numba.njit(nogil=True)
def refuse(x: Any) -> None:
    if x[0] > 0:
        raise WrongError


def parts(y: Any, count: int, negative: bool = False) -> list[Call]:
    x = np.arange(1.0, y.size + 1)
    numbers = Numbers(3, np.array([1.0, 10.0, 100.0]), negative)
    edges = np.linspace(0, y.size, count + 1).astype(int)
    return [Call(scale, (numbers, x, y, 0.5, int(a), int(b))) for a, b in itertools.pairwise(edges)]


def expected(size: int, sign: float = 1.0) -> Any:
    return sign * 0.5 * np.array([1.0, 10.0, 100.0])[np.arange(size) % 3] * np.arange(1.0, size + 1)


@pytest.fixture(params=["openmp", "threads of Python's"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the system's OpenMP, and as if it were not installed."""
    if request.param == "openmp":
        if native.openmp() is None:
            pytest.skip("libgomp.so.1 is not on this system")
    else:
        monkeypatch.setattr(native, "openmp", lambda: None)
    yield request.param


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("negative", [False, True])
def test_parts_at_once_do_what_they_do_alone(team: str, count: int, negative: bool) -> None:
    y = np.zeros(100)
    at_once(parts(y, count, negative))()
    assert np.array_equal(y, expected(100, -1.0 if negative else 1.0))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12))
@settings(max_examples=examples(20))
def test_joined_works_are_done_in_their_order(sizes: list[int]) -> None:
    position, order = np.zeros(1, np.int64), np.full(sum(sizes), -1, np.int64)
    numbers = iter(range(sum(sizes)))
    works = [
        in_order([Call(follow, (position, order, next(numbers))) for _ in range(size)]) for size in sizes
    ]
    works[0].join(works)()  # type: ignore[attr-defined]
    assert order.tolist() == list(range(sum(sizes)))


def test_works_of_python_stand_between_native_ones() -> None:
    seen: list[float] = []
    y = np.zeros(10)
    in_order([at_once(parts(y, 2)), lambda: seen.append(y[0])])()
    assert seen == [0.5]


def test_a_function_of_c_is_called_with_its_words() -> None:
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    address = ctypes.cast(ctypes.CDLL(None).memcmp, ctypes.c_void_p).value or 0
    words = [source.ctypes.data, target.ctypes.data, 64]
    compare = Foreign("memcmp", address, words, held=(source, target))
    with pytest.raises(PlanError, match="memcmp failed"):
        in_order([compare, compare])()
    with pytest.raises(PlanError, match="memcmp failed with status"):
        compare()
    target[:] = source
    in_order([compare, compare])()
    compare()


ARRAYS = [
    make(dtype)
    for dtype in (np.float32, np.float64, np.uint16, np.int64, bool)
    for make in (
        lambda dtype: np.zeros(6, dtype),
        lambda dtype: np.zeros(12, dtype)[::2],
        lambda dtype: np.zeros((2, 3), dtype),
        lambda dtype: np.zeros((2, 3), dtype, order="F"),
        lambda dtype: np.zeros((4, 6), dtype)[::2, ::2],
        lambda dtype: np.zeros((1, 1), dtype),
        lambda dtype: np.broadcast_to(np.zeros(1, dtype), (2, 3)),
        lambda dtype: np.frombuffer(bytes(48), dtype),
        lambda dtype: np.frombuffer(bytes(49), dtype, count=4, offset=1),
    )
]
NUMBERS = [0, -1, 2**40, 2**63, 2**64 - 1, True, 1.0, np.int64(1), np.int32(1), np.float32(1)]
TUPLES = [Numbers(3, ARRAYS[0], False), Numbers(3, ARRAYS[2], False), (3, ARRAYS[0], False), (1, 2)]


def test_what_numba_takes_for_different_types_is_told_apart() -> None:
    types: dict[Any, set[Any]] = {}
    for value in [*ARRAYS, *NUMBERS, *TUPLES]:
        types.setdefault(compilation._kind(value), set()).add(numba.typeof(value))
    assert [kinds for kinds in types.values() if len(kinds) > 1] == []
    assert len(types) >= len(set.union(*types.values())) > 30


def test_a_loop_is_looked_up_once_for_arguments_of_the_same_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,), (two,) = parts(np.zeros(10), 1), parts(np.zeros(20), 1)
    one.prepare()
    monkeypatch.setattr(scale, "compile", lambda types: pytest.fail(f"compiled for {types}"))
    (three,) = parts(np.zeros(30), 1)
    assert one.record()[0] == two.record()[0] == three.record()[0] != 0


def test_what_cannot_be_passed_is_named() -> None:
    with pytest.raises(PlanError, match="cannot be passed"):
        native._flatten("text", [], [])


def test_threads_that_call_at_once_each_have_a_team_of_their_own(team: str) -> None:
    results = [np.zeros(999) for _ in range(4)]
    works = [at_once(parts(y, 2)) for y in results]
    callers = [threading.Thread(target=lambda work=work: [work() for _ in range(50)]) for work in works]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(y, expected(999)) for y in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes_without_the_threads_that_it_left_behind() -> None:
    script = """
import os, sys
sys.path[:0] = sys.argv[1:]
import numpy as np
import demitasse
import test_native as t
y = np.zeros(100)
assert demitasse.threads_here(2) == 2
work = t.at_once(t.parts(y, 2))
work()
y[:] = 0
child = os.fork()
if child == 0:
    work()
    lost = demitasse.threads_here(2) < 2  # which is told to who chooses kernels
    os._exit(0 if lost and np.array_equal(y, t.expected(100)) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(here), str(here.parents[2] / "tests")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "0", done.stderr


def test_what_walks_a_table_is_compiled_with_what_it_calls() -> None:
    """Otherwise a tuner would attribute that time to the kernel, and keep another kernel for good."""
    program = """
import numpy as np
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.loops import calls, elementwise
from demitasse_cpu.native import in_order, openmp
fill = ready(elementwise.filled, np.ones(4, np.float32), 0.0, 0, 4)
work = in_order([fill, fill])
work.prepare()
compiled = len(calls.run.signatures)
work()
assert openmp() is None or compiled == len(calls.run.signatures) == 1, calls.run.signatures
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_patience_is_ours_only_where_the_user_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with native._patience():
        assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with native._patience():
        assert "GOMP_SPINCOUNT" not in os.environ


def test_a_loop_that_finds_numbers_wrong_ends_its_row_by_its_own_error(team: str) -> None:
    x, order = np.zeros(1, np.int64), np.zeros(4, np.int64)
    wrong = Call(refuse, (x,), lambda: DataError(f"{x[0]} is too much"))
    work = in_order([wrong, Call(follow, (x, order, 7))])
    work()  # which counts in x, so the next call fails
    assert order.tolist() == [7, 0, 0, 0]
    with pytest.raises(DataError, match=r"^1 is too much$"):
        work()
    work.named("loss")
    for each in (work, wrong):
        with pytest.raises(DataError, match=r"^layer 'loss': 1 is too much$"):
            each()
    assert order.tolist() == [7, 0, 0, 0]


def test_what_is_dropped_gives_its_arrays_back_at_once() -> None:
    """A tuner's trials have as much memory as a net's largest layer, so they must not wait for a garbage
    collection."""
    gc.collect()
    gc.disable()
    try:
        y, held = np.zeros(8), np.zeros(8)
        foreign = Foreign(
            "abs", ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0, [0], 1, held
        )
        work = in_order([at_once(parts(y, 2)), foreign])
        work()
        arrays = [weakref.ref(each) for each in (y, held)]
        del y, held, foreign, work
        assert [array() for array in arrays] == [None, None]
    finally:
        gc.enable()
