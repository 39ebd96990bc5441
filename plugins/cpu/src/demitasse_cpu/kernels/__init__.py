"""The table of operations that this plugin computes, with the factory of each operation's candidates.

A factory is cheap: it looks at shapes and element types, and returns nothing for a request that it does
not serve. numba and the loops are imported only when a candidate is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_cpu import onednn
from demitasse_cpu.kernels import (
    activation,
    affine,
    batch_normalization,
    convolution,
    elementwise,
    folding,
    followed,
    functions,
    indexing,
    inner_product,
    loss,
    memory,
    narrow_groups,
    normalization,
    packed_weights,
    pixel_products,
    planes,
    pooling,
    rearrangement,
    recurrent,
    reduction,
    regions,
    reorder,
    sequences,
    spatial,
    spread_products,
    strided,
    unit_gradient,
    unit_products,
    update,
    volumes,
    warping,
    whole_batch,
    wide_weights,
    windows,
    winograd,
    winograd_kept,
)

Family = Mapping[str, Callable[[Request], Iterable[Candidate]]]

FACTORIES: Family = MappingProxyType(
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
    | rearrangement.FACTORIES
    | recurrent.FACTORIES
    | reduction.FACTORIES
    | regions.FACTORIES
    | sequences.FACTORIES
    | spatial.FACTORIES
    | update.FACTORIES
    | volumes.FACTORIES
    | warping.FACTORIES
    | whole_batch.FACTORIES
    | affine.FACTORIES
)

LIGHTER = (wide_weights.FACTORIES, pixel_products.FACTORIES, strided.FACTORIES)
"""Kernels that need less arithmetic or memory for the requests that they serve, like Winograd's."""

ALONE = (packed_weights.FACTORIES, planes.FACTORIES, unit_products.FACTORIES)
"""Kernels beside which no other needs to be tried. The first read fewer bytes than any other. The second
took between 4% more time than oneDNN's and 60% less, for one channel and for three, in sixteen shapes.
The third take as long as reading the weights, which is half of oneDNN's time in float32; copying the
weights to 16 bits takes longer."""

DIRECT = (windows.FACTORIES, spread_products.FACTORIES)
"""Kernels that follow the definition, and are no faster than Winograd's where those serve. LeNet's
second convolution takes two cores 0.29 ms forward against Winograd's 0.18, and 0.30 against 0.18 back to
the data."""


_FEW_BYTES, _MANY_BYTES = 2**16, 2**20
"""Of our reorder and oneDNN's, only one is offered below the second number of bytes; of a blocked layout
it is oneDNN's from the first number on. Loading another kernel for a trial takes 10 to 40 ms, which
thousands of steps do not win back."""


def candidates(request: Request, by_winograd: bool = True) -> Iterable[Candidate]:
    """Return the kernels for a request, or none if the reference has to serve it. oneDNN's come first,
    with our own loops where it has none. They are followed by kernels that need less arithmetic or
    memory, for a tuner to try; Winograd's are left out unless ``by_winograd``."""
    if request.place.space != "host":
        return ()
    name = request.operation.name
    if name == "reorder":
        kept = [*winograd_kept.transformation(request), *packed_weights.transformation(request)]
        if kept:
            return kept
    if (apart := followed.apart(request)) is not None:
        return followed.candidates(
            *apart, onednn.candidates(request), partial(candidates, by_winograd=by_winograd)
        )
    if alone := _offers(ALONE, name, request):
        return alone
    offered = onednn.candidates(request)
    if name == "reorder":
        return _reorders(request, list(FACTORIES[name](request)), offered)
    if not offered and name in FACTORIES:
        offered = list(FACTORIES[name](request))
    in_tiles = _offers((winograd.FACTORIES,), name, request) if by_winograd else []
    if in_tiles and name == "convolution_backward_weights":
        # In the measured nets, oneDNN's kernel for blocks was the fastest for 2 of 72 of these, by a
        # twentieth.
        offered = offered[:1]
    if by_unit := _offers((unit_gradient.FACTORIES,), name, request):
        # oneDNN's kernels for blocks do not use the matrix unit, and took 3 to 8 times as long. If
        # oneDNN has no kernel, our loops that follow the definition, for plain images, take its place.
        near = [each for each in offered if each.input_layouts and not each.input_layouts[0].blocks]
        return [*by_unit, *near, *in_tiles]
    others = _offers(LIGHTER if in_tiles else DIRECT + LIGHTER, name, request)
    if any(each.kernel == wide_weights.KERNEL for each in others):
        # A copy in 16 bits took 2 to 10 times as long as weights that are rounded on the way. This order
        # also suits requests that are too small to be tried: LeNet's 64 x 800 by 500 takes 0.14 ms, and
        # 0.24 ms with oneDNN in float32.
        return [*others, *(each for each in offered if not each.input_layouts[1].stored)]
    # oneDNN took ten times as long for groups of 4 channels: 3.7 ms against 0.33 ms for 128 x 56 x 56 in
    # 32 groups.
    in_groups = _offers((narrow_groups.FACTORIES,), name, request)
    return [*in_groups, *offered, *in_tiles, *others]


def _offers(families: Iterable[Family], name: str, request: Request) -> list[Candidate]:
    return [each for family in families if name in family for each in family[name](request)]


def _reorders(request: Request, ours: list[Candidate], theirs: list[Candidate]) -> list[Candidate]:
    """Return the reorders worth trying: our loops if numbers stay in line, or if there are no blocks or
    few bytes, for which oneDNN's take longer to start; otherwise oneDNN's. For many bytes, return both,
    for a tuner to try."""
    size = max(s.nbytes for s in (*request.inputs, *request.outputs) if s is not None)
    blocked = any(s and s.layout.blocks for s in (*request.inputs, *request.outputs))
    if reorder.is_in_line(request):
        return ours
    both = [*theirs, *ours] if blocked and size >= _FEW_BYTES else [*ours, *theirs]
    return both if size >= _MANY_BYTES else both[:1]
