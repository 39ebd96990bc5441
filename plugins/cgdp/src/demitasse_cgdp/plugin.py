"""The hooks of the cgdp plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import GradientSync, Group


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return one accelerator's part of the exchange: by the host (cgdp), or along a tree (typical)."""
    from demitasse_cgdp.gradient_sync import sync_of

    return sync_of(group)


@hookimpl
def reproductions(paper: str) -> Any:
    """Return CGDP's tables, each cell beside the cost model's prediction."""
    from demitasse_cgdp.reproduction import reproduce

    return reproduce(paper)
