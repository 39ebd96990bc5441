"""The hooks of the null plugin: every operation is offered, none is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, GradientSync, hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Bind, Group, Request, TensorSpec, Work

NONE: Mapping[str, Any] = MappingProxyType({})


@hookimpl
def kernels(request: Request, options: Mapping[str, Any] = NONE) -> Iterable[Candidate]:
    """Return a candidate for every operation, in the layouts that its tensors already have. With the
    option ``peak``, it takes as long as on a device with that many FLOP/s."""
    from demitasse_null.pace import flops, peak_of

    peak = peak_of(options) if options else None
    seconds = flops(request) / peak if peak else 0.0
    return (
        Candidate(
            "waiting" if peak else "nothing",
            _waiting(seconds) if peak else bind,
            input_layouts=tuple(map(_layout, request.inputs)),
            output_layouts=tuple(map(_layout, request.outputs)),
            seconds=seconds,
        ),
    )


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Return an allocator of plain zeroed memory, for the space ``host`` only."""
    from demitasse_null.allocator import NullAllocator

    return NullAllocator() if space == "host" else None


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Return a synchronisation that does nothing at any point: siblings continue without each other, and
    each owns all of its own parameters. Raises DescriptionError for any option, as it has none."""
    from demitasse import check_sync_options

    check_sync_options(group)
    sync = GradientSync()
    sync.index = group.index
    sync.size = group.team.size if group.team is not None else 1
    return sync


def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    """Return the same work for every request."""
    return nothing


def nothing() -> None:
    """Write no output: memory stays as the allocator returned it, which is zero."""


def _waiting(seconds: float) -> Bind:
    from demitasse_null.pace import waiting

    return lambda inputs, outputs, workspace: waiting(seconds)


def _layout(spec: TensorSpec | None) -> Any:
    return PLAIN if spec is None else spec.layout
