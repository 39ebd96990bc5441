"""The layouts in which kernels work: in the order of their input, and stored in the plan's precision."""

from __future__ import annotations

from dataclasses import replace

from demitasse import PLAIN, Layout, Request, TensorSpec

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")
_NAMED = (PLAIN, NHWC, PLAIN_BF16, NHWC_BF16)


def like(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """Return the layout of activations for a kernel that works on flat memory: in the order of
    ``leader``, and stored as bfloat16 in a bf16 plan. ``dtype`` is their type if it is not the
    leader's."""
    halved = request.precision == "bf16" and (dtype or leader.dtype) == "float32"
    return _named(replace(leader.layout, stored="bfloat16" if halved else ""))


def by_channels(request: Request, leader: TensorSpec, dtype: str = "") -> Layout:
    """Return the layout of activations for a kernel with loops over planes and loops over channels:
    channels innermost, unless ``leader`` is not an image, or is plain and nothing is stored as
    bfloat16."""
    layout = like(request, leader, dtype)
    if len(leader.shape) != 4 or layout == PLAIN:
        return PLAIN
    return NHWC_BF16 if layout.stored else NHWC


def unconverted(layout: Layout) -> Layout:
    """Return the same order for operands that keep their own type: masks, indices, statistics."""
    return _named(replace(layout, stored=""))


def is_by_channels(layout: Layout) -> bool:
    """Return whether images have their channels innermost."""
    return layout.order == NHWC.order and not layout.blocks


def _named(layout: Layout) -> Layout:
    """Return the layout under this plugin's name for it."""
    return next((named for named in _NAMED if named == layout), layout)
