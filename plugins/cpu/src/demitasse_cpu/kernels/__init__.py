"""The table of operations that this plugin computes, and the factory of each one's candidates.

A factory is cheap: it looks at shapes and element types, and gives nothing for what it does not
serve. numba and the loops are imported when a candidate is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_cpu import onednn
from demitasse_cpu.kernels import (
    activation,
    batch_normalization,
    convolution,
    elementwise,
    functions,
    indexing,
    inner_product,
    loss,
    memory,
    normalization,
    pooling,
    recurrent,
    reduction,
    spatial,
    update,
    winograd,
)

FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    activation.FACTORIES
    | batch_normalization.FACTORIES
    | convolution.FACTORIES
    | elementwise.FACTORIES
    | functions.FACTORIES
    | indexing.FACTORIES
    | inner_product.FACTORIES
    | loss.FACTORIES
    | memory.FACTORIES
    | normalization.FACTORIES
    | pooling.FACTORIES
    | recurrent.FACTORIES
    | reduction.FACTORIES
    | spatial.FACTORIES
    | update.FACTORIES
)

LIGHTER: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(winograd.FACTORIES)
"""Kernels that need less arithmetic where they serve; for a tuner to try."""


def candidates(request: Request) -> Iterable[Candidate]:
    """The kernels for a request, those of oneDNN first and loops of our own where it has none; of
    convolutions also those that need less arithmetic, for a tuner to try. None where the reference has
    to serve."""
    if request.place.space != "host":
        return ()
    name = request.operation.name
    offered = onednn.candidates(request)
    if (not offered or name == "reorder") and name in FACTORIES:
        ours = list(FACTORIES[name](request))
        blocked = any(spec and spec.layout.blocks for spec in (*request.inputs, *request.outputs))
        offered = [*offered, *ours] if blocked else [*ours, *offered]
    return [*offered, *LIGHTER[name](request)] if name in LIGHTER else offered
