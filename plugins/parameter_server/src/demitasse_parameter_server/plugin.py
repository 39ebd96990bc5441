"""The hooks of the parameter_server plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import GradientSync, Group


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return a worker's part of the server: a slice of all sums under BSP, its own pushes under SSP and
    ASP."""
    from demitasse_parameter_server.gradient_sync import server_of

    return server_of(group)


@hookimpl
def reproductions(paper: str) -> Any:
    """Return SingleCaffe's printed speedups beside predictions from a node's description."""
    from demitasse_parameter_server.reproduction import reproduce

    return reproduce(paper)


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """Offer ``trainer``, with as many workers as the plugin's options say."""
    from demitasse_parameter_server.chosen import trainer

    return {"trainer": trainer}


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Offer ``workers``, which finds the fastest number of workers."""
    from demitasse_parameter_server.commands import workers

    return {"workers": workers}
