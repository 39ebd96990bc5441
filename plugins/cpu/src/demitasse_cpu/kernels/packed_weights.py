"""Inner products of a few samples in a net that only runs forward. Weights are packed once, without
loss, into fewer bits than bfloat16 has; see loops.packed_weights.

As in winograd_kept, packing is a change of the weights' layout to one of raw bytes (NumPy's type
``V2``), which only this kernel interprets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import PLAIN_BF16
from demitasse_cpu.kernels.reorder import reorder
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.onednn.inner_product import knows_pairs
from demitasse_cpu.threads import divide

KERNEL = "weights in 12 bits"

# As in loops.packed_weights and loops.pairs, which are not imported before a kernel is bound.
_WIDE, _INPUTS = 32, 256

LAYOUT = Layout("12 bits", blocks=((0, _WIDE), (1, _INPUTS)), stored="V2")

FEWEST_WEIGHTS = 2**21
"""The minimum number of weights. Fewer stay in the caches while other layers run, and a product with
them is as fast in 16 bits."""

MOST_SAMPLES = 8
"""The maximum number of samples. Multiplying more takes as long as reading the weights in 16 bits."""


def forward(request: Request) -> Iterable[Candidate]:
    """Yield the only kernel for y = x w' + b, or for max(y, 0). It needs no trial, which would mislead:
    made-up numbers would not be packed."""
    if not _serves(request):
        return
    x, w = map(spec, request.inputs[:2])
    samples, (outputs, inputs) = prod(x.shape[: request.attributes["axis"]]), w.shape
    panels = -(-outputs // _WIDE)
    parts = divide(panels, max(1, min(request.place.threads, panels)))
    sizes = [4 * _WIDE * samples] * len(parts)

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import packed_weights as loops

        x, w, b = (*sources, None)[:3]
        y, kept = flat(targets[0]), _bytes(w)
        floor = 0.0 if request.operation.name.endswith("_relu") else -inf
        biases = np.zeros(0, np.float32) if b is None else b
        form, rows = (0,) * samples, np.arange(samples) * inputs
        given = form, flat(x), kept, kept.view("uint16"), biases, y, floor, inputs, outputs, rows
        sums = cut(workspace, "float32", *sizes)
        return at_once(
            [ready(loops.products, *given, own, *part) for own, part in zip(sums, parts, strict=True)]
        )

    layouts = (PLAIN_BF16, LAYOUT, PLAIN)[: len(request.inputs)], (PLAIN_BF16,)
    yield Candidate(KERNEL, bind, *layouts, workspace=sum(map(aligned, sizes)), in_place=False)


def transformation(request: Request) -> Iterable[Candidate]:
    """Return the kernel that changes weights to the layout that ``forward`` requests, by way of a plain
    copy."""
    w, packed = map(spec, (request.inputs[0], request.outputs[0]))
    if packed.layout != LAYOUT or w.dtype != "float32" or len(w.shape) != 2:
        return ()
    (outputs, inputs), plain = w.shape, replace(w, layout=PLAIN)
    panels = -(-outputs // _WIDE)
    parts = divide(panels, max(1, min(request.place.threads, panels)))
    first = () if w == plain else tuple(reorder(replace(request, outputs=(plain,))))
    sizes = [plain.nbytes if first else 0, *[2 * _WIDE * _INPUTS] * len(parts)]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import packed_weights as loops

        copy, *rooms = cut(workspace, "uint16", *sizes)
        copy = copy.view("float32")
        turned = [each.bind(sources, [copy], None) for each in first]
        kept = _bytes(targets[0])
        given = copy if first else flat(sources[0]), inputs, outputs, kept, kept.view("uint16")
        shares = zip(rooms, parts, strict=True)
        return in_order(
            [*turned, at_once([ready(loops.pack, *given, own, *part) for own, part in shares])]
        )

    room, layouts = sum(map(aligned, sizes)), ((w.layout,), (packed.layout,))
    return (Candidate(KERNEL, bind, *layouts, workspace=room, in_place=False),)


FACTORIES = {"inner_product": forward, "inner_product_relu": forward}


def _serves(request: Request) -> bool:
    """Return whether weights are fixed and more than the caches keep, and samples are few."""
    operands: tuple[TensorSpec | None, ...] = (*request.inputs, *request.outputs)
    if any(operand is not None and operand.dtype != "float32" for operand in operands):
        return False
    x, w = map(spec, request.inputs[:2])
    samples = prod(x.shape[: request.attributes["axis"]])
    fits = not request.attributes["transpose"] and samples <= MOST_SAMPLES and w.shape[1] % 4 == 0
    return fits and request.fixed and prod(w.shape) >= FEWEST_WEIGHTS and knows_pairs(request)


def _bytes(array: Any) -> Any:
    return flat(array).view("uint8")
