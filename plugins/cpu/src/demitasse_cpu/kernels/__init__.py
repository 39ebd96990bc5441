"""The table of operations that this plugin computes, and the factory of each one's candidates.

A factory is cheap: it looks at shapes and element types, and gives nothing for what it does not
serve. numba and the loops are imported when a candidate is bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_cpu import onednn
from demitasse_cpu.kernels import (
    activation,
    batch_normalization,
    convolution,
    elementwise,
    folding,
    functions,
    indexing,
    inner_product,
    loss,
    memory,
    normalization,
    pixel_products,
    pooling,
    recurrent,
    reduction,
    reorder,
    spatial,
    spread_products,
    strided,
    update,
    wide_weights,
    windows,
    winograd,
    winograd_kept,
)

FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    activation.FACTORIES
    | batch_normalization.FACTORIES
    | convolution.FACTORIES
    | elementwise.FACTORIES
    | folding.FACTORIES
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

LIGHTER = (
    winograd.FACTORIES,
    wide_weights.FACTORIES,
    spread_products.FACTORIES,
    pixel_products.FACTORIES,
    strided.FACTORIES,
)
"""Kernels that need less arithmetic or memory where they serve; for a tuner to try."""


_FEW_BYTES, _MANY_BYTES = 2**16, 2**20
"""Reorders of how many bytes are not tried: to load another kernel for a trial takes 10 to 40 ms, which
is not won back in thousands of steps."""


def candidates(request: Request) -> Iterable[Candidate]:
    """The kernels for a request, those of oneDNN first and loops of our own where it has none; also
    those that need less arithmetic or memory, for a tuner to try. None where the reference has to
    serve."""
    if request.place.space != "host":
        return ()
    name = request.operation.name
    offered = onednn.candidates(request)
    if name == "reorder" and (kept := list(winograd_kept.transformation(request))):
        return kept
    if name == "reorder":
        return _reorders(request, list(FACTORIES[name](request)), offered)
    if not offered and name in FACTORIES:
        offered = list(FACTORIES[name](request))
    return [*offered, *_lighter(name, request)]


def _lighter(name: str, request: Request) -> Iterable[Candidate]:
    """What families of lighter kernels offer. Where windows give a gradient of weights, Winograd's
    algorithm would be as quick at best, and to load its loops for a trial takes 30 ms."""
    by_windows = list(windows.FACTORIES[name](request)) if name in windows.FACTORIES else []
    left_out = winograd.FACTORIES if by_windows and name.endswith("_weights") else None
    families = [family for family in LIGHTER if name in family and family is not left_out]
    return itertools.chain(by_windows, *(family[name](request) for family in families))


def _reorders(request: Request, ours: list[Candidate], theirs: list[Candidate]) -> list[Candidate]:
    """Our loops where numbers stay in line or there are no blocks, and for few bytes, where oneDNN's
    take longer to begin; else its kernel. Of many bytes both, for a tuner to try."""
    size = max(s.nbytes for s in (*request.inputs, *request.outputs) if s is not None)
    blocked = any(s and s.layout.blocks for s in (*request.inputs, *request.outputs))
    if reorder.is_in_line(request):
        return ours
    both = [*theirs, *ours] if blocked and size >= _FEW_BYTES else [*ours, *theirs]
    return both if size >= _MANY_BYTES else both[:1]
