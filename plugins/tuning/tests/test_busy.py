"""Kernels that were tried while other programs used the cores are tried again, but not forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from demitasse_host import waits
from demitasse_tuning import tuner, waiting
from demitasse_tuning.cache import cache_file, read
from demitasse_tuning.diagnosis import findings
from demitasse_tuning.waiting import DISTURBED, disturbed, waited

BUSY = ", on a busy machine"


@pytest.fixture
def pick(bench, relu, monkeypatch):
    """Pick between kernels a and b that take given milliseconds, as a new process or the same one would,
    while threads wait for a part of the time."""

    def run(a, b, busy=0.0, *, anew=True, **options):
        if anew:
            monkeypatch.setattr(tuner, "_tried_here", set())
        bench.busy = busy
        with closing(bench.tuner(**options)) as made:
            return made.pick("fast", relu(), [bench.kernel("a", a), bench.kernel("b", b)])[1]

    return run


def test_a_later_process_tries_again_what_was_disturbed(pick, bench):
    assert pick(9, 20, busy=0.5) == f"tried: 9 ms, next 20{BUSY}"
    assert pick(9, 8) == "tried: 8 ms, next 9"
    calls = len(bench.calls)
    assert pick(9, 8) == "remembered: 8 ms, next 9"
    assert len(bench.calls) == calls


def test_the_process_that_tried_keeps_its_choice(pick, bench):
    pick(9, 20, busy=0.5)
    calls = len(bench.calls)
    assert pick(9, 8, anew=False) == f"remembered: 9 ms, next 20{BUSY}"
    assert len(bench.calls) == calls


def test_of_trials_that_were_all_disturbed_the_least_seconds_count_and_there_are_three(pick, bench):
    assert pick(9, 20, busy=0.5) == f"tried: 9 ms, next 20{BUSY}"
    assert pick(30, 12, busy=0.5) == f"tried: 9 ms, next 12{BUSY}"
    assert pick(30, 7, busy=0.5) == f"tried: 7 ms, next 9{BUSY}"
    calls = len(bench.calls)
    assert pick(1, 2) == f"remembered: 7 ms, next 9{BUSY}"
    assert len(bench.calls) == calls


def test_of_equal_least_seconds_the_preferred_kernel_stays(pick):
    pick(10, 10.1, busy=0.5)
    assert pick(10.2, 9.9, busy=0.5) == f"tried: 10 ms, next 9.9{BUSY}"


@pytest.mark.parametrize(("part", "again"), [(0.9 * DISTURBED, False), (1.1 * DISTURBED, True)])
def test_threads_that_wait_a_little_do_not_disturb(pick, part, again):
    assert pick(9, 20, busy=part).endswith(BUSY) == again
    assert pick(9, 8).startswith("tried") == again


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (MemoryError(), None, (1, f"tried: 8 ms, next 9{BUSY}")),
        (None, MemoryError(), (0, f"tried: 9 ms, the others failed{BUSY}")),
    ],
    ids=["now it runs", "now it fails"],
)
def test_whether_a_kernel_runs_the_last_trial_tells(bench, relu, monkeypatch, first, second, chosen):
    bench.busy = 0.5
    for error in (first, second):
        monkeypatch.setattr(tuner, "_tried_here", set())
        with closing(bench.tuner()) as made:
            candidates = [bench.kernel("a", 9), bench.kernel("b", 8, error=error)]
            picked = made.pick("fast", relu(), candidates)
    assert picked == chosen


@pytest.mark.parametrize("fails", ["no room", "no kernel runs"])
def test_a_choice_stays_where_the_trial_that_doubts_it_cannot_be(pick, bench, relu, monkeypatch, fails):
    pick(9, 8, busy=0.5)
    monkeypatch.setattr(tuner, "_tried_here", set())
    error = MemoryError() if fails == "no kernel runs" else None
    bench.allocator.room = 0 if fails == "no room" else bench.allocator.room
    with closing(bench.tuner()) as made:
        candidates = [bench.kernel("a", 9, error=error), bench.kernel("b", 8, error=error)]
        assert made.pick("fast", relu(), candidates) == (1, f"remembered: 8 ms, next 9{BUSY}")


def test_with_fewer_threads_than_a_choice_is_of_nothing_is_tried_again(pick, bench, monkeypatch):
    """As in a forked process: a trial there says little about the choice that it would replace."""
    pick(9, 8, busy=0.5)
    calls = len(bench.calls)
    monkeypatch.setattr(tuner, "threads_here", lambda wanted: wanted - 1)
    assert pick(7, 20) == f"remembered: 8 ms, next 9{BUSY}"
    assert len(bench.calls) == calls


def test_the_file_and_doctor_say_what_was_disturbed(pick):
    pick(9, 20, busy=0.5)
    (entry,) = json.loads(cache_file().read_text())["plugins"]["fast"]["choices"].values()
    assert entry["disturbed"] == 1
    (finding,) = findings()
    assert finding.message.startswith("1 choice of a kernel is saved in")
    assert ", 1 of them made on a busy machine" in finding.message
    pick(9, 8)
    (entry,) = json.loads(cache_file().read_text())["plugins"]["fast"]["choices"].values()
    assert "disturbed" not in entry
    (finding,) = findings()
    assert "busy" not in finding.message


@pytest.mark.parametrize("damaged", ["true", "-1", "1.5", '"1"', "null"])
def test_a_count_that_is_none_is_no_choice(pick, damaged):
    pick(9, 20, busy=0.5)
    text = cache_file().read_text()
    cache_file().write_text(text.replace('"disturbed": 1', f'"disturbed": {damaged}'))
    with pytest.raises(Exception, match="it is damaged"):
        read(cache_file())


def test_the_thread_that_waited_longest_tells():
    before, after = {"1": 1.0, "2": 5.0}, {"1": 1.01, "2": 5.2, "3": 0.3}
    assert disturbed(before, after, 0.29 / DISTURBED)
    assert not disturbed(before, after, 0.31 / DISTURBED)
    assert not disturbed({}, {}, 1.0)


def test_what_is_told_of_one_end_alone_does_not_disturb():
    """Since the start of the process, its threads may have waited for a long time."""
    assert not disturbed({}, {"1": 60.0, "host": 9.0}, 1.0)
    assert not disturbed({"1": 60.0}, {}, 1.0)


def test_of_a_thread_that_ends_meanwhile_nothing_is_told_and_of_others_all(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "THREADS", tmp_path / "task")
    monkeypatch.setattr(waiting, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert waited() == {}
    for name in ("1", "2"):
        (tmp_path / "task" / name).mkdir(parents=True)
    (tmp_path / "task" / "2" / "schedstat").write_text("5000000000 3000000000 7\n")
    assert waited() == {"2": 3.0}
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 800 9 10\ncpu0 1 2 3 4 5 6 7 800 9 10\n")
    assert waited() == {"2": 3.0, "host": 2.0}


SPIN = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells who waits")
def test_beside_a_process_on_its_core_a_thread_is_seen_to_wait():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        end, seen = time.perf_counter() + 10, False
        while not seen and time.perf_counter() < end:
            before, start = waited(), time.perf_counter()
            while time.perf_counter() < start + 0.2:
                pass
            seen = disturbed(before, waited(), time.perf_counter() - start)
        assert seen
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
