"""Inner products in a bf16 plan with weights that stay in float32; see loops.wide_weights."""

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

# As in loops.wide_weights and loops.pairs, which are not imported before a kernel is bound.
_ROWS, _WIDE, _TERMS, _BLOCK = 8, 32, 256, 16
_FEWEST_WEIGHTS = 2**18
"""The minimum number of weights. With fewer, a product takes microseconds."""
_MOST_SAMPLES = 64
"""The maximum number of samples. With more, a 16-bit copy of the weights is used so often that it
pays."""


def forward(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for y = x w' + b, or for max(y, 0), unless weights have another layout than their
    gradients or samples do not fill whole tiles. It does not serve fixed weights, which are copied to
    16 bits only once."""
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
    """Yield the kernel for dx = dy w, for weights in the layout of the forward kernel."""
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
    """Return the number of samples, inputs and outputs."""
    return prod(x[: request.attributes["axis"]]), w[1], w[0]


def layout_for(request: Request, samples: int, inputs: int, outputs: int) -> Layout | None:
    """Return the layout of weights for which there are loops, which is that of their gradients: blocks
    of ``_BLOCK`` inputs by whole panels. Return None if the loops do not serve."""
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
    """Return the bytes of a panel, and of sums of ``wide`` results."""
    return [_TERMS * _WIDE * 2, samples * wide * 4]


def panel_and_sums(pieces: Sequence[Any]) -> tuple[Any, Any]:
    """Return two pieces of a workspace as the arrays of a panel and of sums."""
    return pieces[0].view("uint16"), pieces[1].view("float32")
