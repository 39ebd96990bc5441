"""All hooks of the microkernel: each function here specifies one, with its types and a sentence.

Hooks are called while composing and planning, never in a step. A plugin implements the hooks that its
manifest (``plugin.toml``) declares as roles, each with a function decorated with ``hookimpl``. The
function declares only the arguments that it needs."""

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
    """Return this machine's levels, outermost first: those of earlier probes, and what it adds."""


def allocator(space: str, options: Mapping[str, Any]) -> demitasse.Allocator | None:
    """Return an allocator for a memory space (``host``, ...), or None if the space is not served."""


def operations() -> Iterable[Operation]:
    """Return the operations that the plugin adds to the vocabulary."""


def kernels(request: demitasse.Request, options: Mapping[str, Any]) -> Iterable[demitasse.Candidate]:
    """Return kernels that can compute the requested operation at its place, the preferred one first."""


def tuner(
    allocator: demitasse.Allocator, versions: Mapping[str, str], options: Mapping[str, Any]
) -> demitasse.Tuner | None:
    """Return a tuner that tries candidates in the allocator's memory; ``versions`` are the plugins'."""


def gradient_sync(group: demitasse.Group) -> demitasse.GradientSync:
    """Return the synchronisation of one worker with its siblings at a level."""


def processes(machine: demitasse.Machine, options: Mapping[str, Any]) -> demitasse.Processes | None:
    """Return the processes that run together on the machine, or None if this one was started alone."""


def collectives() -> Mapping[str, demitasse.Algorithm]:
    """Return algorithms of collectives, by name."""


def stream_engine(
    space: str, machine: demitasse.Machine, options: Mapping[str, Any]
) -> demitasse.StreamEngine | None:
    """Return the streams of a worker's accelerator, by memory space; None for another plugin's space."""


def data_source(spec: demitasse.DataSpec, options: Mapping[str, Any]) -> demitasse.DataSource | None:
    """Open the source of samples that ``spec`` names; return None if the format is another plugin's."""


def layer_types() -> Iterable[demitasse.LayerType]:
    """Return the layer types that the plugin provides."""


def model_reader(
    path: Path, layer_types: Mapping[str, demitasse.LayerType]
) -> demitasse.ModelReader | None:
    """Return a reader of the file at ``path``, or None if its content is not in this plugin's format."""


def model_writer(path: Path, weights: demitasse.Weights) -> None:
    """Write weights and solver state to ``path``, whole or not at all."""


def programs() -> Mapping[str, Callable[..., Any]]:
    """Return programs (``trainer``, ``net``, ...) by name; each takes a runtime and more arguments."""


def reproductions(paper: str) -> Any:
    """Return a paper's tables, each cell with its prediction, or None for another plugin's paper."""


def commands() -> Mapping[str, Callable[..., Any]]:
    """Return sub-commands of the command line, by name."""


def observe(options: Mapping[str, Any]) -> Callable[[demitasse.Event], None] | None:
    """Return a listener, which is called for iterations, tests and snapshots, or None."""


def diagnose(topics: Collection[str]) -> Iterable[demitasse.Finding]:
    """Return findings on what the plugin needs (libraries, drivers, rights), each problem with a remedy.
    Checks that take longer are topics in the plugin's manifest; they run only if ``topics`` has them."""


HOOKS = tuple(name for name, item in vars().items() if isinstance(item, FunctionType))
"""The names of all hooks."""

for _name in HOOKS:
    pluggy.HookspecMarker("demitasse")(globals()[_name])
