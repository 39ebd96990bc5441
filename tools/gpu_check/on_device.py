"""A plugin of pytest that has the tests of the gpu plugin's kernels use the first GPU, and try what
cuDNN and cuBLAS offer too. On a machine without a GPU it leaves them as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cuda_on_cpu

import demitasse_gpu.kernels as own
from demitasse_gpu.machine import device_count


def _driver(number: int = 0, **about: Any) -> Any:
    from demitasse_gpu.cupy_driver import CupyDriver

    return CupyDriver(number)


if device_count():
    cuda_on_cpu.EmulatedDriver = _driver
    cuda_on_cpu.compiler = lambda: "nvrtc"  # the tests are skipped where there is none for emulation
    _candidates = own.candidates

    def _all(request: Any) -> Iterable[Any]:
        from demitasse_gpu.libraries import library_candidates

        return [*library_candidates(request, {}), *_candidates(request)]

    own.candidates = _all
