"""Loops of kernels are compiled for other loops and for ``Call``, without what Python and allocation
need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from demitasse_cpu.loops.compiled import compiled  # noqa: E402
from demitasse_cpu.native import Call  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is compiled here, whatever was kept."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def double(x: Any) -> None:
    for i in range(x.size):
        x[i] *= 2


def test_a_call_from_python_is_refused_and_does_not_end_the_process() -> None:
    loop: Any = compiled()(double)
    x = np.arange(3.0)
    for _ in range(2):  # before it is compiled, and after
        with pytest.raises(
            TypeError, match=r"^double is compiled for loops only: call it with native\.Call$"
        ):
            loop(x)
        Call(loop, (x,))()
    assert x.tolist() == [0, 4, 8]
    with pytest.raises(TypeError, match="arguments"):
        loop()


def test_a_loop_that_was_kept_is_called_likewise() -> None:
    x = np.arange(3.0)
    for count in range(2):
        loop: Any = compiled()(double)
        Call(loop, (x,))()
        assert sum(loop.stats.cache_hits.values()) == count
        with pytest.raises(TypeError, match="for loops only"):
            loop(x)
    assert x.tolist() == [0, 4, 8]


def test_what_is_kept_for_loops_is_not_taken_for_what_python_can_call() -> None:
    x = np.arange(3.0)
    loops: list[Any] = [compiled()(double), compiled(from_python=True)(double), compiled()(double)]
    for loop in loops:
        Call(loop, (x,))()
        assert not loop.stats.cache_hits
    loops[1](x)
    assert x.tolist() == [0, 16, 32]


def test_another_loop_calls_it() -> None:
    inner: Any = compiled()(double)

    def twice(x: Any) -> None:
        inner(x)
        inner(x)

    x = np.arange(3.0)
    Call(compiled()(twice), (x,))()
    assert x.tolist() == [0, 4, 8]


def test_python_calls_those_that_say_so() -> None:
    loop: Any = compiled(from_python=True)(double)
    x = np.arange(3.0)
    loop(x)
    assert x.tolist() == [0, 2, 4]


def test_neither_references_are_counted_nor_calls_of_python_taken() -> None:
    loop: Any = compiled()(double)
    Call(loop, (np.arange(3.0),))()
    (words,) = loop.inspect_llvm().values()
    assert "NRT_" not in words
    assert "PyArg_" not in words
    plain = numba.njit(double)
    plain.compile((numba.float64[::1],))
    assert "PyArg_" in plain.inspect_llvm(plain.signatures[0])


def test_a_loop_that_allocates_is_not_compiled() -> None:
    def filled(x: Any) -> None:
        x[:] = np.zeros(3)

    with pytest.raises(numba.TypingError, match="zeros"):
        Call(compiled()(filled), (np.arange(3.0),))()
