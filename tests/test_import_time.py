"""``import demitasse`` is cheap: what is heavy is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys
import time

BOUND = 0.150
"""Seconds."""


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_takes_less_than_150_milliseconds_with_the_interpreter() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        run("import demitasse")
        return time.perf_counter() - start

    best = min(seconds() for _ in range(5))
    assert best < BOUND, f"import demitasse takes {best * 1e3:.0f} ms"


def test_it_imports_neither_arrays_nor_hooks_nor_any_plugin() -> None:
    code = "import sys, demitasse; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run(code).split()}
    assert "demitasse" in loaded
    assert not loaded & {"numpy", "pluggy", "packaging", "numba"}
    assert not {name for name in loaded if name.startswith("demitasse_")}


def test_its_names_are_there_when_they_are_asked_for() -> None:
    """Reading the public errors and records needs no array library; the runtime does its own."""
    code = "import sys, demitasse; demitasse.DemitasseError; print('numpy' in sys.modules)"
    assert run(code).strip() == "False"
    code = "import demitasse; print([n for n in demitasse.__all__ if not hasattr(demitasse, n)])"
    assert run(code).strip() == "[]"
