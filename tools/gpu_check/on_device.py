"""A pytest plugin with which the tests of the gpu plugin's kernels use the first GPU, and also try what
cuDNN and cuBLAS offer. Without a GPU, the tests are unchanged. Failures are reported at once. A process
that has lost its device ends, because everything after that would fail."""

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
    """Report a failure with its reason; if several processes share the tests, their parent does so."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash is not None else str(report.longrepr)
        print(
            f"\n{FAILED}{report.nodeid.rpartition('::')[2]}: {' '.join(why.split())[:500]}", flush=True
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Fail a test during which a library replaced one of our kernels because it was wrong: the numbers
    are then right all the same."""
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
    cuda_on_cpu.compiler = lambda: "nvrtc"  # without an emulator's compiler, tests would be skipped
    _candidates = own.candidates

    def _all(request: Any) -> Iterable[Any]:
        from demitasse_gpu.libraries import library_candidates

        return [*library_candidates(request, {}), *_candidates(request)]

    own.candidates = _all
