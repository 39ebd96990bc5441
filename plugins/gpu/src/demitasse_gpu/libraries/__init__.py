"""Kernels of NVIDIA's libraries: convolutions by cuDNN, inner products by cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demitasse import Candidate, Request


def library_candidates(request: Request, options: Mapping[str, Any]) -> Iterable[Candidate]:
    """Return what the installed libraries can compute of a request; nothing for a device that is only
    described, or whose driver the options replace."""
    from demitasse_gpu.libraries import convolutions, products
    from demitasse_gpu.libraries.loading import library
    from demitasse_gpu.options import Options

    asked = Options.read(options)
    if request.place.simulated or asked.driver is not None or not asked.libraries:
        return []
    if request.operation.family == "convolution" and library("cudnn") is not None:
        return convolutions.candidates(request, asked.workspace, asked.own_convolutions)
    if request.operation.family == "inner product" and library("cublasLt") is not None:
        return products.candidates(request)
    return []
