"""In which layouts kernels work: as their input lies, and stored as the plan's precision says."""

from __future__ import annotations

from dataclasses import replace

from demitasse import PLAIN, Layout, Request, TensorSpec

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")
_NAMED = (PLAIN, NHWC, PLAIN_BF16, NHWC_BF16)


def like(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """The layout of activations for a kernel that works on flat memory: in the order of ``leader``,
    stored as bfloat16 in a plan of that precision; plain instead of blocks, which pad. ``dtype`` is
    theirs where it is not the leader's."""
    halved = request.precision == "bf16" and (dtype or leader.dtype) == "float32"
    order = () if leader.layout.blocks else leader.layout.order
    return _named(Layout("", order, stored="bfloat16" if halved else ""))


def by_channels(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """The layout of activations for a kernel that knows planes (NCHW) and channels innermost (NHWC):
    as ``leader`` lies where that is one of them."""
    layout = like(request, leader, dtype)
    if layout.order in ((), NHWC.order) and (not layout.order or len(leader.shape) == 4):
        return layout
    return _named(replace(layout, order=()))


def unconverted(layout: Layout) -> Layout:
    """The same order for operands that keep their own type: masks, indices, statistics."""
    return _named(replace(layout, stored=""))


def is_innermost(layout: Layout) -> bool:
    """Whether images lie with their channels innermost."""
    return layout.order == NHWC.order


def _named(layout: Layout) -> Layout:
    """The layout by the name that this plugin has for it."""
    named = next((each for each in _NAMED if each == layout), None)
    return named or replace(layout, name=f"order {''.join(map(str, layout.order))}")
