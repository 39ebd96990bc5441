"""Kernels of NVIDIA's libraries: convolutions by cuDNN, inner products by cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demitasse import Candidate, Request


def library_candidates(request: Request) -> Iterable[Candidate]:
    """What the libraries that are here can compute of a request; nothing for a device that is only
    described or stood in for."""
    from demitasse_gpu.device import latest
    from demitasse_gpu.libraries import convolutions, products
    from demitasse_gpu.libraries.loading import library

    device = latest()
    if request.place.simulated or device is None or not device.libraries:
        return []
    if request.operation.family == "convolution" and library("cudnn") is not None:
        return convolutions.candidates(request)
    if request.operation.family == "inner product" and library("cublasLt") is not None:
        return products.candidates(request)
    return []
