"""The operations that the plugin's own CUDA kernels compute, and the factory of each one's candidates.

A factory is cheap: it looks at shapes and element types, and returns nothing if it does not serve them.
Sources are compiled when a candidate is bound, for the device that its buffers are on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_gpu.kernels import (
    batch_normalization,
    elementwise,
    functions,
    indexing,
    loss,
    losses,
    memory,
    pooling,
    products,
    reduction,
    update,
    whole_batch,
)

FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        **batch_normalization.FACTORIES,
        **elementwise.FACTORIES,
        **functions.FACTORIES,
        **indexing.FACTORIES,
        **loss.FACTORIES,
        **losses.FACTORIES,
        **memory.FACTORIES,
        **pooling.FACTORIES,
        **products.FACTORIES,
        **reduction.FACTORIES,
        **update.FACTORIES,
        **whole_batch.FACTORIES,
    }
)

_MOST = 2**32
"""The elements that a tensor may have: kernels divide indices in 32 bits, which takes a quarter of the
time of 64 bits."""


def candidates(request: Request) -> Iterable[Candidate]:
    """Return the kernels for a request on a GPU; none if they do not serve it."""
    if request.place.space.partition(":")[0] != "gpu":
        return ()
    factory = FACTORIES.get(request.operation.name)
    operands = (s for s in (*request.inputs, *request.outputs) if s is not None)
    if factory is None or any(prod(s.shape) >= _MOST for s in operands):
        return ()
    return factory(request)
