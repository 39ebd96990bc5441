"""Signals to a real process in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demitasse_cli.interrupts import Interrupts

STUCK = """
import threading, time
from demitasse_cli.interrupts import Interrupts
with Interrupts() as interrupts:
    print("ready", flush=True)
    while not interrupts.stop():  # a signal just before a wait would be seen after it
        time.sleep(0.01)
    threading.Event().wait()
"""
POLLING = """
import sys
from demitasse_cli.interrupts import Interrupts
with Interrupts() as interrupts:
    print("ready", flush=True)
    while not interrupts.stop():
        pass
sys.exit(interrupts.status)
"""
WRITING = """
import signal, sys, threading
from pathlib import Path
from demitasse import replacing
from demitasse_cli.interrupts import Ended, ended_as_interrupted
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has ignored
try:
    with ended_as_interrupted(), replacing(Path(sys.argv[1])) as half:
        print("ready", flush=True)
        threading.Event().wait()
except Ended as error:
    print(error)
    sys.exit(error.status)
"""


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is ready; it is ended afterwards, whatever happens."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_even_what_is_stuck(second: signal.Signals) -> None:
    with started(STUCK) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == b"\n"
        assert b"interrupt again to stop at once" in process.stderr.readline()
        process.send_signal(second)
        assert process.wait(10) == -second


@pytest.mark.parametrize(("number", "status"), [*SIGNALS, (signal.SIGUSR2, 140)])
def test_a_first_signal_is_polled(number: signal.Signals, status: int) -> None:
    with started(POLLING) as process:
        process.send_signal(number)
        assert process.wait(10) == status


@pytest.mark.parametrize(("number", "status"), SIGNALS[1:])
def test_another_command_that_is_ended_leaves_nothing_half_written(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    with started(WRITING, str(tmp_path / "new")) as process:
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert process.stdout is not None
        assert process.stdout.read() == f"stopped by {number.name}\n".encode()
    assert not [*tmp_path.iterdir()]


def test_what_is_ignored_stays_ignored() -> None:
    from demitasse_cli.interrupts import Interrupts

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.stop()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back_whatever_happens() -> None:
    from demitasse_cli.interrupts import Interrupts

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_the_cursor_of_a_live_display_comes_back() -> None:
    from demitasse_cli.interrupts import Interrupts

    reader, writer = os.pipe()
    with Interrupts(terminal=writer) as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.stop()
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123  a descriptor has no path
        assert pipe.read() == b"\x1b[?25h"


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_of_processes_that_are_signalled_together_the_first_tells_of_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], rank: str, told: int
) -> None:
    """srun sends a job's SIGTERM to all processes, of which there may be a thousand."""
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", rank)
    with Interrupts(effects={int(signal.SIGHUP): "snapshot"}) as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.snapshot() and interrupts.stop() and interrupts.status == 143
    said = capfd.readouterr().err
    assert said.count("going on") == said.count("stopping") == told


FORKING = """
import multiprocessing, os, signal, sys, time
from demitasse_cli.interrupts import Interrupts, ended_as_interrupted
def read_ahead(ready):
    ready.set()
    time.sleep(60)
fork = multiprocessing.get_context("fork")
with Interrupts() if sys.argv[1] == "train" else ended_as_interrupted():
    ready = fork.Event()
    child = fork.Process(target=read_ahead, args=(ready,))
    child.start()
    ready.wait()
    if sys.argv[1] == "train":
        os.kill(child.pid, signal.SIGINT)
        child.join(0.3)
    print(child.is_alive(), flush=True)
    child.terminate()
    child.join(20)
    print(child.exitcode)
    child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("command", ["train", "test"])
def test_a_process_that_reads_ahead_for_a_users_layer_ends_when_it_is_told_to(command: str) -> None:
    """It neither saves a snapshot nor writes a traceback. It ignores Ctrl-C, which it also receives, and
    leaves that to the training."""
    run = [sys.executable, "-W", "ignore", "-c", FORKING, command]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"True\n{-signal.SIGTERM}\n", "")
