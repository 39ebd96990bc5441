"""The layouts in which kernels work: their input's, stored as the plan's precision says."""

from __future__ import annotations

from dataclasses import replace

from demitasse import PLAIN, Layout, Request, TensorSpec

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")
_NAMED = (PLAIN, NHWC, PLAIN_BF16, NHWC_BF16)


def like(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """Return the layout of activations for a kernel that works on flat memory: in the order of
    ``leader``, stored as bfloat16 in a plan of that precision. Blocked layouts, which pad, become plain.
    ``dtype`` is the activations' if it is not the leader's."""
    halved = request.precision == "bf16" and (dtype or leader.dtype) == "float32"
    order = () if leader.layout.blocks else leader.layout.order
    return _named(Layout("", order, stored="bfloat16" if halved else ""))


def by_channels(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """Return the layout of activations for a kernel that supports planes (NCHW) and channels innermost
    (NHWC): the layout of ``leader`` if it is one of these."""
    layout = like(request, leader, dtype)
    if layout.order in ((), NHWC.order) and (not layout.order or len(leader.shape) == 4):
        return layout
    return _named(replace(layout, order=()))


def unconverted(layout: Layout) -> Layout:
    """Return the same order for operands that keep their own type: masks, indices, statistics."""
    return _named(replace(layout, stored=""))


def is_innermost(layout: Layout) -> bool:
    """Return whether the channels of images are innermost."""
    return layout.order == NHWC.order


def _named(layout: Layout) -> Layout:
    """Return the layout by this plugin's name for it."""
    named = next((each for each in _NAMED if each == layout), None)
    return named or replace(layout, name=f"order {''.join(map(str, layout.order))}")
