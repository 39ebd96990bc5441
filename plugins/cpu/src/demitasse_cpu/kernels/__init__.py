"""The table of operations that this plugin computes, and the factory of each one's candidates.

A factory is cheap: it looks at shapes and element types, and gives nothing for what it does not
serve. numba and the loops are imported when a candidate is bound.
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
    | affine.FACTORIES
)

LIGHTER = (wide_weights.FACTORIES, pixel_products.FACTORIES, strided.FACTORIES)
"""Kernels that need less arithmetic or memory where they serve, as do Winograd's."""

ALONE = (packed_weights.FACTORIES, planes.FACTORIES, unit_products.FACTORIES)
"""Kernels beside which none needs to be tried: the first read fewer bytes than any other; the second
took from 4% more time than oneDNN's to 60% less, for one channel and three, in sixteen shapes; the third
take as long as weights take to be read, half of oneDNN's time in float32, and to copy weights to 16 bits
takes longer."""

DIRECT = (windows.FACTORIES, spread_products.FACTORIES)
"""Kernels by the definition, which are no quicker than Winograd's where those serve: LeNet's second
convolution forward 0.29 ms of two cores and 0.18, back to the data 0.30 and 0.18."""


_FEW_BYTES, _MANY_BYTES = 2**16, 2**20
"""Reorders of how many bytes are not tried: to load another kernel for a trial takes 10 to 40 ms, which
is not won back in thousands of steps."""


def candidates(request: Request, by_winograd: bool = True) -> Iterable[Candidate]:
    """The kernels for a request, those of oneDNN first and loops of our own where it has none; also
    those that need less arithmetic or memory, for a tuner to try, of which ``by_winograd`` may leave out
    Winograd's. None where the reference has to serve."""
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
        # Of 72 in the measured nets two were quickest by oneDNN's kernel for blocks, by a twentieth.
        offered = offered[:1]
    if by_unit := _offers((unit_gradient.FACTORIES,), name, request):
        # oneDNN's for blocks are without the matrix unit, and took 3 to 8 times as long; where it has
        # none, loops by the definition, for plain images, stand in for it.
        near = [each for each in offered if each.input_layouts and not each.input_layouts[0].blocks]
        return [*by_unit, *near, *in_tiles]
    others = _offers(LIGHTER if in_tiles else DIRECT + LIGHTER, name, request)
    if any(each.kernel == wide_weights.KERNEL for each in others):
        # A copy in 16 bits took 2 to 10 times as long as weights that are rounded on their way. What is
        # too small to be tried is quicker so: LeNet's 64 x 800 by 500 0.14 ms, oneDNN's in float32 0.24.
        return [*others, *(each for each in offered if not each.input_layouts[1].stored)]
    # Groups of 4 channels took oneDNN ten times as long: 128 x 56 x 56 in 32 groups 3.7 ms, and 0.33.
    in_groups = _offers((narrow_groups.FACTORIES,), name, request)
    return [*in_groups, *offered, *in_tiles, *others]


def _offers(families: Iterable[Family], name: str, request: Request) -> list[Candidate]:
    return [each for family in families if name in family for each in family[name](request)]


def _reorders(request: Request, ours: list[Candidate], theirs: list[Candidate]) -> list[Candidate]:
    """Our loops where numbers stay in line or there are no blocks, and for few bytes, where oneDNN's
    take longer to begin; else its kernel. Of many bytes both, for a tuner to try."""
    size = max(s.nbytes for s in (*request.inputs, *request.outputs) if s is not None)
    blocked = any(s and s.layout.blocks for s in (*request.inputs, *request.outputs))
    if reorder.is_in_line(request):
        return ours
    both = [*theirs, *ours] if blocked and size >= _FEW_BYTES else [*ours, *theirs]
    return both if size >= _MANY_BYTES else both[:1]
