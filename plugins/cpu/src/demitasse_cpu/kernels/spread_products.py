"""A convolution's gradient to the data as one matrix product, in a bf16 plan; see
loops.spread_products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.onednn.inner_product import has_pairs
from demitasse_cpu.threads import divide

KERNEL = "product, spread"

# As in loops.pairs, which is not imported before a kernel is bound.
_ROWS, _WIDE = 8, 32
_MOST_BYTES = 2**19
"""The maximum size of an image's products. Larger ones would not stay in the second cache until they are
added."""


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for dx, unless there is padding, or there are groups, or an image's pixels do not
    fill whole tiles."""
    dy, w, dx = (spec(operand) for operand in (*request.inputs, *request.outputs))
    given, (outputs, channels, *taps) = request.attributes, w.shape
    if {dy.dtype, w.dtype, dx.dtype} != {"float32"} or len(w.shape) != 4 or given["groups"] != 1:
        return
    if any(given["pad"]) or set(given["dilation"]) != {1} or outputs % 2 or not has_pairs(request):
        return
    count, pixels = -(-prod(taps) * channels // _WIDE), prod(dy.shape[2:])
    products = pixels * count * _WIDE * 4
    if pixels % _ROWS or products > _MOST_BYTES or prod(taps) == 1:
        return
    images = dx.shape[0]
    parts = max(1, min(request.place.threads, images))
    sizes = [count * outputs * _WIDE * 2, *[products, prod(dx.shape[1:]) * 4] * parts]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import spread_products as loops

        extents = channels, outputs, *dx.shape[2:], *dy.shape[2:]
        g = loops.Spread(*extents, *taps, *map(int, given["stride"]))
        packed, *rooms = cut(workspace, "uint8", *sizes)
        packed = packed.view("uint16")
        own = [(rooms[i].view("float32"), rooms[i + 1].view("float32")) for i in range(0, 2 * parts, 2)]
        pack = [ready(loops.panels, g, flat(sources[1]), packed, *part) for part in divide(count, parts)]
        add = [
            ready(loops.spread, g, flat(sources[0]), packed, flat(targets[0]), *own[i], *part)
            for i, part in enumerate(divide(images, parts))
        ]
        return in_order([at_once(pack), at_once(add)])

    room = sum(map(aligned, sizes))
    yield Candidate(KERNEL, bind, (NHWC_BF16, PLAIN), (NHWC_BF16,), room, in_place=False)


FACTORIES = {"convolution_backward_data": backward_data}
