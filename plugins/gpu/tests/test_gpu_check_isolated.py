"""A part of the GPU check may fail, die or hang: its output is kept, and where it was."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "gpu_check"))

import isolated

HEAD = """
import faulthandler, json, os, signal, subprocess, sys, threading
faulthandler.register(signal.SIGUSR1)
without = sys.argv[1:]
def say(**table):
    print(json.dumps(table), flush=True)
def cases(*names, **limits):
    for name in names:
        if name not in without:
            say(begun=name, limit=limits.get(name, 60))
            yield name
"""


def found(program: str, limit: float = 60.0) -> dict[str, Any]:
    def command(without: Sequence[str], seconds: float) -> list[str]:
        return [sys.executable, "-c", HEAD + program, *without]

    return isolated.part(command, limit)


def test_what_a_part_says_is_put_together() -> None:
    table = found("say(a=1, rows=[1]); say(a=2, rows=[2]); print('hello')")
    assert table.pop("seconds") > 0
    assert table == {"a": 2, "rows": [1, 2], "output": ["hello"]}


def test_a_part_that_raises_is_told_with_its_traceback() -> None:
    table = found("say(a=1)\ndef broken(): return 1 / 0\nbroken()")
    assert table["a"] == 1
    assert table["error"] == "ended with status 1: ZeroDivisionError: division by zero"
    (failure,) = table["failures"]
    assert "in broken" in failure["traceback"]


@pytest.mark.parametrize(
    ("ends", "words", "where"),
    [
        ("raise ValueError('wrong')", "b: ended with status 1: ValueError: wrong", "in case"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "b: ended with status -9", ""),
        ("threading.Event().wait()", "b: cut off after 1 s", "in case"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_the_cases_behind_one_that_ends_badly_are_run(ends: str, words: str, where: str) -> None:
    table = found(
        f"def case(name):\n    if name == 'b': {ends}\n    say(done=[name])\n"
        "for name in cases('a', 'b', 'c', b=1): case(name)"
    )
    assert (table["begun"], table["done"]) == (["a", "b", "c"], ["a", "c"])
    (failure,) = table["failures"]
    assert failure["error"].startswith(words)
    assert failure["case"] == "b"
    assert where in failure["traceback"]
    assert table["error"] == failure["error"]


def test_a_part_that_hangs_is_cut_off_when_its_time_is_over() -> None:
    table = found("say(a=1)\ndef stuck(): threading.Event().wait()\nstuck()", limit=1)
    assert table["a"] == 1
    assert table["error"] == "cut off after 1 s"
    assert "in stuck" in table["failures"][0]["traceback"]
    assert table["seconds"] < 20


def test_a_part_that_hangs_is_ended_with_what_it_started() -> None:
    """What it started holds its output open, and would delay whoever waits for the end of that."""
    table = found(
        "stuck = 'import threading; threading.Event().wait()'\n"
        "process = subprocess.Popen([sys.executable, '-c', stuck])\n"
        "say(started=process.pid)\nthreading.Event().wait()",
        limit=1,
    )
    assert table["error"] == "cut off after 1 s"
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        process = os.pidfd_open(table["started"])
        assert select.select([process], [], [], 20)[0], "it goes on"
        os.close(process)


def test_a_part_that_fails_at_once_is_not_tried_for_ever() -> None:
    table = found("raise SystemExit('no module')")
    assert len(table["failures"]) == 1
    assert table["error"] == "ended with status 1: no module"
