"""Every hook of the microkernel, one sentence and the types each. Hooks are called while composing and
planning, never in a step. A plugin implements those that its manifest (``plugin.toml``) declares as
roles, each in a function marked with ``hookimpl`` that takes those of the arguments that it has a use
for; each function here specifies one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import pluggy

import demitasse
from demitasse.operations import Operation

hookimpl = pluggy.HookimplMarker("demitasse")


def probe(levels: Iterable[demitasse.Level]) -> Iterable[demitasse.Level]:
    """What ``levels``, of the probes before, become: all of this machine's, outermost first."""


def allocator(space: str, options: Mapping[str, Any]) -> demitasse.Allocator | None:
    """An allocator for a memory space (``host``, ...), or None when it is not served."""


def operations() -> Iterable[Operation]:
    """Operations that the plugin adds to the vocabulary."""


def kernels(request: demitasse.Request, options: Mapping[str, Any]) -> Iterable[demitasse.Candidate]:
    """Kernels that can compute a requested operation at its place, the preferred one first."""


def tuner(
    allocator: demitasse.Allocator, versions: Mapping[str, str], options: Mapping[str, Any]
) -> demitasse.Tuner | None:
    """Who tries candidates in memory of ``allocator``, for plugins of these ``versions``."""


def gradient_sync(group: demitasse.Group) -> demitasse.GradientSync:
    """The synchronisation of one worker with its siblings at a level."""


def processes(machine: demitasse.Machine, options: Mapping[str, Any]) -> demitasse.Processes | None:
    """The processes that run on a machine together, or None when this one was started alone."""


def collectives() -> Mapping[str, demitasse.Algorithm]:
    """Algorithms of collectives, by name."""


def stream_engine(
    space: str, machine: demitasse.Machine, options: Mapping[str, Any]
) -> demitasse.StreamEngine | None:
    """Streams, events, copies and host callbacks where a memory space is, or None for another's."""


def data_source(spec: demitasse.DataSpec, options: Mapping[str, Any]) -> demitasse.DataSource | None:
    """An open source of samples for a specification, or None when it is another plugin's format."""


def layer_types() -> Iterable[demitasse.LayerType]:
    """The layer types that the plugin knows."""


def model_reader(
    path: Path, layer_types: Mapping[str, demitasse.LayerType]
) -> demitasse.ModelReader | None:
    """A reader of the file at ``path``, or None when the content is not this plugin's."""


def model_writer(path: Path, weights: demitasse.Weights) -> None:
    """Write weights and solver state to ``path``, whole or not at all."""


def programs() -> Mapping[str, Callable[..., Any]]:
    """What a runtime can do (``trainer``, ``net``, ``simulate``, ...): functions that take it first."""


def reproductions(paper: str) -> Any:
    """The tables of a paper, each cell beside the prediction, or None when it is another's."""


def commands() -> Mapping[str, Callable[..., Any]]:
    """Sub-commands of the command line, by name."""


def observe(options: Mapping[str, Any]) -> Callable[[demitasse.Event], None] | None:
    """A listener that is told of iterations, tests and snapshots, or None."""


def diagnose(topics: Collection[str]) -> Iterable[demitasse.Finding]:
    """What the plugin finds here of what it needs: libraries, drivers, rights, each with a remedy; also
    what takes longer, for those of the ``topics`` in its manifest that are asked for."""


HOOKS = tuple(name for name, item in vars().items() if isinstance(item, FunctionType))
"""The names of all hooks."""

for _name in HOOKS:
    pluggy.HookspecMarker("demitasse")(globals()[_name])
