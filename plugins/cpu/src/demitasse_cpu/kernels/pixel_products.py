"""The gradient of the weights of a convolution with one tap, in a bf16 plan; see
loops.pixel_products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once
from demitasse_cpu.onednn.inner_product import has_pairs
from demitasse_cpu.threads import divide

KERNEL = "products of pairs of pixels"

# As in loops.pixel_products and loops.pairs, which are not imported before a kernel is bound.
_WIDE, _PAIRS = 32, 96


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for dw, unless there are biases, or channels or outputs do not fill whole panels.
    Threads share the longer side of dw. Each of them arranges all pixels of the other side in pairs."""
    (dy, x), dw = map(spec, request.inputs), spec(request.outputs[0])
    given, (outputs, channels, *taps) = request.attributes, dw.shape
    if {dy.dtype, x.dtype, dw.dtype} != {"float32"} or len(x.shape) != 4 or any(request.outputs[1:]):
        return
    if not prod(x.shape):
        return
    if prod(taps) > 1 or given["groups"] != 1 or any(given["pad"]) or set(given["stride"]) != {1}:
        return
    if outputs % _WIDE or channels % _WIDE or not has_pairs(request):
        return
    extents = x.shape[0] * prod(x.shape[2:]), outputs, channels
    longer = max(outputs, channels) // _WIDE
    shares = divide(longer, max(1, min(request.place.threads, longer)))
    parts = [
        (a * _WIDE, b * _WIDE, 0, channels) if outputs > channels else (0, outputs, a * _WIDE, b * _WIDE)
        for a, b in shares
    ]
    sizes = [4 * _PAIRS * count for a, b, c, d in parts for count in (b - a, d - c)]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import pixel_products as loops

        rooms = [room.view("uint16") for room in cut(workspace, "uint8", *sizes)]
        arrays = [*map(flat, sources), flat(targets[0])]
        return at_once(
            [
                ready(loops.products, loops.Part(*extents, *part), *arrays, *rooms[2 * i : 2 * i + 2])
                for i, part in enumerate(parts)
            ]
        )

    room, outward = sum(map(aligned, sizes)), (PLAIN,) * len(request.outputs)
    yield Candidate(KERNEL, bind, (NHWC_BF16,) * 2, outward, room, in_place=False)


FACTORIES = {"convolution_backward_weights": backward_weights}
