"""Convolutions of few channels in a bf16 plan; see loops.windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.onednn.inner_product import has_pairs
from demitasse_cpu.threads import divide

KERNEL = "windows, pairs of numbers"

# As in loops.windows and loops.pairs, which are not imported before a kernel is bound.
_ROWS, _WIDE = 8, 32

_FEW = 24
"""The maximum number of channels. With more, a vector of channels is as good."""

_MOST = 4096
"""The maximum number of values in a window. With more, the weights of a panel would not stay in the
second cache."""


class Windows(NamedTuple):
    """``images`` of ``channels`` x ``height`` x ``width``, with padding at the ``top`` and on the
    ``left``, and of ``padded_height`` x ``padded_width`` in total; results of ``outputs`` x ``rows`` x
    ``columns``; and taps and strides down and across."""

    images: int
    channels: int
    outputs: int
    height: int
    width: int
    top: int
    left: int
    padded_height: int
    padded_width: int
    rows: int
    columns: int
    taps_down: int
    taps_across: int
    down: int
    across: int

    @property
    def run(self) -> int:
        """The number of contiguous values in a window."""
        return self.taps_across * self.channels

    @property
    def pairs(self) -> int:
        """The number of pairs of values in a window; each row has a whole number of them."""
        return self.taps_down * -(-self.run // 2)

    @property
    def panels(self) -> int:
        return -(-self.outputs // _WIDE)

    @property
    def room(self) -> int:
        """The bytes of a padded image and of what whole tiles read after it."""
        behind = _ROWS * self.across * self.channels + self.run + 2
        return 2 * (self.padded_height * self.padded_width * self.channels + behind)


def forward(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for a convolution, optionally with a ReLU."""
    x, w, *b = request.inputs
    s = _sizes(request, spec(x), spec(w), spec(request.outputs[0]))
    if s is None:
        return
    parts = max(1, min(request.place.threads, s.images))
    sizes = [
        s.panels * s.pairs * 4 * _WIDE,
        s.panels * _WIDE * 4,
        *[s.room, _ROWS * s.panels * _WIDE * 4] * parts,
    ]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import windows as loops

        table = _places(s)
        weights, biases, *rooms = cut(workspace, "uint8", *sizes)
        weights, biases = weights.view("uint16"), biases.view("float32")
        x, w, bias = (*map(flat, sources[:2]), (*sources, None)[2])
        floor = 0.0 if request.operation.name.endswith("_relu") else -inf
        given = s, x, weights, table, biases, floor, flat(targets[0])
        multiply = [
            ready(loops.results, *given, room.view("uint16"), sums.view("float32"), *mine)
            for room, sums, mine in zip(rooms[::2], rooms[1::2], divide(s.images, parts), strict=True)
        ]
        packed = s, w, w[:0] if bias is None else flat(bias), weights, biases
        pack = spread(loops.panels, packed, s.panels, min(parts, s.panels))
        return in_order([pack, at_once(multiply)])

    layouts = (NHWC_BF16, *[PLAIN] * (1 + len(b))), (NHWC_BF16,)
    yield Candidate(KERNEL, bind, *layouts, workspace=sum(map(aligned, sizes)), in_place=False)


FACTORIES = {
    "convolution": forward,
    "convolution_relu": forward,
}


def _sizes(request: Request, x: TensorSpec, w: TensorSpec, y: TensorSpec) -> Windows | None:
    """Return the extents, or None if the loops do not serve."""
    given = request.attributes
    if len(x.shape) != 4 or {x.dtype, w.dtype, y.dtype} != {"float32"} or given["groups"] != 1:
        return None
    (images, channels, *extents), (outputs, _, *taps) = x.shape, w.shape
    if channels > _FEW or channels * prod(taps) > _MOST or prod(taps) == 1:
        return None
    if channels * taps[1] < 2:
        return None
    if set(given["dilation"]) != {1} or not images or not has_pairs(request):
        return None
    pads, strides = map(int, given["pad"]), tuple(map(int, given["stride"]))
    top, left = pads
    reached = [(n - 1) * s + t for n, s, t in zip(y.shape[2:], strides, taps, strict=True)]
    padded = [max(n + 2 * p, r) for n, p, r in zip(extents, (top, left), reached, strict=True)]
    about = (*extents, top, left, *padded, *y.shape[2:], *taps, *strides)
    return Windows._make((images, channels, outputs, *about))


def _places(s: Windows) -> Any:
    """Return where the pairs of a window lie, relative to its first value."""
    import numpy as np

    rows = np.arange(s.taps_down, dtype=np.int64) * s.padded_width * s.channels
    pairs = np.minimum(np.arange(0, s.run, 2, dtype=np.int64), s.run - 2)
    return (rows[:, None] + pairs).reshape(-1)
