"""The hooks of the null plugin: every operation is offered, none is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, GradientSync, hookimpl

if TYPE_CHECKING:
    from demitasse import Allocator, Group, Request, TensorSpec, Work


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """A candidate for every operation, in the layouts that its tensors have already."""
    return (
        Candidate(
            "nothing",
            bind,
            input_layouts=tuple(map(_layout, request.inputs)),
            output_layouts=tuple(map(_layout, request.outputs)),
            seconds=0.0,
        ),
    )


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Plain zeroed memory, for the space ``host`` only."""
    from demitasse_null.allocator import NullAllocator

    return NullAllocator() if space == "host" else None


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """A synchronisation whose every point is empty: siblings go on without each other, and each
    owns all of its own parameters."""
    sync = GradientSync()
    sync.index = group.index
    sync.size = group.team.size if group.team is not None else 1
    return sync


def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    """The same work for every request."""
    return nothing


def nothing() -> None:
    """Write no output: memory stays as the allocator gave it, which is zero."""


def _layout(spec: TensorSpec | None) -> Any:
    return PLAIN if spec is None else spec.layout
