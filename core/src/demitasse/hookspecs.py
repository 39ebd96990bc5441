"""Every hook of the microkernel: each function here specifies one, with its types and a sentence.

Hooks are called while composing and planning, never in a step. A plugin implements the hooks that its
manifest (``plugin.toml``) declares as roles, each by a function that is marked with ``hookimpl``. The
function takes those of the arguments that it has a use for."""

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
    """This machine's levels, outermost first: those that earlier probes gave, and what it adds."""


def allocator(space: str, options: Mapping[str, Any]) -> demitasse.Allocator | None:
    """An allocator for a memory space (``host``, ...), or None when it is not served."""


def operations() -> Iterable[Operation]:
    """Operations that the plugin adds to the vocabulary."""


def kernels(request: demitasse.Request, options: Mapping[str, Any]) -> Iterable[demitasse.Candidate]:
    """Kernels that can compute a requested operation at its place, the preferred one first."""


def tuner(
    allocator: demitasse.Allocator, versions: Mapping[str, str], options: Mapping[str, Any]
) -> demitasse.Tuner | None:
    """A tuner, which tries candidates in the allocator's memory; ``versions`` are the plugins'."""


def gradient_sync(group: demitasse.Group) -> demitasse.GradientSync:
    """The synchronisation of one worker with its siblings at a level."""


def processes(machine: demitasse.Machine, options: Mapping[str, Any]) -> demitasse.Processes | None:
    """The processes that run on a machine together, or None when this one was started alone."""


def collectives() -> Mapping[str, demitasse.Algorithm]:
    """Algorithms of collectives, by name."""


def stream_engine(
    space: str, machine: demitasse.Machine, options: Mapping[str, Any]
) -> demitasse.StreamEngine | None:
    """The streams of a worker's accelerator, by its memory space; None for another plugin's space."""


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
    """What a runtime can do (``trainer``, ``net``, ...), by name: functions of the runtime and more."""


def reproductions(paper: str) -> Any:
    """A paper's tables, each cell with its prediction, or None when the paper is another plugin's."""


def commands() -> Mapping[str, Callable[..., Any]]:
    """Sub-commands of the command line, by name."""


def observe(options: Mapping[str, Any]) -> Callable[[demitasse.Event], None] | None:
    """A listener that is told of iterations, tests and snapshots, or None to hear nothing."""


def diagnose(topics: Collection[str]) -> Iterable[demitasse.Finding]:
    """Whether what the plugin needs is here (libraries, drivers, rights), each problem with a remedy.
    Checks that take longer are topics in its manifest, made only when they are among ``topics``."""


HOOKS = tuple(name for name, item in vars().items() if isinstance(item, FunctionType))
"""The names of all hooks."""

for _name in HOOKS:
    pluggy.HookspecMarker("demitasse")(globals()[_name])
