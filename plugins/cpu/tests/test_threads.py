"""How work is divided and shared with companions, and what becomes of these."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse_cpu.native import in_order
from demitasse_cpu.threads import divide, together

pytestmark = pytest.mark.all_cores


def companions() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("demitasse-cpu")}


def meet(at: threading.Barrier) -> None:
    """Return when another thread is here too."""
    at.wait(30)


@given(count=st.integers(1, 200), parts=st.integers(1, 20))
def test_ranges_cover_all_without_gaps_and_nearly_equal(count: int, parts: int) -> None:
    ranges = divide(count, parts)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    sizes = {stop - start for start, stop in ranges}
    assert len(ranges) == min(count, parts)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_every_part_is_done_once_in_every_call() -> None:
    done: list[int] = []
    work = together([partial(done.append, i) for i in range(5)])
    for _ in range(200):
        done.clear()
        work()
        assert sorted(done) == [0, 1, 2, 3, 4]


def test_parts_run_at_once() -> None:
    meeting = threading.Barrier(2)
    together([partial(meet, meeting), partial(meet, meeting)])()


def test_a_part_that_fails_is_reported_when_all_are_done() -> None:
    done: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError("part 1")

    work = together([lambda: done.append(0), fail, lambda: done.append(2)])
    for _ in range(20):
        done.clear()
        with pytest.raises(ZeroDivisionError, match="part 1"):
            work()
        assert sorted(done) == [0, 2]


def test_stages_follow_each_other() -> None:
    done: list[str] = []
    in_order([lambda: done.append("first"), lambda: done.append("second")])()
    assert done == ["first", "second"]


def test_companions_end_with_their_thread() -> None:
    before = companions()
    started: set[threading.Thread] = set()

    def caller() -> None:
        meeting = threading.Barrier(2)
        together([partial(meet, meeting)] * 2)()
        started.update(companions() - before)

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join(30)
    assert started
    gc.collect()
    for companion in started:
        companion.join(30)
        assert not companion.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_companions_of_its_own() -> None:
    meeting = threading.Barrier(2)
    together([partial(meet, meeting)] * 2)()
    child = os.fork()
    if child == 0:
        again = threading.Barrier(2)
        together([partial(meet, again)] * 2)()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
