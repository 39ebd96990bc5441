"""Kernels of oneDNN, called through its C interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_cpu.onednn import convolution, inner_product, reorder

FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    convolution.FACTORIES | inner_product.FACTORIES | reorder.FACTORIES
)


def candidates(request: Request) -> list[Candidate]:
    """Return oneDNN's candidates for a request, or none if the library is not available."""
    factory = FACTORIES.get(request.operation.name)
    return [] if factory is None else list(factory(request))
