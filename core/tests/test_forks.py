"""Processes that are forked while other threads of the parent hold locks. Each test has a process of its
own, whose children get half a minute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from demitasse import process_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")

BEGIN = """
import contextlib, os, signal, sys, threading
from pathlib import Path
import demitasse
from demitasse import locked, process_lock

held, forked = threading.Event(), threading.Event()

def holding(lock, bound):
    def hold():
        with lock:
            held.set()
            forked.wait(bound)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return thread

def fork(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        work()
        os._exit(0)
    return child

def ended(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with status {status}"

folder = Path(sys.argv[1])
"""


def run(script: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + script, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lock_of_the_process_is_free_in_a_child(tmp_path: Path, reentrant: bool) -> None:
    script = """
lock = process_lock(reentrant=REENTRANT)
thread = holding(lock, None)
def work():
    with lock:
        pass
child = fork(work)
forked.set()
ended(child)
thread.join()
with lock:
    pass
"""
    run(script.replace("REENTRANT", str(reentrant)), tmp_path)


def test_a_system_without_forks_has_locks_that_need_not_be_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = object()
    monkeypatch.delattr(os, "register_at_fork")
    monkeypatch.setattr(threading, "Lock", lambda: plain)
    assert process_lock() is plain


def test_a_fork_waits_for_what_is_being_compiled(tmp_path: Path) -> None:
    """Otherwise the child would wait forever for numba's lock, or for LLVM's."""
    script = """
import numpy as np
numba = demitasse.load_numba()
from llvmlite.binding import ffi
from numba.core.compiler_lock import global_compiler_lock
for lock in (global_compiler_lock, ffi.lib._lock):
    held.clear(), forked.clear()
    thread = holding(lock, 0.5)
    def work():
        double = numba.njit(lambda x: 2 * x)
        assert double(np.float64(4)) == 8
    child = fork(work)
    forked.set()
    ended(child)
    thread.join()
assert numba.njit(lambda x: 3 * x)(4) == 12
"""
    run(script, tmp_path)


def test_a_file_is_free_again_though_a_child_has_it_open(tmp_path: Path) -> None:
    script = """
path = folder / "lock"
def free():
    with locked(path, wait=False) as mine:
        return mine
ends, begins = os.pipe()
thread = holding(locked(path), None)
child = fork(lambda: os.read(ends, 1))
assert not free()
forked.set()
thread.join()
assert free()
os.write(begins, b".")
ended(child)
"""
    run(script, tmp_path)


def test_a_child_does_not_give_back_what_its_parent_has_locked(tmp_path: Path) -> None:
    script = """
path = folder / "lock"
stack = contextlib.ExitStack()
stack.enter_context(locked(path))
ended(fork(stack.close))
with locked(path, wait=False) as mine:
    assert not mine
stack.close()
with locked(path, wait=False) as mine:
    assert mine
"""
    run(script, tmp_path)
