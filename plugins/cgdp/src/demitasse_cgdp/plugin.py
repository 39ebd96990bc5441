"""The hooks of the cgdp plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import GradientSync, Group


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """One accelerator's part: gradients to the host and back (cgdp), or along a tree (typical)."""
    from demitasse_cgdp.gradient_sync import sync_of

    return sync_of(group)


@hookimpl
def reproductions(paper: str) -> Any:
    """CGDP's tables, each cell beside what the cost model predicts."""
    from demitasse_cgdp.reproduction import reproduce

    return reproduce(paper)
