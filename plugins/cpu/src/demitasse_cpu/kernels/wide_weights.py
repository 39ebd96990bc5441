"""Inner products in a bf16 plan whose weights stay in float32; see loops.wide_weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, Work
from demitasse_cpu.kernels.layouts import PLAIN_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once
from demitasse_cpu.onednn.inner_product import gradient_layout, has_pairs
from demitasse_cpu.threads import divide

KERNEL = "weights rounded on the way"

# As loops.wide_weights and loops.pairs have them, which are not imported before a kernel is bound.
_ROWS, _WIDE, _TERMS, _BLOCK = 8, 32, 256, 16
_FEWEST_WEIGHTS = 2**18
"""Of fewer a product takes microseconds."""
_MOST_SAMPLES = 64
"""With more a copy of the weights in 16 bits is used so often that it pays."""


def forward(request: Request) -> Iterable[Candidate]:
    """The kernel for y = x w' + b, or the part of that above zero; none for weights that lie otherwise
    than gradients of theirs do, or samples that are not whole tiles. Fixed ones are copied but once."""
    if request.fixed:
        return
    x, w = map(spec, request.inputs[:2])
    samples, inputs, outputs = extents(request, x.shape, w.shape)
    layout = layout_for(request, samples, inputs, outputs) if has_pairs(request) else None
    if layout is None:
        return
    panels = -(-outputs // _WIDE)
    parts = max(1, min(request.place.threads, panels))
    sizes = _room(samples, _WIDE) * parts

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import wide_weights as loops

        x, w, b = (*sources, None)[:3]
        rooms = cut(workspace, "uint8", *sizes)
        floor = 0.0 if request.operation.name.endswith("_relu") else -inf
        flat_w = flat(w)
        given = [flat(x), flat_w, flat_w[:0] if b is None else b, flat(targets[0]), floor]
        about = [samples, inputs, outputs, layout.blocks[1][1]]
        return at_once(
            [
                ready(loops.products, *given, *about, *panel_and_sums(rooms[2 * i : 2 * i + 2]), *part)
                for i, part in enumerate(divide(panels, parts))
            ]
        )

    taken = (PLAIN_BF16, layout, PLAIN)[: len(request.inputs)]
    room = sum(map(aligned, sizes))
    yield Candidate(KERNEL, bind, taken, (PLAIN_BF16,), room, in_place=False)


def backward_data(request: Request) -> Iterable[Candidate]:
    """The kernel for dx = dy w, of weights that lie as the forward kernel has them."""
    w, dx = spec(request.inputs[1]), spec(request.outputs[0])
    samples, inputs, outputs = extents(request, dx.shape, w.shape)
    layout = layout_for(request, samples, inputs, outputs) if has_pairs(request) else None
    if layout is None or layout != w.layout or outputs % 2:
        return
    panels = -(-inputs // _WIDE)
    parts = divide(panels, max(1, min(request.place.threads, panels)))
    sizes = [size for a, b in parts for size in _room(samples, (b - a) * _WIDE)]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import wide_weights as loops

        rooms = cut(workspace, "uint8", *sizes)
        given = [*map(flat, sources), flat(targets[0])]
        about = [samples, inputs, outputs, layout.blocks[1][1]]
        return at_once(
            [
                ready(loops.gradients, *given, *about, *panel_and_sums(rooms[2 * i : 2 * i + 2]), *part)
                for i, part in enumerate(parts)
            ]
        )

    room = sum(map(aligned, sizes))
    yield Candidate(KERNEL, bind, (PLAIN_BF16, layout), (PLAIN_BF16,), room, in_place=False)


FACTORIES = {
    "inner_product": forward,
    "inner_product_relu": forward,
    "inner_product_backward_data": backward_data,
}


def extents(request: Request, x: Sequence[int], w: Sequence[int]) -> tuple[int, int, int]:
    """Samples, inputs and outputs."""
    return prod(x[: request.attributes["axis"]]), w[1], w[0]


def layout_for(request: Request, samples: int, inputs: int, outputs: int) -> Layout | None:
    """How weights lie for which there are loops: as their gradients do, in blocks of ``_BLOCK`` inputs
    by whole panels; None where the loops do not serve."""
    operands = (*request.inputs, *request.outputs)
    if any(operand is not None and operand.dtype != "float32" for operand in operands):
        return None
    if request.attributes["transpose"] or samples % _ROWS or samples > _MOST_SAMPLES or inputs % _BLOCK:
        return None
    if inputs * outputs < _FEWEST_WEIGHTS:
        return None
    layout = gradient_layout(request, samples, inputs, outputs)
    if layout is None or layout.order not in ((), (0, 1)) or len(layout.blocks) != 2:
        return None
    outer, inner = layout.blocks
    return layout if outer == (1, _BLOCK) and inner[0] == 0 and inner[1] % _WIDE == 0 else None


def _room(samples: int, wide: int) -> list[int]:
    """Bytes of a panel, and of sums of ``wide`` results."""
    return [_TERMS * _WIDE * 2, samples * wide * 4]


def panel_and_sums(pieces: Sequence[Any]) -> tuple[Any, Any]:
    """Two pieces of a workspace as what they have room for."""
    return pieces[0].view("uint16"), pieces[1].view("float32")
