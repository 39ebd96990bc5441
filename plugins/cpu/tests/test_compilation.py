"""Requested loops are compiled together, also by helpers, with the same results whoever compiles
them."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import typeof, types

import demitasse
from demitasse import compile_once
from demitasse_cpu import compilation
from demitasse_cpu.compilation import address, settle, want
from demitasse_cpu.compile_helper import heard, told
from demitasse_cpu.loops.winograd_blocks import Lie, Tiles
from demitasse_cpu.native import Call, Native
from demitasse_host import compiler

LOOPS = """
from demitasse import compiled_loop

@compiled_loop
def first(x, by):
    for i in range(x.size):
        x[i] += by

@compiled_loop
def second(x, by):
    for i in range(x.size):
        x[i] *= by

@compiled_loop
def third(x, by):
    for i in range(x.size):
        x[i] -= by

@compiled_loop
def fourth(x, by):
    first(x, by)
    second(x, by)

@compiled_loop
def wrong(x, by):
    return x.no_such_thing
"""
NAMES = ("first", "second", "third", "fourth")
EXPECTED = {"first": 5.0, "second": 6.0, "third": -1.0, "fourth": 15.0}
"""The results for 2 and 3."""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a module of loops that nobody has compiled before. Its cache is deleted with it."""
    name = f"loops_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(LOOPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for known in ("_ADDRESSES", "_FAILURES", "_WANTED"):
        monkeypatch.setattr(compilation, known, {})
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield two helpers, whatever the machine has and other tests use."""
    mine = compilation._Helpers()
    monkeypatch.setattr(compilation, "_helpers", mine)
    monkeypatch.setattr(compilation, "_free", lambda stack: 3)
    yield mine
    mine._end()


def wait_for(helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process compile nothing before both helpers have started up."""

    def compile_late(loop: Any, types: Any, read_only: bool = False) -> bool:
        end = time.monotonic() + 60
        while not read_only and len(helpers._ready) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        return compile_once(loop, types, read_only=read_only)

    monkeypatch.setattr(compilation, "compile_once", compile_late)


def results(module: ModuleType) -> dict[str, float]:
    """Return what each loop computes from 2 and 3, called by its address."""
    made = {}
    for name in NAMES:
        x = np.full(3, 2.0, np.float32)
        Native([[Call(getattr(module, name), (x, 3.0))]])()
        made[name] = float(x[0])
    return made


def wanted(module: ModuleType, names: tuple[str, ...] = NAMES, *dtypes: str) -> list[Any]:
    return [
        want(getattr(module, name), (np.zeros(3, dtype), 3.0))
        for name in names
        for dtype in dtypes or ("float32",)
    ]


def missed(module: ModuleType) -> int:
    """Return how many loops this process compiled itself."""
    return sum(bool(getattr(module, name).stats.cache_misses) for name in NAMES)


def test_nothing_is_compiled_before_it_is_needed(loops: ModuleType) -> None:
    x = np.full(3, 2.0, np.float32)
    calls = [Call(getattr(loops, name), (x, 3.0)) for name in NAMES]
    assert not any(getattr(loops, name).overloads for name in NAMES)
    calls[0].prepare()
    assert all(getattr(loops, name).overloads for name in NAMES)
    assert not compilation._WANTED


def test_helpers_compile_what_this_process_then_reads(
    loops: ModuleType,
    helpers: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for(helpers, monkeypatch)
    keys = wanted(loops, NAMES, "float32", "float64")
    with caplog.at_level("INFO", "demitasse"):
        settle()
    told = "4 loops are compiled because they are new to this machine, and kept on disk"
    assert caplog.record_tuples == [("demitasse.cpu", logging.INFO, told)]
    assert len(helpers.alive()) == 2
    assert missed(loops) < len(NAMES)
    assert len({address(key) for key in keys}) == len(keys)
    assert results(loops) == EXPECTED


def test_nobody_waits_for_a_helper_that_starts_up(
    loops: ModuleType, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(600)"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    monkeypatch.setattr(compilation, "_helper", lambda: subprocess.Popen(slow, **pipes))
    monkeypatch.setattr(compilation, "_PATIENCE", 1000.0)
    keys = wanted(loops)
    settle()
    assert missed(loops) == len(NAMES)
    assert all(address(key) for key in keys)
    assert len(helpers.alive()) == 2
    assert not helpers._ready


def test_one_new_loop_needs_no_helper(loops: ModuleType, helpers: Any) -> None:
    wanted(loops, ("first",))
    settle()
    assert not helpers.alive()
    assert loops.first.stats.cache_misses


def test_helpers_that_are_there_are_asked_again(loops: ModuleType, helpers: Any) -> None:
    wanted(loops)
    settle()
    before = [process.pid for process in helpers.alive()]
    keys = wanted(loops, NAMES, "float64")
    settle()
    assert [process.pid for process in helpers.alive()] == before
    assert len({address(key) for key in keys}) == len(keys)


def test_what_is_kept_needs_no_helpers(loops: ModuleType, helpers: Any) -> None:
    wanted(loops)
    settle()
    helpers._end()
    program = f"""
        import {loops.__name__} as loops, numpy as np
        from demitasse_cpu import compilation
        for name in {NAMES}:
            compilation.want(getattr(loops, name), (np.zeros(3, "float32"), 3.0))
        compilation.settle()
        print(len(compilation._helpers.alive()), *(len(loops.first.stats.cache_misses),))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["0", "0"]


@pytest.mark.parametrize("job", ["no json", json.dumps(["no_such_module", "loop", []])])
def test_a_helper_that_ends_is_done_without(
    loops: ModuleType, helpers: Any, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(compilation, "_job", lambda *about: job)
    keys = wanted(loops)
    settle()
    assert missed(loops) == len(NAMES)
    assert all(address(key) for key in keys)
    assert results(loops) == EXPECTED


def test_a_loop_that_no_helper_finds_is_compiled_here(loops: ModuleType, helpers: Any) -> None:
    one, two = loops.first, loops.second
    loops.first, loops.second = two, one  # neither is what the module has under its name
    keys = [want(loop, (np.zeros(3, "float32"), 3.0)) for loop in (one, two)]
    settle()
    assert all(address(key) for key in keys)
    assert one.stats.cache_misses and two.stats.cache_misses


@pytest.mark.parametrize("alone", [True, False])
def test_an_error_is_for_who_calls_that_loop(
    loops: ModuleType, helpers: Any, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    if alone:
        monkeypatch.setattr(compilation, "_free", lambda stack: 1)
    broken, *keys = wanted(loops, ("wrong", *NAMES))
    settle()
    assert all(address(key) for key in keys)
    for _ in range(2):
        with pytest.raises(Exception, match="no_such_thing"):
            address(broken)


def test_a_helper_that_was_stopped_is_not_waited_for(
    loops: ModuleType, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(helpers, monkeypatch)
    wanted(loops)
    settle()
    for process in helpers.alive():
        process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(compilation, "_PATIENCE", 0.2)
    keys = wanted(loops, NAMES, "float64")
    settle()
    assert all(address(key) for key in keys)
    assert helpers.alive() == []


def test_an_interrupt_ends_the_helpers_and_nothing_is_lost(
    loops: ModuleType, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_one, compiled = compilation._got, []

    def interrupted(loop: Any, types: Any, get: Any) -> bool:
        if get is compile_once:
            if compiled:
                raise KeyboardInterrupt
            compiled.append(loop)
        return get_one(loop, types, get)

    monkeypatch.setattr(compilation, "_got", interrupted)
    keys = wanted(loops)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        settle()
    assert (helpers.alive(), threading.active_count()) == ([], before)
    monkeypatch.setattr(compilation, "_got", get_one)
    assert all(address(key) for key in keys)
    assert results(loops) == EXPECTED


def test_processes_that_want_the_same_share_the_work(loops: ModuleType) -> None:
    names = NAMES[:3]  # compiling the fourth one also compiles others
    program = f"""
        import sys, {loops.__name__} as loops, numpy as np
        from demitasse_cpu import compilation
        compilation._free = lambda stack: 1
        for name in {names}:
            compilation.want(getattr(loops, name), (np.zeros(3, "float32"), 3.0))
        print("ready", flush=True)
        sys.stdin.readline()
        compilation.settle()
        missed = (sum(getattr(loops, name).stats.cache_misses.values()) for name in {names})
        print(len(compilation._ADDRESSES), *missed)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(3)]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    told = []
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    for rank in ranks:
        told.append([*map(int, rank.communicate(timeout=60)[0].split())])
    assert [found for found, *_ in told] == [3] * 3
    assert [sum(each) for each in zip(*(compiled for _, *compiled in told), strict=True)] == [1] * 3


def test_one_that_another_process_never_ends_to_compile_is_compiled_here(
    loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="a system without locks")
    monkeypatch.setattr(compiler, "_PATIENCE", 0.2)
    folder = Path(loops.first.stats.cache_path) / "compiling"
    folder.mkdir(parents=True)
    with (folder / f"{loops.__name__}.second").open("w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        keys = wanted(loops)
        settle()
    assert all(address(key) for key in keys)
    assert results(loops) == EXPECTED


def test_threads_that_settle_at_once_wait_for_each_other(loops: ModuleType, helpers: Any) -> None:
    keys = wanted(loops)
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append([address(key) for key in keys])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(each == found[0] for each in found)


def test_helpers_end_with_who_started_them(loops: ModuleType) -> None:
    program = f"""
        import {loops.__name__} as loops, numpy as np
        from demitasse_cpu import compilation
        compilation._free = lambda stack: 3
        for name in {NAMES}:
            compilation.want(getattr(loops, name), (np.zeros(3, "float32"), 3.0))
        compilation.settle()
        print(*(process.pid for process in compilation._helpers.alive()))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    pids = shown.stdout.split()
    assert (len(pids), shown.stderr) == (2, "")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_one_that_is_not_needed_ends() -> None:
    program = "from demitasse_cpu import compile_helper as helper; helper.IDLE = 0.1; helper.serve()"
    helper = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert helper.wait(30) == 0
    assert helper.stdin is not None
    helper.stdin.close()


def test_processes_beside_each_other_have_helpers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        assert compilation._free(one) == 4
        assert compilation._free(other) == 1
    with contextlib.ExitStack() as one:
        monkeypatch.setenv("OMP_NUM_THREADS", "")
        assert compilation._free(one) == 8
        monkeypatch.setattr(sys, "executable", "/opt/an application")
        assert compilation._free(one) == 1


class Within(NamedTuple):
    lie: Lie
    more: tuple[Any, ...]


def test_types_are_told_whole() -> None:
    numbers = np.zeros(3, np.int64)
    fixed = np.zeros((2, 2), np.float32, order="F")
    fixed.setflags(write=False)
    tiles = Tiles((0,) * 6, 1, 2, 3, numbers, numbers, 1, 1, numbers, numbers, 1, 1)
    for value in (
        1,
        1.0,
        True,
        np.uint16(1),
        numbers,
        fixed,
        numbers[::2],
        tiles,
        (1, (2.0, fixed)),
        (),
    ):
        kind = typeof(value)
        assert heard(json.loads(json.dumps(told(kind)))) == kind
    kind = typeof(Within(Lie(1, 2, 3), (numbers, 1.0)))
    assert heard(json.loads(json.dumps(told(kind)))) == kind


def test_other_types_are_not_told() -> None:
    with pytest.raises(ValueError, match="not told"):
        told(types.literal(8))


def test_all_that_a_net_wants_is_told() -> None:
    """All types for which the plugin's own loops are compiled can be encoded, so that helpers can take
    them."""
    example = Path(__file__).parents[3] / "examples" / "digits" / "digits_solver.prototxt"
    with demitasse.compose() as runtime:
        runtime.trainer(example).step()
    kept = {key[0] for key in compilation._ADDRESSES}
    loops = {loop for loop in kept if loop.__module__.startswith("demitasse_cpu.")}
    assert len(loops) > 10
    for loop in loops:
        assert compilation._job(loop, [((), kinds) for kinds in loop.overloads]) is not None, loop
