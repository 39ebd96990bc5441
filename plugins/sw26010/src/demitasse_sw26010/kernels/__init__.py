"""The operations that this plugin computes, with the factory of each operation's candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_sw26010.kernels import (
    convolution,
    distance,
    elementwise,
    functions,
    indexing,
    inner_product,
    normalization,
    pooling,
    recurrent,
    whole_batch,
)

FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        **convolution.FACTORIES,
        **distance.FACTORIES,
        **elementwise.FACTORIES,
        **functions.FACTORIES,
        **indexing.FACTORIES,
        **inner_product.FACTORIES,
        **normalization.FACTORIES,
        **pooling.FACTORIES,
        **recurrent.FACTORIES,
        **whole_batch.FACTORIES,
    }
)


def candidates(request: Request) -> Iterable[Candidate]:
    """Return the kernels for a request in DDR3, each with its seconds in the model, or none for other
    operations."""
    factory = FACTORIES.get(request.operation.name)
    return list(factory(request)) if factory and request.place.space == "ddr3" else ()
