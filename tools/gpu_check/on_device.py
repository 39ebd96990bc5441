"""A pytest plugin that runs the tests of the gpu plugin's kernels on the first GPU, and tests cuDNN's
and cuBLAS's candidates too. Without a GPU it changes nothing. Failures are reported at once. A process
whose device is lost ends, because everything after that would fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from typing import Any

import cuda_on_cpu
import ours
import pytest
from cases import FAILED, warned

import demitasse_gpu.kernels as own
from demitasse_gpu.machine import device_count


def pytest_runtest_logreport(report: Any) -> None:
    """Report what failed, and why. If several processes share the tests, their parent reports."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash is not None else str(report.longrepr)
        print(
            f"\n{FAILED}{report.nodeid.rpartition('::')[2]}: {' '.join(why.split())[:500]}", flush=True
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Let a test fail if a library replaced a wrong kernel, although the numbers are right then."""
    said: list[str] = []
    with warned(said.append):
        result = yield
    assert not said, "; ".join(said)
    return result


def pytest_runtest_teardown() -> None:
    """End this process if its device is lost."""
    if device_count() and not ours.is_alive(False):
        print("the device is lost to this process", file=sys.stderr, flush=True)
        os._exit(3)


def _driver(number: int = 0, **about: Any) -> Any:
    from demitasse_gpu.cupy_driver import CupyDriver

    return CupyDriver(number)


if device_count():
    cuda_on_cpu.EmulatedDriver = _driver
    cuda_on_cpu.compiler = lambda: "nvrtc"  # without one for emulation, the tests are skipped
    _candidates = own.candidates

    def _all(request: Any) -> Iterable[Any]:
        from demitasse_gpu.libraries import library_candidates

        return [*library_candidates(request, {}), *_candidates(request)]

    own.candidates = _all
