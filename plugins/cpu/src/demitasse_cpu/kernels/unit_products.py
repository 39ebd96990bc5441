"""Inner products in a bf16 plan by the processor's matrix unit, with weights that stay in float32; see
loops.unit_products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import PLAIN_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.wide_weights import KERNEL, extents, layout_for, panel_and_sums
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once
from demitasse_cpu.onednn.inner_product import has_matrix_unit
from demitasse_cpu.threads import divide

# As in loops.unit_products and loops.matrix_unit, which are not imported before a kernel is bound.
_NEAR, _TERMS, _WIDE = 512, 32, 32


def forward(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for y = x w' + b, or for max(y, 0), unless weights are fixed: those are copied to
    16 bits only once."""
    if request.fixed:
        return
    x, w = map(spec, request.inputs[:2])
    about = _about(request, x.shape, w.shape)
    if about is None:
        return
    layout, samples, inputs, outputs, width = about
    shares = divide(-(-outputs // width), max(1, min(request.place.threads, -(-outputs // width))))
    sizes = [2 * _NEAR * _WIDE, 4 * samples * width] * len(shares)

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import unit_products as loops
        from demitasse_cpu.loops.matrix_unit import words

        x, w, b = (*sources, None)[:3]
        rooms = cut(workspace, "uint8", *sizes)
        floor, flat_w = 0.0 if request.operation.name.endswith("_relu") else -inf, flat(w)
        given = flat(x), flat_w, flat_w[:0] if b is None else b, flat(targets[0]), floor
        rows = _rows(samples)
        numbers = samples, inputs, outputs, width, rows
        return at_once(
            [
                ready(
                    loops.results,
                    *given,
                    *numbers,
                    words(rows),
                    *panel_and_sums(rooms[2 * i : 2 * i + 2]),
                    *part,
                )
                for i, part in enumerate(shares)
            ]
        )

    taken = (PLAIN_BF16, layout, PLAIN)[: len(request.inputs)]
    room = sum(map(aligned, sizes))
    yield Candidate(KERNEL, bind, taken, (PLAIN_BF16,), room, in_place=False)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for dx = dy w, for weights in the layout of the forward kernel."""
    w, dx = spec(request.inputs[1]), spec(request.outputs[0])
    about = _about(request, dx.shape, w.shape)
    if about is None or about[0] != w.layout:
        return
    layout, samples, inputs, outputs, width = about
    panels, terms = inputs // _WIDE, -(-outputs // _TERMS) * _TERMS
    shares = divide(panels, max(1, min(request.place.threads, panels)))
    sizes = [
        size
        for a, b in shares
        for size in (2 * samples * terms, _NEAR * _WIDE, 4 * samples * (b - a) * _WIDE)
    ]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import unit_products as loops
        from demitasse_cpu.loops.matrix_unit import words

        rooms = cut(workspace, "uint8", *sizes)
        given, rows = (*map(flat, sources), flat(targets[0])), _rows(samples)
        numbers = samples, inputs, outputs, width, rows
        return at_once(
            [
                ready(
                    loops.gradients,
                    *given,
                    *numbers,
                    words(rows),
                    rooms[3 * i].view("uint16"),
                    *panel_and_sums(rooms[3 * i + 1 : 3 * i + 3]),
                    *part,
                )
                for i, part in enumerate(shares)
            ]
        )

    room = sum(map(aligned, sizes))
    yield Candidate(KERNEL, bind, (PLAIN_BF16, layout), (PLAIN_BF16,), room, in_place=False)


FACTORIES = {
    "inner_product": forward,
    "inner_product_relu": forward,
    "inner_product_backward_data": backward_data,
}


def _about(request: Request, x: Sequence[int], w: Sequence[int]) -> Any:
    """Return the layout of weights, the samples, inputs and outputs, and the width of blocks, or None if
    the loops do not serve. Inputs and samples must fill whole tiles."""
    samples, inputs, outputs = extents(request, x, w)
    if inputs % _TERMS or not has_matrix_unit(request):
        return None
    layout = layout_for(request, samples, inputs, outputs)
    return layout and (layout, samples, inputs, outputs, layout.blocks[1][1])


def _rows(samples: int) -> int:
    """Return the rows of a tile."""
    return 16 if samples % 16 == 0 else 8
