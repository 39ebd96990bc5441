"""Operations that CUDA kernels of our own compute, and the factory of each one's candidates.

A factory is cheap: it looks at shapes and element types, and gives nothing for what it does not serve.
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
    }
)

_MOST = 2**32
"""Elements of a tensor: kernels divide places in 32 bits, which takes a quarter of the time of 64."""


def candidates(request: Request) -> Iterable[Candidate]:
    """The kernels for a request at a GPU; none for what they do not serve."""
    if request.place.space.partition(":")[0] != "gpu":
        return ()
    factory = FACTORIES.get(request.operation.name)
    operands = (s for s in (*request.inputs, *request.outputs) if s is not None)
    if factory is None or any(prod(s.shape) >= _MOST for s in operands):
        return ()
    return factory(request)
