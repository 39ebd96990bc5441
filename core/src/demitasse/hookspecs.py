"""Every hook of the microkernel, one sentence and the types each. Hooks are called while composing and
planning, never in a step. A plugin implements those that its manifest (``plugin.toml``) declares as
roles, each in a function marked with ``hookimpl``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from demitasse.arena import Allocator
    from demitasse.composition import Finding
    from demitasse.data import DataSource, DataSpec
    from demitasse.machine import Level
    from demitasse.model import LayerType, ModelReader, Weights
    from demitasse.operations import Operation
    from demitasse.operations.kernel import Candidate, Request
    from demitasse.runtime import Event
    from demitasse.synchronisation import GradientSync, Group

hookspec = pluggy.HookspecMarker("demitasse")
hookimpl = pluggy.HookimplMarker("demitasse")


@hookspec
def probe() -> Iterable[Level]:  # type: ignore[empty-body]
    """Levels of this machine, outermost first, every number with its source."""


@hookspec
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """An allocator for a memory space (``host``, ...), or None when it is not served."""


@hookspec
def operations() -> Iterable[Operation]:  # type: ignore[empty-body]
    """Operations that the plugin adds to the vocabulary."""


@hookspec
def kernels(request: Request) -> Iterable[Candidate]:  # type: ignore[empty-body]
    """Kernels that can compute a requested operation at its place, the preferred one first."""


@hookspec
def gradient_sync(group: Group) -> GradientSync:  # type: ignore[empty-body]
    """The synchronisation of one worker with its siblings at a level."""


@hookspec
def stream_engine(place: str, options: Mapping[str, Any]) -> Any:
    """Streams, events, copies and host callbacks at a place, or None when it is not served."""


@hookspec
def data_source(spec: DataSpec) -> DataSource | None:
    """An open source of samples for a specification, or None when it is another plugin's format."""


@hookspec
def layer_types() -> Iterable[LayerType]:  # type: ignore[empty-body]
    """The layer types that the plugin knows."""


@hookspec
def model_reader(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """A reader of the file at ``path``, or None when the content is not this plugin's."""


@hookspec
def model_writer(path: Path, weights: Weights) -> None:
    """Write weights and solver state to ``path``, whole or not at all."""


@hookspec
def programs() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """What a runtime can do (``trainer``, ``net``, ``simulate``, ...): functions that take it first."""


@hookspec
def reproductions(paper: str) -> Any:
    """The tables of a paper, each cell beside the prediction, or None when it is another's."""


@hookspec
def commands() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Sub-commands of the command line, by name."""


@hookspec
def observe() -> Callable[[Event], None]:  # type: ignore[empty-body]
    """A listener that is told of iterations, tests and snapshots."""


@hookspec
def diagnose() -> Iterable[Finding]:  # type: ignore[empty-body]
    """What the plugin finds here of what it needs: libraries, drivers, rights, each with a remedy."""
